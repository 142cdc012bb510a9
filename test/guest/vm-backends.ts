/** The tests of the programs that vhost-user is compared with: see vm-backends.guest.test.ts. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { after, before, describe, it } from 'node:test';
import { type Dpdk, dpdk } from '../../bench/baselines/dpdk.ts';
import { DpdkVhost } from '../../bench/baselines/dpdk-vhost.ts';
import { Testpmd } from '../../bench/baselines/testpmd.ts';
import { loopbackUp, socketPaths } from './namespace.ts';
import { PASST, Passt, passtPackage } from './passt.ts';
import { Vm } from './vm.ts';
import { figures, guestProgram } from './vm-programs.ts';

const MIB = 2 ** 20;
const path = socketPaths();
const MAC = '52:54:00:01:00:01';

loopbackUp();

describe('passt', () => {
  let passt: Passt;
  let vm: Vm;
  before(
    async () => {
      passt = await Passt.start(await passtPackage(), { path: path('passt'), tcpPorts: [5001] });
      vm = await Vm.boot({
        nics: [{ peer: { kind: 'vhost-user', path: path('passt') }, mac: MAC, address: PASST.guest }],
      });
    },
    { timeout: 120_000 },
  );
  after(async () => {
    await vm?.stop();
    await passt?.stop();
  });

  for (const zerocopy of [false, true]) {
    it(`takes TCP from a guest, ${zerocopy ? 'lent' : 'copied'}`, { timeout: 60_000 }, async () => {
      const receiver = await blast('receive', 'at=127.0.0.1:5000');
      const flags = `bytes=${20 * MIB} zerocopy=${Number(zerocopy)}`;
      const sent = await vm.run(`tcp-blast send to=${PASST.host}:5000 ${flags}`, 50);
      console.log(`through passt: ${sent}`);
      const { bytes, wrong } = figures(await receiver.last());
      assert.deepEqual([bytes, wrong], [`${20 * MIB}`, '-1']);
    });
  }

  it('brings TCP to a guest', { timeout: 60_000 }, async () => {
    const receiver = vm.start('tcp-blast receive at=169.254.2.1:5001', 50);
    await receiver.line('listening');
    await (await blast('send', 'to=127.0.0.1:5001', `bytes=${20 * MIB}`)).last();
    const { bytes, wrong } = figures(await receiver.done);
    assert.deepEqual([bytes, wrong], [`${20 * MIB}`, '-1']);
  });
});

describe('DPDK', () => {
  let found: Dpdk;
  before(async () => {
    found = await dpdk();
    console.log(`DPDK ${found.version}`);
  });

  it("its front-end's packets arrive at its back-end", { timeout: 60_000 }, async () => {
    const back = await Testpmd.start(found, {
      role: 'back-end',
      path: path('dpdk'),
      core: 0,
      forward: 'rxonly',
    });
    const front = await Testpmd.start(found, {
      role: 'front-end',
      path: path('dpdk'),
      core: 1,
      forward: 'txonly',
      packetBytes: 1500,
    });
    await front.command('stop');
    const { txPackets, txBytes } = await front.counters();
    const { rxPackets, rxBytes } = await settled(back, txPackets);
    await front.stop();
    await back.stop();
    assert.ok(txPackets > 0);
    assert.deepEqual([rxPackets, rxBytes], [txPackets, txBytes]);
  });

  it('its back-end dials a front-end that listens', { timeout: 60_000 }, async () => {
    // The front-end waits for it before it has a prompt.
    const [front, back] = await Promise.all([
      Testpmd.start(found, {
        ...{ role: 'front-end', path: path('dials'), listens: true, core: 1, forward: 'rxonly' },
        mac: MAC,
      }),
      Testpmd.start(found, {
        ...{ role: 'back-end', path: path('dials'), listens: false, core: 0, forward: 'txonly' },
        packetBytes: 64,
      }),
    ]);
    await back.command('stop');
    const { txPackets } = await back.counters();
    const { rxPackets } = await settled(front, txPackets);
    await Promise.all([front.stop(), back.stop()]);
    assert.ok(txPackets > 0);
    assert.equal(rxPackets, txPackets);
  });

  it('its library takes every packet, and looks at every byte', { timeout: 60_000 }, async () => {
    const sink = await DpdkVhost.start(found, { path: path('vhost'), core: 0 });
    const front = await Testpmd.start(found, {
      role: 'front-end',
      path: path('vhost'),
      core: 1,
      forward: 'txonly',
      packetBytes: 1500,
      queueSize: 1024,
    });
    await sink.connected();
    const slices = [await sink.slice(100)];
    await front.command('stop');
    for (let i = 0; i < 100 && slices.at(-1)?.packets !== 0; i++) slices.push(await sink.slice(10));
    const { txPackets } = await front.counters();
    await front.stop();
    await sink.stop();
    const packets = slices.reduce((sum, slice) => sum + slice.packets, 0);
    const bytes = slices.reduce((sum, slice) => sum + slice.bytes, 0);
    assert.ok(txPackets > 0);
    assert.deepEqual([packets, bytes], [txPackets, txPackets * 1500]);
    assert.notEqual(slices[0]?.sum, 0);
  });
});

describe("DPDK's back-end and a guest", () => {
  /** It answers to ARP and pings, for every address. */
  const echo = (name: string, listens: boolean): Promise<Testpmd> =>
    dpdk().then((found) =>
      Testpmd.start(found, {
        ...{ role: 'back-end', path: path(name), listens, core: 0, forward: 'icmpecho', queuePairs: 2 },
      }),
    );
  /** The first ones may be lost, as there is no link for a moment. */
  const pings = async (to: string, back: Testpmd): Promise<void> => {
    const first = `for i in $(seq 30); do ping -c 1 -W 1 ${to} >/dev/null && break; done`;
    const state = 'grep virtio /proc/interrupts; ip -s link; dmesg | tail -n 5; exit 1';
    try {
      await vm.run(`${first}; ping -c 3 ${to} || { ${state}; }`, 60);
    } catch (error) {
      console.log('testpmd:', await back.counters(), back.output);
      throw error;
    }
  };
  let vm: Vm;
  let dialled: Testpmd;
  let dials: Testpmd;
  before(
    async () => {
      dialled = await echo('dialled', true);
      // QEMU waits for a back-end that dials as for one that listens.
      const starting = Vm.start({
        nics: [
          {
            peer: { kind: 'vhost-user', path: path('dialled'), reconnectSeconds: 1 },
            ...{ mac: MAC, address: '10.1.0.1/24', queuePairs: 2 },
          },
          {
            peer: { kind: 'vhost-user', path: path('qemu'), server: true },
            ...{ mac: '52:54:00:01:01:01', address: '10.1.1.1/24', queuePairs: 2 },
          },
        ],
        processors: 2,
      });
      dials = await echo('qemu', false);
      vm = await starting;
      await vm.booted();
    },
    { timeout: 120_000 },
  );
  after(async () => {
    await vm?.stop();
    await Promise.all([dialled?.stop(), dials?.stop()]);
  });

  it('a guest has several queue pairs', { timeout: 30_000 }, async () => {
    const channels = await vm.run('ls -d /sys/class/net/eth0/queues/tx-* | wc -l');
    assert.equal(channels, '2');
  });

  it('QEMU that dialled dials again', { timeout: 100_000 }, async () => {
    await pings('10.1.0.2', dialled);
    await dialled.kill();
    dialled = await echo('dialled', true);
    await pings('10.1.0.2', dialled);
  });

  it('QEMU that listens is dialled again', { timeout: 100_000 }, async () => {
    await pings('10.1.1.2', dials);
    await dials.kill();
    dials = await echo('qemu', false);
    await pings('10.1.1.2', dials);
  });
});

/** tcp-blast on this machine; resolves when it listens or has begun. */
async function blast(...args: readonly string[]): Promise<{ last(): Promise<string> }> {
  const child: ChildProcess = spawn(await guestProgram('tcp-blast'), args, { stdio: ['ignore', 'pipe', 2] });
  const printed: string[] = [];
  const closed = once(child, 'close');
  if (child.stdout === null) throw new Error('tcp-blast has no output');
  const lines = createInterface(child.stdout).on('line', (line) => printed.push(line));
  if (args[0] === 'receive') await once(lines, 'line');
  return {
    last: async () => {
      await closed;
      return printed.at(-1) ?? '';
    },
  };
}

/** What it has counted when it has taken what was sent, or has had time for it: another program may have its processor. */
async function settled(testpmd: Testpmd, packets: number): Promise<{ rxPackets: number; rxBytes: number }> {
  let counters = await testpmd.counters();
  for (let i = 0; i < 5000 && counters.rxPackets < packets; i++) counters = await testpmd.counters();
  return counters;
}
