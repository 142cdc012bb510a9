/** The tests of DPDK's front-end: see dpdk-frontend.guest.test.ts. */
import assert from 'node:assert/strict';
import { after, afterEach, before, describe, it } from 'node:test';
import { type Dpdk, dpdk } from '../../bench/baselines/dpdk.ts';
import { Testpmd, type TestpmdOptions } from '../../bench/baselines/testpmd.ts';
import { Link, systemClock } from '../../src/switch/index.ts';
import { VhostUserDevice } from '../../src/vhost/index.ts';
import { scaled } from '../support/counts.ts';
import { type LabCounters, LabProcess } from './lab-process.ts';
import { loopbackUp, socketPaths } from './namespace.ts';

const path = socketPaths();
const PACKETS = scaled(50_000, 3_000_000);
const CYCLES = scaled(10, 50);
const AGREE_MS = scaled(60_000, 300_000);
const timeout = scaled(150_000, 700_000);
const MACS = ['02:00:00:00:01:01', '02:00:00:00:01:02'] as const;

loopbackUp();

let found: Dpdk;
const running: Testpmd[] = [];
const labs: LabProcess[] = [];
before(async () => {
  found = await dpdk();
});
afterEach(async () => {
  await Promise.all(running.splice(0).map((testpmd) => testpmd.stop()));
  await Promise.all(labs.splice(0).map((lab) => lab.stop()));
});

async function startLab(name: string, ports: Readonly<Record<string, object>>): Promise<LabProcess> {
  const lab = await LabProcess.start(path(name), ports);
  labs.push(lab);
  return lab;
}

async function front(name: string, options: Partial<TestpmdOptions>): Promise<Testpmd> {
  const testpmd = await Testpmd.start(found, {
    ...{ role: 'front-end', path: path(`${name}.sock`), core: running.length % 2, forward: 'rxonly' },
    mac: MACS[running.length % 2] as string,
    ...options,
  });
  running.push(testpmd);
  return testpmd;
}

/** Pairs of what should be the same in the end, by name. */
type Accounts = Readonly<Record<string, readonly [number, number]>>;

/** Looks again until all agree. */
async function agree(look: () => Promise<Accounts>): Promise<void> {
  const end = performance.now() + AGREE_MS;
  for (;;) {
    const accounts = await look();
    const wrong = Object.entries(accounts).filter(([, [one, other]]) => one !== other);
    if (wrong.length === 0) return;
    if (performance.now() > end) assert.fail(`they never agreed: ${JSON.stringify(accounts)}`);
  }
}

/** Looks again until it is so. */
async function until(what: string, look: () => Promise<boolean>): Promise<void> {
  const end = performance.now() + AGREE_MS;
  while (!(await look())) if (performance.now() > end) assert.fail(`never ${what}`);
}

const hasReceived = (testpmd: Testpmd): Promise<void> =>
  until('received', async () => (await testpmd.counters()).rxPackets > PACKETS);

/** Sends no more, and takes what there still is. */
async function drain(testpmd: Testpmd): Promise<void> {
  for (const line of ['stop', 'set fwd rxonly', 'start']) await testpmd.command(line);
}

async function countersOf(lab: LabProcess): Promise<{ readonly a: LabCounters; readonly b: LabCounters }> {
  const { a, b } = await lab.counters();
  if (a === undefined || b === undefined) throw new Error('there are no two ports');
  return { a, b };
}

/** Frames for a port of a switch: those it was given, and those that it had no room for. */
function meant({ device, txLost }: LabCounters): number {
  return (device?.details.rx.frames ?? 0) + (txLost.full ?? 0);
}

