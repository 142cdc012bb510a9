/** The tests of DPDK's front-end: see dpdk-frontend.guest.test.ts. */
import assert from 'node:assert/strict';
import { after, afterEach, before, describe, it } from 'node:test';
import { type Dpdk, dpdk } from '../../bench/baselines/dpdk.ts';
import { Testpmd, type TestpmdCounters, type TestpmdOptions } from '../../bench/baselines/testpmd.ts';
import { Link, systemClock } from '../../src/switch/index.ts';
import { VhostUserDevice } from '../../src/vhost/index.ts';
import { type LabCounters, LabProcess } from './lab-process.ts';
import { loopbackUp, socketPaths } from './namespace.ts';

const path = socketPaths();
const CYCLES = process.env.ZEROTX_SOAK === '1' ? 50 : 10;
const MACS = ['02:00:00:00:01:01', '02:00:00:00:01:02'] as const;

loopbackUp();

let found: Dpdk;
const running: Testpmd[] = [];
before(async () => {
  found = await dpdk();
});
afterEach(() => Promise.all(running.splice(0).map((testpmd) => testpmd.stop())));

async function front(name: string, options: Partial<TestpmdOptions>): Promise<Testpmd> {
  const testpmd = await Testpmd.start(found, {
    ...{ role: 'front-end', path: path(`${name}.sock`), core: running.length % 2, forward: 'rxonly' },
    mac: MACS[running.length % 2] as string,
    ...options,
  });
  running.push(testpmd);
  return testpmd;
}

type Look = () => Promise<{ readonly done: boolean; readonly seen: unknown }>;

/** Looks again until it is so; programs that poll have the processors meanwhile. */
async function until(look: Look): Promise<void> {
  let seen: unknown;
  for (let i = 0; i < 500; i++) {
    const found = await look();
    if (found.done) return;
    seen = found.seen;
  }
  assert.fail(`it never was: ${JSON.stringify(seen)}`);
}

/** Frames that a port of a switch was given, less those that its guest had no room for. */
function delivered({ device }: LabCounters): number {
  return device?.details.rx.frames ?? -1;
}

describe("DPDK's front-end at a switch", () => {
  const variants: readonly (readonly [string, Partial<TestpmdOptions>, number?])[] = [
    ['as it is', {}],
    ['without mergeable buffers', { parameters: ['mrg_rxbuf=0'] }],
    ['without order', { parameters: ['in_order=0'] }],
    ['without either', { parameters: ['mrg_rxbuf=0', 'in_order=0'] }],
    ['with rings of 1024', { queueSize: 1024 }],
    ['with two queue pairs', { queuePairs: 2 }],
  ];
  for (const [index, [name, options]] of variants.entries()) {
    it(`${name}: not a packet more, not one less`, { timeout: 100_000 }, async () => {
      const queues = options.queuePairs ?? 1;
      const [a, b] = [`a${index}`, `b${index}`];
      const lab = await LabProcess.start(path(`lab${index}.yaml`), {
        a: { vhost: { socket: `${a}.sock`, queues } },
        b: { vhost: { socket: `${b}.sock`, queues } },
      });
      const sink = await front(b, { ...options, forward: 'rxonly' });
      const source = await front(a, { ...options, forward: 'txonly', packetBytes: 64 + 200 * index });
      await lab.up('a', 'b');
      await until(async () => ({ done: (await sink.counters()).rxPackets > 10_000, seen: null }));
      await source.command('stop');
      const { txPackets, txBytes } = await source.counters();
      await until(async () => {
        const { a: from, b: to } = await lab.counters();
        if (from === undefined || to === undefined) throw new Error('no counters');
        const { rxPackets, rxBytes } = await sink.counters();
        const seen = { txPackets, txBytes, from, to, rxPackets, rxBytes };
        const done =
          from.rxFrames === txPackets &&
          from.rxBytes === txBytes &&
          delivered(to) === rxPackets &&
          to.device?.details.rx.bytes === rxBytes &&
          rxPackets + (to.txLost.full ?? 0) === txPackets;
        return { done, seen };
      });
      const { rxPackets } = await sink.counters();
      console.log(`${name}: ${txPackets} sent, ${rxPackets} received`);
      await Promise.all([source.stop(), sink.stop()]);
      await lab.stop();
    });
  }

  it('there and back', { timeout: 100_000 }, async () => {
    const lab = await LabProcess.start(path('echo.yaml'), {
      a: { vhost: 'echo-a.sock' },
      b: { vhost: 'echo-b.sock' },
    });
    // What comes has addresses of its own, which are exchanged for the way back.
    const source = await front('echo-a', { forward: 'flowgen' });
    const echo = await front('echo-b', { forward: 'macswap' });
    await lab.up('a', 'b');
    await until(async () => ({ done: (await source.counters()).rxPackets > 10_000, seen: null }));
    await source.command('stop');
    await until(async () => {
      const [sent, returned] = [await source.counters(), await echo.counters()];
      const { a, b } = await lab.counters();
      if (a === undefined || b === undefined) throw new Error('no counters');
      const done =
        a.rxFrames === sent.txPackets &&
        delivered(b) === returned.rxPackets &&
        b.rxFrames === returned.txPackets &&
        returned.rxPackets + (b.txLost.full ?? 0) === sent.txPackets &&
        delivered(a) + (a.txLost.full ?? 0) === returned.txPackets;
      return { done, seen: { sent, returned, a, b } };
    });
    await lab.stop();
  });
});

