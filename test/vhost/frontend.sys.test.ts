/** A front-end with its socket, and a back-end that does what the test says. */
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
  FakeBackend,
  openDescriptors,
  socketPath,
  type Whim,
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

/** Runs `test` with a back-end that listens, and looks for descriptors that stay open. */
async function withBackend(
  options: BackendOptions,
  test: (backend: FakeBackend) => Promise<void>,
): Promise<void> {
  const baseline = openDescriptors();
  const backend = new FakeBackend(options).listen(folder.path);
  try {
    await test(backend);
  } finally {
    backend.close();
  }
  assert.equal(openDescriptors(), baseline, 'a descriptor was left open');
}

function connect(options: Partial<VhostUserFrontendOptions> = {}): Promise<VhostUserFrontend> {
  return VhostUserFrontend.connect({ path: folder.path, timeoutMs: 5000, ...options });
}

/** Returns what was sent, as used; the frames without header. */
function takeSent(backend: FakeBackend, index = 1): Buffer[] {
  const queue = backend.queue(index);
  const ring = backend.ring(index);
  const frames: Buffer[] = [];
  for (let left = queue.available(); left > 0; left--) {
    const head = queue.peekHead(0);
    const parts: Uint8Array[] = [];
    for (let at = head, more = true; more; ) {
      const [low = 0, high = 0, length = 0, word = 0] = queue.desc.subarray(at * 4, at * 4 + 4);
      parts.push(backend.read(high * 2 ** 32 + low, length));
      more = (word & 1) !== 0;
      at = word >>> 16;
    }
    frames.push(Buffer.concat(parts).subarray(12));
    queue.advance(1);
    queue.put(head, 0);
  }
  ring.base = queue.lastAvail;
  queue.enableNotifications();
  if (queue.publish()) backend.signal(index);
  return frames;
}

function deliver(backend: FakeBackend, frame: Buffer, index = 0): void {
  const queue = backend.queue(index);
  assert.ok(queue.available() > 0);
  const head = queue.peekHead(0);
  const [low = 0, high = 0] = queue.desc.subarray(head * 4, head * 4 + 2);
  const header = Buffer.alloc(12);
  header[10] = 1;
  backend.write(high * 2 ** 32 + low, Buffer.concat([header, frame]));
  queue.advance(1);
  queue.put(head, 12 + frame.length);
  backend.ring(index).base = queue.lastAvail;
  if (queue.publish()) backend.signal(index);
}

