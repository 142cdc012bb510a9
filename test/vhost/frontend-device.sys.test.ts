/** A front-end and the device of this package: both ends of the protocol, and of the rings. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, describe, it } from 'node:test';
import {
  FRAME_BYTES,
  FRAME_STATUS,
  FRAME_WORDS,
  type FrameTable,
  GSO_TCPV4,
  HEAD_BYTES,
} from '../../src/core/frames.ts';
import type { Port } from '../../src/core/port.ts';
import { VhostUserDevice } from '../../src/vhost/device.ts';
import type { VhostUserDeviceOptions } from '../../src/vhost/device-options.ts';
import { VhostUserFrontend } from '../../src/vhost/frontend.ts';
import { FRONTEND_FEATURES } from '../../src/vhost/frontend-features.ts';
import type { VhostUserFrontendOptions } from '../../src/vhost/frontend-options.ts';
import { features, or, without } from '../../src/wire/virtio.ts';
import { frameOf } from '../support/frontend-queues.ts';
import { until } from '../support/raw-peer.ts';
import { openDescriptors, socketPath } from '../support/vhost-backend.ts';

const TIMEOUT = { timeout: 20_000 };
const ALL = Uint32Array.from({ length: 4096 }, (_, i) => i);

let folder: ReturnType<typeof socketPath>;

before(() => {
  folder = socketPath();
  new VhostUserFrontend({ path: folder.path }).destroy();
});
after(() => folder.end());

/** Sends back whatever comes; what it has no room for is lost. */
function echo(device: Port): void {
  device.receiver = (table) => {
    device.send(table, ALL, 0, table.count);
    return table.count;
  };
}

/** Adds up what comes. */
function sink(device: Port): { frames: number; bytes: number; failed: number; heads: Set<number> } {
  const seen = { frames: 0, bytes: 0, failed: 0, heads: new Set<number>() };
  device.receiver = (table: FrameTable) => {
    const { records } = table;
    for (let i = 0; i < table.count; i++) {
      seen.frames += 1;
      seen.bytes += records[i * FRAME_WORDS + FRAME_BYTES] as number;
      if (records[i * FRAME_WORDS + FRAME_STATUS] !== 0) seen.failed += 1;
      seen.heads.add(records[i * FRAME_WORDS + HEAD_BYTES] as number);
    }
    return table.count;
  };
  return seen;
}

async function withDevice(
  options: Partial<VhostUserDeviceOptions>,
  test: (device: VhostUserDevice) => Promise<void>,
): Promise<void> {
  const baseline = openDescriptors();
  const device = new VhostUserDevice({ path: folder.path, ...options });
  device.on('broken', (ring, reason) => assert.fail(`ring ${ring}: ${reason}`));
  device.on('failure', (error) => assert.fail(error));
  await device.open();
  try {
    await test(device);
    await until('the front-end is gone', () => device.state !== 'connected');
  } finally {
    await device.close();
  }
  assert.equal(openDescriptors(), baseline);
}

function connect(options: Partial<VhostUserFrontendOptions> = {}): Promise<VhostUserFrontend> {
  return VhostUserFrontend.connect({ path: folder.path, ...options });
}

const RINGS: [string, Partial<VhostUserFrontendOptions>][] = [
  ['by default', {}],
  ['without event index', { features: without(FRONTEND_FEATURES, features(29)) }],
  ['without indirect tables', { features: without(FRONTEND_FEATURES, features(28)) }],
  ['in order', { features: or(FRONTEND_FEATURES, features(35)) }],
  ['in small rings', { queueSize: 16 }],
  ['with nothing', { features: features() }],
  ['with no protocol features', { protocolFeatures: features() }],
];