describe("DPDK's front-end at a switch", () => {
  const variants: readonly (readonly [string, Partial<TestpmdOptions>])[] = [
    ['as it is', {}],
    ['without mergeable buffers', { parameters: ['mrg_rxbuf=0'] }],
    ['without order', { parameters: ['in_order=0'] }],
    ['without either', { parameters: ['mrg_rxbuf=0', 'in_order=0'] }],
    ['with rings of 1024', { queueSize: 1024 }],
    ['with two queue pairs', { queuePairs: 2 }],
  ];
  for (const [index, [name, options]] of variants.entries()) {
    it(`${name}: not a packet more, not one less`, { timeout }, async () => {
      const queues = options.queuePairs ?? 1;
      const [a, b] = [`a${index}`, `b${index}`];
      const lab = await startLab(`lab${index}.yaml`, {
        a: { vhost: { socket: `${a}.sock`, queues } },
        b: { vhost: { socket: `${b}.sock`, queues } },
      });
      const sink = await front(b, { ...options, forward: 'rxonly' });
      const source = await front(a, { ...options, forward: 'txonly', packetBytes: 64 + 200 * index });
      await lab.up('a', 'b');
      await hasReceived(sink);
      await source.command('stop');
      await agree(async () => {
        const [sent, got] = [await source.counters(), await sink.counters()];
        const counters = await countersOf(lab);
        return {
          sent: [sent.txPackets, counters.a.rxFrames],
          'bytes sent': [sent.txBytes, counters.a.rxBytes],
          // Before the other one was there, some had nowhere to go.
          meant: [meant(counters.b) + (counters.a.rxLost.alone ?? 0), sent.txPackets],
          received: [got.rxPackets, counters.b.device?.details.rx.frames ?? -1],
          'bytes received': [got.rxBytes, counters.b.device?.details.rx.bytes ?? -1],
        };
      });
      const [{ txPackets }, { rxPackets }] = [await source.counters(), await sink.counters()];
      console.log(`${name}: ${txPackets} sent, ${rxPackets} received`);
    });
  }

  it('there and back', { timeout }, async () => {
    const lab = await startLab('echo.yaml', {
      a: { vhost: 'echo-a.sock' },
      b: { vhost: 'echo-b.sock' },
    });
    // What comes has addresses of its own, which are exchanged for the way back.
    const source = await front('echo-a', { forward: 'flowgen' });
    const echo = await front('echo-b', { forward: 'macswap' });
    await lab.up('a', 'b');
    await hasReceived(source);
    await drain(source);
    await agree(async () => {
      const [sent, returned] = [await source.counters(), await echo.counters()];
      const { a, b } = await countersOf(lab);
      return {
        sent: [sent.txPackets, a.rxFrames],
        meant: [meant(b) + (a.rxLost.alone ?? 0), a.rxFrames],
        there: [returned.rxPackets, b.device?.details.rx.frames ?? -1],
        returned: [returned.txPackets, b.rxFrames],
        'meant for the sender': [meant(a), b.rxFrames],
        back: [sent.rxPackets, a.device?.details.rx.frames ?? -1],
      };
    });
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

  it('io: a link holds back, and drops nothing', { timeout }, async () => {
    const echo = await front('link-b', { forward: 'io' });
    const source = await front('link-a', { forward: 'flowgen' });
    await hasReceived(source);
    await drain(source);
    await agree(async () => {
      const [sent, returned] = [await source.counters(), await echo.counters()];
      const [a, b] = devices.map(({ counters }) => counters);
      return {
        sent: [sent.txPackets, a?.rxFrames ?? -1],
        passed: [a?.rxFrames ?? -1, b?.txFrames ?? -1],
        there: [b?.txFrames ?? -1, returned.rxPackets],
        returned: [returned.txPackets, b?.rxFrames ?? -1],
        'passed back': [b?.rxFrames ?? -1, a?.txFrames ?? -1],
        back: [a?.txFrames ?? -1, sent.rxPackets],
      };
    });
    const { txPackets, rxPackets } = await source.counters();
    console.log(`there: ${txPackets}, back: ${rxPackets}`);
  });
});

describe("DPDK's front-end comes and goes", () => {
  it(`${CYCLES} times killed, and nothing stays behind`, { timeout: 30_000 + CYCLES * 10_000 }, async () => {
    const lab = await startLab('cycles.yaml', {
      a: { vhost: { socket: 'cycles.sock', queues: 2 } },
    });
    const before = lab.descriptors();
    for (let i = 0; i < CYCLES; i++) {
      const testpmd = await front('cycles', { forward: 'txonly', packetBytes: 1000, queuePairs: 2 });
      await lab.up('a');
      await until('sending', async () => ((await lab.counters()).a?.rxFrames ?? 0) > 1000 * i);
      await testpmd.kill();
      await lab.down('a');
      running.length = 0;
    }
    // It tells of the end before it has let go of everything.
    await lab.counters();
    assert.equal(lab.descriptors(), before);
    assert.equal(lab.mappings(), 0);
  });

  it('its server is dialled again by a switch that crashed', { timeout }, async () => {
    const ports = { a: { vhost: { socket: 'served.sock', mode: 'connect' } } };
    let lab = await startLab('served.yaml', ports);
    const testpmd = await front('served', { listens: true, forward: 'txonly', packetBytes: 500 });
    for (let i = 0; i < 3; i++) {
      await until('sending', async () => {
        // It accepts a new connection when it is asked about its link.
        await testpmd.command('show port info 0');
        return ((await lab.counters()).a?.rxFrames ?? 0) > 1000;
      });
      await lab.kill();
      lab = await startLab('served.yaml', ports);
    }
  });
});
