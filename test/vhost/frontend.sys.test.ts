/** A front-end with its socket, and a back-end that does what the test says. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, describe, it } from 'node:test';
import { VhostUserFrontend } from '../../src/vhost/frontend.ts';
import type { VhostUserFrontendOptions } from '../../src/vhost/frontend-options.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import { features } from '../../src/wire/virtio.ts';
import { frameOf } from '../support/frontend-queues.ts';
import { until } from '../support/raw-peer.ts';
import {
  ALL_PROTOCOL,
  type BackendOptions,
  FakeBackend,
  openDescriptors,
  socketPath,
  withBackend,
} from '../support/vhost-backend.ts';

const FULL: BackendOptions = { features: features(0, 15, 28, 29, 30, 32), protocolFeatures: ALL_PROTOCOL };
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

describe('a front-end and its back-end', TIMEOUT, () => {
  for (const [what, options] of [
    ['all that there is', FULL],
    ['no protocol features', { features: features(32) }],
    ['protocol features that it leaves empty', { features: features(30, 32) }],
  ] as const) {
    it(`exchange frames with ${what}`, async () => {
      await withBackend(folder.path, options, async (backend) => {
        const nic = await connect();
        const got: Buffer[] = [];
        nic.on('frame', (frame) => got.push(frame));
        backend.onKick = (ring) => {
          if (ring.index !== 1) return;
          for (const frame of backend.takeSent()) backend.deliver(frame);
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

  it('exchange nothing that is no frame', async () => {
    await withBackend(folder.path, FULL, async () => {
      const nic = await connect();
      for (const [bad, code] of [
        ['frame', 'ERR_INVALID_ARG_TYPE'],
        [undefined, 'ERR_INVALID_ARG_TYPE'],
        [[0, 1], 'ERR_INVALID_ARG_TYPE'],
        [new Uint8Array(0), 'ERR_OUT_OF_RANGE'],
        [new Uint8Array(13), 'ERR_OUT_OF_RANGE'],
      ] as const) {
        assert.throws(() => nic.send(bad as Uint8Array), { code });
        await assert.rejects(nic.sendFrame(bad as Uint8Array), { code });
      }
      assert.equal(nic.send(new Uint8Array(14)), true);
      await nic.close();
    });
  });

  it('say goodbye', async () => {
    await withBackend(folder.path, FULL, async (backend) => {
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
    backend.onKick = () => backend.takeSent();
    await nic.sendFrame(frameOf(60, 1));
    await nic.close();
    backend.close();
    assert.equal(openDescriptors(), baseline);
  });

  it('do without eventfds where both poll', async () => {
    await withBackend(folder.path, FULL, async (backend) => {
      const nic = await connect({ polled: true, devicePolls: true });
      assert.equal(backend.ring(1).kick, -1);
      assert.equal(backend.ring(1).call, -1);
      assert.equal(nic.send(frameOf(60, 1)), true);
      assert.deepEqual(backend.takeSent(), [frameOf(60, 1)]);
      backend.deliver(frameOf(61, 2));
      assert.equal(nic.poll(), 2);
      assert.equal(nic.rx.counters.bytes, 61);
      await nic.close();
    });
  });

  it('use as many pairs as both have', async () => {
    const options = { ...FULL, features: features(15, 22, 29, 30, 32), queuePairs: 3 };
    await withBackend(folder.path, options, async (backend) => {
      const nic = await connect({ queuePairs: 4 });
      assert.equal(nic.queuePairs, 3);
      assert.deepEqual([...backend.rings.keys()], [0, 1, 2, 3, 4, 5]);
      assert.ok([...backend.rings.values()].every(({ enabled }) => enabled));
      nic.transmit[2]?.send(frameOf(60, 5));
      assert.deepEqual(backend.takeSent(5), [frameOf(60, 5)]);
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
    await withBackend(folder.path, FULL, async (backend) => {
      const nic = await connect();
      for (let i = 0; i < 5; i++) nic.send(frameOf(60, i));
      backend.takeSent();
      for (let i = 5; i < 8; i++) nic.send(frameOf(60, i));
      assert.deepEqual(await nic.stopRings(), [0, 5]);
      assert.equal(nic.tx.counters.completed, 5);
      assert.equal(nic.send(frameOf(60, 9)), false);
      backend.ring(1).base = 0;
      await nic.startRings();
      assert.equal(backend.ring(1).base, 5);
      assert.deepEqual(
        backend.takeSent(),
        [5, 6, 7].map((i) => frameOf(60, i)),
      );
      await nic.close();
    });
  });

  it('measure how long frames are out', async () => {
    await withBackend(folder.path, FULL, async (backend) => {
      const nic = await connect({ latency: true, memoryBytes: 1 << 16 });
      const set = nic.prepare({ frameBytes: 100, count: 2 });
      assert.equal(nic.tx.sendBatch(set, 10), 10);
      backend.takeSent();
      nic.poll();
      const [transmit] = nic.stats().transmit;
      assert.equal(transmit?.latency?.count, 10);
      assert.deepEqual([transmit?.completed, transmit?.outstanding], [10, 0]);
      await nic.close();
    });
  });
});

describe('a back-end that comes back', TIMEOUT, () => {
  it('goes on with the same rings', async () => {
    await withBackend(folder.path, FULL, async (backend) => {
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
      const sent = backend.takeSent();
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
    await withBackend(folder.path, options, async () => {
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
    await withBackend(folder.path, FULL, async (backend) => {
      const nic = await connect({ reconnect: true, retryMinMs: 1 });
      const ended = once(nic, 'error');
      backend.options = { ...FULL, features: features(0, 28, 29, 30, 32) };
      backend.hangUp();
      const [error] = await ended;
      assert.equal((error as { code: string }).code, 'ZTX_FEATURES');
    });
  });

  it('finds a ring that it broke in order', async () => {
    await withBackend(folder.path, FULL, async (backend) => {
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
      assert.deepEqual(backend.takeSent(), [frameOf(60, 1)]);
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
      folder.path,
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
    await withBackend(folder.path, FULL, async (backend) => {
      const nic = await connect();
      let frames = 0;
      nic.on('frame', () => {
        frames += 1;
        nic.destroy();
      });
      const closed = once(nic, 'close');
      for (let i = 0; i < 5; i++) backend.deliver(frameOf(60, i));
      await closed;
      assert.equal(frames, 1);
      nic.rx.unblock();
      assert.equal(nic.rx.poll(), 0);
    });
  });

  it('many times, and leaves nothing', async () => {
    await withBackend(folder.path, FULL, async () => {
      for (let i = 0; i < 50; i++) {
        const nic = await connect();
        nic.send(frameOf(60, i));
        if (i % 2 === 0) await nic.close();
        else nic.destroy();
      }
    });
  });

  it('sends what it was given before there was a back-end', async () => {
    await withBackend(folder.path, { features: features(32) }, async (backend) => {
      backend.onKick = () => backend.takeSent();
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