describe('a front-end and its back-end', TIMEOUT, () => {
  for (const [what, options] of [
    ['all that there is', FULL],
    ['no protocol features', { features: features(32) }],
    ['protocol features that it leaves empty', { features: features(30, 32) }],
  ] as const) {
    it(`exchange frames with ${what}`, async () => {
      await withBackend(options, async (backend) => {
        const nic = await connect();
        const got: Buffer[] = [];
        nic.on('frame', (frame) => got.push(frame));
        backend.onKick = (ring) => {
          if (ring.index !== 1) return;
          for (const frame of takeSent(backend)) deliver(backend, frame);
        };
        for (let i = 0; i < 20; i++) await nic.sendFrame(frameOf(60 + i, i));
        await until('all frames', () => got.length === 20);
        assert.deepEqual(
          got,
          Array.from({ length: 20 }, (_, i) => frameOf(60 + i, i)),
        );
        assert.equal(nic.tx.counters.completed, 20);
        assert.ok(nic.rx.ring.counters.signals > 0);
        await nic.close();
        await until('the end', () => !backend.isConnected);
        assert.equal(nic.isConnected, false);
      });
    });
  }

  it('say goodbye', async () => {
    await withBackend(FULL, async (backend) => {
      const nic = await connect();
      const before = backend.heard.length;
      assert.equal(backend.status, 15);
      const closed = once(nic, 'close');
      await nic.close();
      await closed;
      assert.deepEqual(
        backend.heard.slice(before).map(({ request }) => request),
        [vhost.VHOST_USER_GET_VRING_BASE, vhost.VHOST_USER_GET_VRING_BASE, vhost.VHOST_USER_SET_STATUS],
      );
      assert.equal(backend.status, 0);
      await nic.close();
      assert.equal(nic.send(frameOf(60, 1)), false);
      assert.equal(nic.poll(), 0);
      await assert.rejects(nic.sendFrame(frameOf(60, 1)), { code: 'ENOTCONN' });
      await assert.rejects(nic.open(), { code: 'ENOTCONN' });
    });
  });

  it('find each other when the front-end listens', async () => {
    const baseline = openDescriptors();
    const nic = new VhostUserFrontend({ path: folder.path, listen: true });
    const listening = once(nic, 'listening');
    const open = nic.open();
    await listening;
    const backend = new FakeBackend(FULL).connect(folder.path);
    await open;
    backend.onKick = () => takeSent(backend);
    await nic.sendFrame(frameOf(60, 1));
    await nic.close();
    backend.close();
    assert.equal(openDescriptors(), baseline);
  });

  it('do without eventfds where both poll', async () => {
    await withBackend(FULL, async (backend) => {
      const nic = await connect({ polled: true, devicePolls: true });
      assert.equal(backend.ring(1).kick, -1);
      assert.equal(backend.ring(1).call, -1);
      assert.equal(nic.send(frameOf(60, 1)), true);
      assert.deepEqual(takeSent(backend), [frameOf(60, 1)]);
      deliver(backend, frameOf(61, 2));
      assert.equal(nic.poll(), 2);
      assert.equal(nic.rx.counters.bytes, 61);
      await nic.close();
    });
  });

  it('use as many pairs as both have', async () => {
    const options = { ...FULL, features: features(15, 22, 29, 30, 32), queuePairs: 3 };
    await withBackend(options, async (backend) => {
      const nic = await connect({ queuePairs: 4 });
      assert.equal(nic.queuePairs, 3);
      assert.deepEqual([...backend.rings.keys()], [0, 1, 2, 3, 4, 5]);
      assert.ok([...backend.rings.values()].every(({ enabled }) => enabled));
      nic.transmit[2]?.send(frameOf(60, 5));
      assert.deepEqual(takeSent(backend, 5), [frameOf(60, 5)]);
      assert.equal(nic.transmit[3]?.send(frameOf(60, 5)), false);
      await nic.enableRings(false, [2]);
      assert.deepEqual(
        [...backend.rings.values()].map(({ enabled }) => enabled),
        [true, true, true, true, false, false],
      );
      await nic.close();
    });
  });

  it('stop rings and start them where they stopped', async () => {
    await withBackend(FULL, async (backend) => {
      const nic = await connect();
      for (let i = 0; i < 5; i++) nic.send(frameOf(60, i));
      takeSent(backend);
      for (let i = 5; i < 8; i++) nic.send(frameOf(60, i));
      assert.deepEqual(await nic.stopRings(), [0, 5]);
      assert.equal(nic.tx.counters.completed, 5);
      assert.equal(nic.send(frameOf(60, 9)), false);
      backend.ring(1).base = 0;
      await nic.startRings();
      assert.equal(backend.ring(1).base, 5);
      assert.deepEqual(
        takeSent(backend),
        [5, 6, 7].map((i) => frameOf(60, i)),
      );
      await nic.close();
    });
  });

  it('measure how long frames are out', async () => {
    await withBackend(FULL, async (backend) => {
      const nic = await connect({ latency: true, memoryBytes: 1 << 16 });
      const set = nic.prepare({ frameBytes: 100, count: 2 });
      assert.equal(nic.tx.sendBatch(set, 10), 10);
      takeSent(backend);
      nic.poll();
      const [transmit] = nic.stats().transmit;
      assert.equal(transmit?.latency?.count, 10);
      assert.deepEqual([transmit?.completed, transmit?.outstanding], [10, 0]);
      await nic.close();
    });
  });
});

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
        await withBackend(options, async (backend) => {
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
        await withBackend(options, async () => {
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
    await withBackend(options, async () => {
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
    await withBackend(options, async () => {
      await (await connect()).close();
    });
  });

  it('is refused without VERSION_1', async () => {
    await withBackend({ features: features(30) }, async () => {
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
    ['writes where it may not', (backend: FakeBackend) => useTransmit(backend, 0, 0xffff_ffff)],
  ] as const) {
    it(`${what}: ends with an error`, async () => {
      await withBackend(FULL, async (backend) => {
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

  it('says that a ring is broken', async () => {
    await withBackend(FULL, async (backend) => {
      const nic = await connect();
      const ended = once(nic, 'error');
      native().eventfdSignal(backend.ring(0).err);
      const [error] = await ended;
      assert.match(String(error), /the back-end says that ring 0 is broken/);
    });
  });

  it('says something unasked, and is disconnected', async () => {
    await withBackend(FULL, async (backend) => {
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
        await withBackend(options, async () => {
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

describe('a back-end that comes back', TIMEOUT, () => {
  it('goes on with the same rings', async () => {
    await withBackend(FULL, async (backend) => {
      const nic = await connect({ reconnect: true, retryMinMs: 1 });
      for (let i = 0; i < 8; i++) nic.send(frameOf(60, i));
      const queue = backend.queue(1);
      queue.put(queue.peekHead(0), 0);
      queue.put(queue.peekHead(1), 0);
      queue.publish();
      const [lost, found] = [once(nic, 'disconnect'), once(nic, 'connect')];
      const late = nic.sendFrame(frameOf(60, 8));
      backend.hangUp();
      const [error] = await lost;
      assert.equal((error as { code: string }).code, 'ECONNRESET');
      assert.equal(nic.isConnected, false);
      assert.equal(nic.port.isUp, false);
      assert.equal(nic.send(frameOf(60, 9)), false);
      const waiting = nic.sendFrame(frameOf(60, 9));
      await found;
      assert.equal(backend.connections, 2);
      assert.equal(backend.ring(1).base, 2);
      const sent = takeSent(backend);
      assert.deepEqual(
        sent,
        [2, 3, 4, 5, 6, 7, 8, 9].map((i) => frameOf(60, i)),
      );
      await Promise.all([late, waiting]);
      await nic.close();
    });
  });

  it('is tried again and again, from the beginning', async () => {
    let attempts = 0;
    const options: BackendOptions = {
      ...FULL,
      whim: () => (++attempts < 30 ? 'hang up' : null),
    };
    await withBackend(options, async () => {
      const nic = await connect({ reconnect: true, retryMinMs: 1, retryMaxMs: 1 });
      assert.equal(attempts > 30, true);
      await nic.close();
    });
  });

  it('is waited for before it is there', async () => {
    const baseline = openDescriptors();
    const opening = connect({ reconnect: true, retryMinMs: 1, retryMaxMs: 1 });
    const backend = new FakeBackend(FULL).listen(folder.path);
    await (await opening).close();
    backend.close();
    assert.equal(openDescriptors(), baseline);
  });

  it('is refused with less than before', async () => {
    await withBackend(FULL, async (backend) => {
      const nic = await connect({ reconnect: true, retryMinMs: 1 });
      const ended = once(nic, 'error');
      backend.options = { ...FULL, features: features(0, 28, 29, 30, 32) };
      backend.hangUp();
      const [error] = await ended;
      assert.equal((error as { code: string }).code, 'ZTX_FEATURES');
    });
  });

  it('finds a ring that it broke in order', async () => {
    await withBackend(FULL, async (backend) => {
      const nic = await connect({ reconnect: true, retryMinMs: 1 });
      const sent = nic.sendFrame(frameOf(60, 1));
      const found = once(nic, 'connect');
      const lost = once(nic, 'disconnect');
      const queue = backend.queue(1);
      queue.put(77, 0);
      queue.publish();
      backend.signal(1);
      const [error] = await lost;
      assert.equal((error as { code: string }).code, 'ZTX_RING');
      await found;
      assert.deepEqual(takeSent(backend), [frameOf(60, 1)]);
      await sent;
      await nic.close();
    });
  });

  it('is found by a front-end that listens', async () => {
    const baseline = openDescriptors();
    const nic = new VhostUserFrontend({ path: folder.path, listen: true, reconnect: true });
    const listening = once(nic, 'listening');
    const open = nic.open();
    await listening;
    for (let round = 0; round < 3; round++) {
      const found = round === 0 ? open : once(nic, 'connect');
      const backend = new FakeBackend(FULL).connect(folder.path);
      // Another one waits its turn.
      await found;
      const lost = once(nic, 'disconnect');
      backend.close();
      await lost;
    }
    await nic.close();
    assert.equal(openDescriptors(), baseline);
  });
});

describe('a front-end that ends', TIMEOUT, () => {
  it('before, while and after it connects, when it is told to', async () => {
    await withBackend(
      { ...FULL, whim: ({ request }) => (request === 2 ? 'silence' : null) },
      async (backend) => {
        await assert.rejects(connect({ signal: AbortSignal.abort() }), { code: 'ABORT_ERR' });
        const abort = new AbortController();
        const connecting = connect({ signal: abort.signal });
        await until('the greeting', () => backend.heard.some(({ request }) => request === 2));
        abort.abort();
        await assert.rejects(connecting, { code: 'ABORT_ERR' });
        backend.options = FULL;
        const later = new AbortController();
        const nic = await connect({ signal: later.signal });
        const ended = once(nic, 'error');
        later.abort();
        const [error] = await ended;
        assert.equal((error as { code: string }).code, 'ABORT_ERR');
      },
    );
  });

  it('from within its own events', async () => {
    await withBackend(FULL, async (backend) => {
      const nic = await connect();
      let frames = 0;
      nic.on('frame', () => {
        frames += 1;
        nic.destroy();
      });
      const closed = once(nic, 'close');
      for (let i = 0; i < 5; i++) deliver(backend, frameOf(60, i));
      await closed;
      assert.equal(frames, 1);
      nic.rx.unblock();
      assert.equal(nic.rx.poll(), 0);
    });
  });

  it('many times, and leaves nothing', async () => {
    await withBackend(FULL, async () => {
      for (let i = 0; i < 50; i++) {
        const nic = await connect();
        nic.send(frameOf(60, i));
        if (i % 2 === 0) await nic.close();
        else nic.destroy();
      }
    });
  });

  it('sends what it was given before there was a back-end', async () => {
    await withBackend({ features: features(32) }, async (backend) => {
      backend.onKick = () => takeSent(backend);
      const nic = new VhostUserFrontend({ path: folder.path });
      const early = nic.sendFrame(frameOf(60, 1));
      const never = assert.rejects(nic.sendFrame(frameOf(600_000, 2)), { code: 'EMSGSIZE' });
      const next = nic.sendFrame(frameOf(60, 3));
      await nic.open();
      await Promise.all([early, never, next]);
      await nic.open();
      await assert.rejects(nic.enableRings(false), { code: 'EOPNOTSUPP' });
      assert.equal(await nic.announce(), false);
      await nic.close();
      await assert.rejects(nic.announce(), { code: 'ENOTCONN' });
    });
  });

  it('refuses options that are none', () => {
    for (const options of [
      { path: 5 as unknown as string },
      { queueSize: 100 },
      { queueSize: 65_536 },
      { queuePairs: 0 },
      { buffers: 257 },
      { bufferBytes: 10 },
      { mtu: 20 },
      { mac: 'x' },
      { timeoutMs: 0 },
      { listen: 1 as unknown as boolean },
      { memoryBytes: 2 ** 31 },
      { signal: {} as AbortSignal },
    ]) {
      assert.throws(
        () => new VhostUserFrontend({ path: folder.path, ...options }),
        ({ code }) => code === 'ERR_OUT_OF_RANGE' || code === 'ERR_INVALID_ARG_TYPE',
      );
    }
    const most = 2 ** 30;
    assert.throws(() => new VhostUserFrontend({ path: folder.path, memoryBytes: most }), {
      code: 'ERR_OUT_OF_RANGE',
    });
  });
});
