/** A front-end, and back-ends that lie, fall silent and hang up. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, describe, it } from 'node:test';
import fc from 'fast-check';
import { native } from '../../src/sys/binding.ts';
import { eventfd } from '../../src/sys/fds.ts';
import { VhostUserFrontend } from '../../src/vhost/frontend.ts';
import type { VhostUserFrontendOptions } from '../../src/vhost/frontend-options.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import { type Features, features } from '../../src/wire/virtio.ts';
import { frameOf } from '../support/frontend-queues.ts';
import { until } from '../support/raw-peer.ts';
import {
  ALL_PROTOCOL,
  type BackendOptions,
  type FakeBackend,
  openDescriptors,
  socketPath,
  type Whim,
  withBackend,
} from '../support/vhost-backend.ts';

const FULL: BackendOptions = { features: features(0, 15, 28, 29, 30, 32), protocolFeatures: ALL_PROTOCOL };
const SEED = process.env.FC_SEED === undefined ? {} : { seed: Number(process.env.FC_SEED) };
const TIMEOUT = { timeout: 20_000 };

let folder: ReturnType<typeof socketPath>;

before(() => {
  folder = socketPath();
  // What is made once and stays: the reactor, the signals.
  new VhostUserFrontend({ path: folder.path }).destroy();
});
after(() => folder.end());

function connect(options: Partial<VhostUserFrontendOptions> = {}): Promise<VhostUserFrontend> {
  return VhostUserFrontend.connect({ path: folder.path, timeoutMs: 5000, ...options });
}

describe('a back-end that misbehaves', TIMEOUT, () => {
  /** Every request of a greeting with everything, in turn. */
  const greeting = [3, 1, 15, 16, 17, 24, 2, 39, 40, 36, 37, 8, 10, 9, 13, 14, 12, 18];
  const replied = greeting.filter((request) => request !== 3 && request !== 16);
  const kinds: [string, string, (request: number) => Whim, readonly number[]][] = [
    ['hangs up at', 'ECONNRESET', () => 'hang up', greeting],
    ['is silent at', 'ETIMEDOUT', () => 'silence', replied],
    ['answers something else to', 'EPROTO', (r) => vhost.encodeReply(r + 1, new Uint8Array(8)), replied],
    ['sends no reply flag to', 'EPROTO', (r) => vhost.encodeMessage(r, 0, new Uint8Array(8)), replied],
    ['sends too much for', 'EPROTO', (r) => vhost.encodeReply(r, new Uint8Array(400)), replied],
    ['sends a giant for', 'EPROTO', (r) => Uint8Array.from(giant(r)), replied],
    // The last acknowledgement comes when all is done; a mask or a number of 0 is refused for other reasons.
    [
      'answers twice to',
      'EPROTO',
      (r) => twice(r),
      replied.filter((r) => ![1, 15, 24, 40, 36, 18].includes(r)),
    ],
  ];
  for (const [what, code, whim, requests] of kinds) {
    it(`${what} a request: ${code}`, async () => {
      for (const request of requests) {
        let isDone = false;
        const options: BackendOptions = {
          ...FULL,
          whim: (message) => {
            if (message.request !== request || isDone) return null;
            isDone = true;
            return whim(request);
          },
        };
        await withBackend(folder.path, options, async (backend) => {
          await assert.rejects(connect({ timeoutMs: code === 'ETIMEDOUT' ? 60 : 5000 }), (error) => {
            assert.equal((error as { code: string }).code, code, `request ${request}: ${error}`);
            return true;
          });
          // On a busy machine the time may be over before that request.
          assert.equal(isDone || code === 'ETIMEDOUT', true);
          await until('the end', () => !backend.isConnected);
        });
      }
    });
  }

  function giant(request: number): Uint8Array {
    return new Uint8Array(Uint32Array.of(request, 5, 0xffff_ffff).buffer);
  }

  /** The usual answer, as a message of its own before and after. */
  function twice(request: number): Uint8Array {
    const one = vhost.encodeReply(request, vhost.encodeU64({ lo: 0, hi: 0 }));
    return Buffer.concat([one, one]);
  }

  it('answers any bytes to any request', async () => {
    const property = fc.asyncProperty(
      fc.nat(60),
      fc.uint8Array({ minLength: 1, maxLength: 600 }),
      fc.boolean(),
      fc.boolean(),
      async (which, bytes, isReply, thenHangsUp) => {
        let requests = 0;
        const options: BackendOptions = {
          ...FULL,
          whim: ({ request }, backend) => {
            if (requests++ !== which) return null;
            backend.say(isReply ? vhost.encodeReply(request, bytes.subarray(0, 9)) : bytes);
            return thenHangsUp ? 'hang up' : 'silence';
          },
        };
        await withBackend(folder.path, options, async () => {
          const nic = await connect({ timeoutMs: 30 }).catch((error: { code: string }) => {
            assert.match(error.code, /^(?:EPROTO|ECONNRESET|EPIPE|ETIMEDOUT|ZTX_REFUSED|ZTX_FEATURES)$/);
          });
          nic?.on('error', () => {});
          await nic?.close();
        });
      },
    );
    await fc.assert(property, { ...SEED, numRuns: 40 });
  });

  it('sends descriptors with a reply', async () => {
    const options: BackendOptions = {
      ...FULL,
      whim: ({ request }, backend) => {
        if (request !== vhost.VHOST_USER_GET_FEATURES) return null;
        const fd = eventfd();
        backend.say(vhost.encodeReply(request, vhost.encodeU64(FULL.features as Features)), [fd, fd, fd]);
        native().close(fd);
        return 'silence';
      },
    };
    await withBackend(folder.path, options, async () => {
      await assert.rejects(connect(), { code: 'EPROTO' });
    });
  });

  it('takes a reply apart', async () => {
    const options: BackendOptions = {
      ...FULL,
      whim: ({ request }, backend) => {
        if (request !== vhost.VHOST_USER_GET_FEATURES) return null;
        const reply = vhost.encodeReply(request, vhost.encodeU64(FULL.features as Features));
        for (const byte of reply) backend.say(Uint8Array.of(byte));
        return 'silence';
      },
    };
    await withBackend(folder.path, options, async () => {
      await (await connect()).close();
    });
  });

  it('is refused without VERSION_1', async () => {
    await withBackend(folder.path, { features: features(30) }, async () => {
      await assert.rejects(connect({ reconnect: true }), { code: 'ZTX_FEATURES' });
    });
  });

  it('is not there', async () => {
    const baseline = openDescriptors();
    await assert.rejects(connect(), { code: 'ENOENT' });
    assert.equal(openDescriptors(), baseline);
  });

  for (const [what, write] of [
    ['uses what is not out', (backend: FakeBackend) => useTransmit(backend, 100, 0)],
    ['uses a chain beyond the ring', (backend: FakeBackend) => useTransmit(backend, 0xffff_ffff, 0)],
  ] as const) {
    it(`${what}: ends with an error`, async () => {
      await withBackend(folder.path, FULL, async (backend) => {
        const nic = await connect();
        const ended = once(nic, 'error');
        const closed = new Promise<void>((resolve) => nic.once('close', resolve));
        const sent = assert.rejects(nic.sendFrame(frameOf(60, 1)), { code: 'ZTX_RING' });
        write(backend);
        const [[error]] = await Promise.all([ended, closed, sent]);
        assert.equal((error as { code: string }).code, 'ZTX_RING');
        await until('the end', () => !backend.isConnected);
      });
    });
  }

  function useTransmit(backend: FakeBackend, head: number, bytes: number): void {
    const queue = backend.queue(1);
    queue.put(head, bytes);
    queue.publish();
    backend.signal(1);
  }

  it('says how long a frame was, as older ones do: it is sent', async () => {
    await withBackend(folder.path, FULL, async (backend) => {
      const nic = await connect();
      for (const bytes of [60, 72, 0xffff_ffff]) {
        const sent = nic.sendFrame(frameOf(60, 1));
        assert.equal(backend.takeSent(1, bytes).length, 1);
        await sent;
      }
      await nic.close();
    });
  });

  it('says that a ring is broken', async () => {
    await withBackend(folder.path, FULL, async (backend) => {
      const nic = await connect();
      const ended = once(nic, 'error');
      native().eventfdSignal(backend.ring(0).err);
      const [error] = await ended;
      assert.match(String(error), /the back-end says that ring 0 is broken/);
    });
  });

  it('says something unasked, and is disconnected', async () => {
    await withBackend(folder.path, FULL, async (backend) => {
      const nic = await connect();
      const ended = once(nic, 'error');
      backend.say(vhost.encodeReply(1, new Uint8Array(8)));
      const [error] = await ended;
      assert.equal((error as { code: string }).code, 'EPROTO');
    });
  });

  for (const whim of ['silence', 'hang up'] as const) {
    for (const reconnect of [false, true]) {
      it(`ends with ${whim} when it is told goodbye${reconnect ? ', with reconnect' : ''}`, async () => {
        const options: BackendOptions = {
          ...FULL,
          whim: ({ request }) => (request === vhost.VHOST_USER_GET_VRING_BASE ? whim : null),
        };
        await withBackend(folder.path, options, async () => {
          const nic = await connect({ timeoutMs: 100, reconnect });
          const events: string[] = [];
          for (const name of ['error', 'disconnect', 'close'] as const) nic.on(name, () => events.push(name));
          await nic.close();
          assert.deepEqual(events, ['close']);
        });
      });
    }
  }
});