describe("two of DPDK's front-ends at a link", () => {
  let devices: VhostUserDevice[] = [];
  let link: Link;
  before(async () => {
    devices = ['a', 'b'].map((name) => new VhostUserDevice({ name, path: path(`link-${name}.sock`) }));
    for (const device of devices) await device.open();
    link = new Link(devices[0] as VhostUserDevice, devices[1] as VhostUserDevice, { clock: systemClock });
  });
  after(async () => {
    link?.close();
    for (const device of devices) await device.close();
  });

  it('io: a link holds back, and drops nothing', {
    timeout: 100_000,
  }, async () => {
    const echo = await front('link-b', { forward: 'io' });
    const source = await front('link-a', { forward: 'flowgen' });
    await until(async () => ({ done: (await source.counters()).rxPackets > 10_000, seen: null }));
    await source.command('stop');
    const both = async (): Promise<readonly [TestpmdCounters, TestpmdCounters]> => [
      await source.counters(),
      await echo.counters(),
    ];
    await until(async () => {
      const [sent, returned] = await both();
      const seen = { sent, returned, stats: devices.map((device) => device.stats()) };
      return {
        done: returned.rxPackets === sent.txPackets && devices[1]?.counters.rxFrames === returned.txPackets,
        seen,
      };
    });
    const [sent, returned] = await both();
    console.log(`there: ${sent.txPackets}, back: ${returned.txPackets}`);
    const [a, b] = devices.map((device) => device.counters);
    assert.deepEqual([a?.rxFrames, b?.txFrames], [sent.txPackets, returned.rxPackets]);
    assert.equal(a?.txFrames, b?.rxFrames);
  });
});

describe("DPDK's front-end comes and goes", () => {
  it(`${CYCLES} times killed, and nothing stays behind`, { timeout: 30_000 + CYCLES * 10_000 }, async () => {
    const lab = await LabProcess.start(path('cycles.yaml'), {
      a: { vhost: { socket: 'cycles.sock', queues: 2 } },
    });
    const before = lab.descriptors();
    for (let i = 0; i < CYCLES; i++) {
      const testpmd = await front('cycles', { forward: 'txonly', packetBytes: 1000, queuePairs: 2 });
      await lab.up('a');
      await until(async () => ({ done: ((await lab.counters()).a?.rxFrames ?? 0) > 1000 * i, seen: i }));
      await testpmd.kill();
      await lab.down('a');
      running.length = 0;
    }
    assert.equal(lab.descriptors(), before);
    assert.equal(lab.mappings(), 0);
    await lab.stop();
  });

  it('its server is dialled again by a switch that crashed', { timeout: 100_000 }, async () => {
    const ports = { a: { vhost: { socket: 'served.sock', mode: 'connect' } } };
    let lab = await LabProcess.start(path('served.yaml'), ports);
    const testpmd = await front('served', { listens: true, forward: 'txonly', packetBytes: 500 });
    for (let i = 0; i < 3; i++) {
      await until(async () => {
        // It accepts a new connection when it is asked about its link.
        await testpmd.command('show port info 0');
        const { a } = await lab.counters();
        return { done: (a?.rxFrames ?? 0) > 1000, seen: a };
      });
      await lab.kill();
      lab = await LabProcess.start(path('served.yaml'), ports);
    }
    await lab.stop();
  });
});