describe('frames to a device and back', TIMEOUT, () => {
  for (const [what, options] of RINGS) {
    it(`arrive as they were, ${what}`, async () => {
      await withDevice({}, async (device) => {
        echo(device);
        const nic = await connect(options);
        const got: Buffer[] = [];
        nic.on('frame', (frame) => got.push(frame));
        const sizes = [14, 60, 255, 256, 257, 1000, 1514];
        for (let i = 0; i < 200; i++) {
          const bytes = sizes[i % sizes.length] as number;
          await nic.sendFrame(frameOf(bytes, i));
          await until('the frame', () => got.length === i + 1);
          assert.deepEqual(got[i], frameOf(bytes, i));
        }
        assert.equal(nic.tx.counters.completed, 200);
        assert.equal(nic.rx.counters.errors, 0);
        await nic.close();
      });
    });
  }

  it('may be segments to be cut, with their header', async () => {
    await withDevice({}, async (device) => {
      echo(device);
      const nic = await connect();
      const vnet = { flags: 1, gsoType: GSO_TCPV4, hdrLen: 54, gsoSize: 1460, csumStart: 34, csumOffset: 16 };
      const frame = tcpFrame(62_000);
      const came = once(nic, 'frame');
      assert.equal(nic.send(frame, { vnet }), true);
      const [got, header] = await came;
      assert.deepEqual(got, frame);
      assert.deepEqual({ ...header, hdrLen: 54 }, vnet);
      await nic.close();
    });
  });

  it('go to all queue pairs', async () => {
    await withDevice({ queues: 4 }, async (device) => {
      echo(device);
      const nic = await connect({ queuePairs: 4 });
      assert.equal(nic.queuePairs, 4);
      let frames = 0;
      nic.on('frame', () => {
        frames += 1;
      });
      for (let i = 0; i < 200; i++) {
        while (!(nic.transmit[i % 4] as (typeof nic)['tx']).send(flowFrame(i))) await turn();
      }
      await until('all frames', () => frames === 200);
      const used = nic.receive.filter(({ counters }) => counters.frames > 0);
      assert.ok(used.length > 1, `${used.length} receive rings in use`);
      await nic.close();
    });
  });
});

describe('a generator', TIMEOUT, () => {
  for (const [frameBytes, pieces] of [
    [60, 1],
    [1500, 1],
    [62_000, 11],
  ] as const) {
    it(`sends ${frameBytes} bytes in ${pieces} pieces again and again, and counts`, async () => {
      await withDevice({}, async (device) => {
        const seen = sink(device);
        const nic = await connect({
          memoryBytes: 4 << 20,
          polled: true,
          features: without(FRONTEND_FEATURES, features(28)),
        });
        const set = nic.prepare({
          frameBytes,
          workingSetBytes: 1 << 20,
          pieces,
          vnet: { flags: 1, gsoType: GSO_TCPV4, hdrLen: 54, gsoSize: 1460, csumStart: 34, csumOffset: 16 },
          fill: (frame) => frame.set(tcpFrame(frameBytes)),
        });
        const total = 2000;
        let sent = 0;
        while (nic.tx.counters.completed < total) {
          sent += nic.tx.sendBatch(set, Math.min(64, total - sent));
          if (nic.poll() === 0) await turn();
        }
        assert.equal(seen.frames, total);
        assert.equal(seen.bytes, total * frameBytes);
        assert.equal(seen.failed, 0);
        assert.equal(nic.tx.ring.counters.outOfOrder, 0);
        assert.equal(nic.tx.room, 256);
        await nic.close();
      });
    });
  }
});

describe('a device that comes and goes', TIMEOUT, () => {
  it('gets every frame that it did not return', async () => {
    const baseline = openDescriptors();
    const make = async (): Promise<VhostUserDevice> => {
      const device = new VhostUserDevice({ path: folder.path });
      echo(device);
      await device.open();
      return device;
    };
    let device = await make();
    const nic = await connect({ reconnect: true, retryMinMs: 1, retryMaxMs: 5 });
    const seen = new Map<number, number>();
    nic.on('frame', (frame) => seen.set(frame.readUInt32LE(14), (seen.get(frame.readUInt32LE(14)) ?? 0) + 1));
    let next = 0;
    for (let round = 0; round < 8; round++) {
      for (let i = 0; i < 50; i++) {
        const frame = frameOf(60, 1);
        frame.writeUInt32LE(next, 14);
        if (nic.send(frame)) next += 1;
        if (i === 20) await turn();
      }
      const found = once(nic, 'connect');
      await device.close();
      device = await make();
      await found;
    }
    await until('all frames', () => nic.tx.counters.completed === next);
    assert.equal(nic.tx.room, 256);
    await nic.sendFrame(frameOf(60, 3));
    // What the device took and had not echoed when it went is lost with it; nothing is stuck.
    assert.ok(seen.size > 0 && next > 0);
    await nic.close();
    await device.close();
    assert.equal(openDescriptors(), baseline);
  });

  it('finds rings where they stopped', async () => {
    await withDevice({}, async (device) => {
      const seen = sink(device);
      const nic = await connect();
      for (let round = 1; round <= 20; round++) {
        for (let i = 0; i < 10; i++) await nic.sendFrame(frameOf(100, i));
        const bases = await nic.stopRings();
        assert.equal(bases[1], (10 * round) & 0xffff);
        await nic.startRings();
      }
      assert.equal(seen.frames, 200);
      await nic.close();
    });
  });

  it('drops what is sent on a ring that is off', async () => {
    await withDevice({}, async (device) => {
      const seen = sink(device);
      const nic = await connect();
      await nic.enableRings(false);
      for (let i = 0; i < 10; i++) await nic.sendFrame(frameOf(100, i));
      assert.equal(seen.frames, 0);
      await nic.enableRings(true);
      await nic.sendFrame(frameOf(100, 1));
      assert.equal(seen.frames, 1);
      await nic.close();
    });
  });

  it('connects to a front-end that listens', async () => {
    const nic = new VhostUserFrontend({ path: folder.path, listen: true });
    const open = nic.open();
    const device = new VhostUserDevice({ path: folder.path, role: 'connect' });
    const seen = sink(device);
    await device.open();
    await open;
    await nic.sendFrame(frameOf(100, 1));
    assert.equal(seen.frames, 1);
    await nic.close();
    await device.close();
  });
});

describe('a front-end as a port', TIMEOUT, () => {
  it('is one end of a link between two devices', async () => {
    await withDevice({}, async (device) => {
      echo(device);
      const other = socketPath();
      const outer = new VhostUserDevice({ path: other.path });
      await outer.open();
      const uplink = await connect({ name: 'uplink' });
      assert.equal(uplink.port.isUp, true);
      assert.equal(uplink.port.name, 'uplink');
      join(uplink.port, outer);
      const nic = await VhostUserFrontend.connect({ path: other.path });
      const got: Buffer[] = [];
      nic.on('frame', (frame) => got.push(frame));
      const sizes = [60, 257, 1514, 14];
      for (let i = 0; i < 100; i++) {
        await nic.sendFrame(frameOf(sizes[i % 4] as number, i));
        await until('the frame', () => got.length === i + 1);
        assert.deepEqual(got[i], frameOf(sizes[i % 4] as number, i));
      }
      const { counters } = uplink.port;
      assert.deepEqual([counters.txFrames, counters.rxFrames], [100, 100]);
      await nic.close();
      await outer.close();
      await uplink.close();
      other.end();
    });
  });

  /** Both ways, with back-pressure. */
  function join(a: Port, b: Port): void {
    for (const [from, to] of [
      [a, b],
      [b, a],
    ] as const) {
      from.receiver = (table) => to.send(table, ALL, 0, table.count);
      to.onWritable = () => from.resume();
    }
  }
});

function turn(): Promise<void> {
  return new Promise((resolve) => {
    setImmediate(resolve);
  });
}

/** Ethernet, IPv4 and TCP headers that say what the frame is; the rest is a pattern. */
function tcpFrame(bytes: number): Buffer {
  const frame = frameOf(bytes, 5);
  frame.set([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0], 0);
  frame.writeUInt16BE(bytes - 14, 16);
  frame.set([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2], 18);
  frame.writeUInt16BE(1000, 34);
  frame.writeUInt16BE(2000, 36);
  frame[46] = 0x50;
  return frame;
}

/** A UDP datagram of a flow of its own. */
function flowFrame(flow: number): Buffer {
  const frame = tcpFrame(60);
  frame[23] = 17;
  frame.writeUInt16BE(5000 + flow, 34);
  return frame;
}
