/** The tests of the guests by themselves: see vm-peers.guest.test.ts. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { after, before, describe, it } from 'node:test';
import { promisify } from 'node:util';
import { crc32 } from 'node:zlib';
import { joinBridge, makeBridge, makeTap, socketPaths } from './namespace.ts';
import { Vm } from './vm.ts';
import type { Nic, NicPeer } from './vm-nics.ts';
import { blastPattern, figures, guestProgram } from './vm-programs.ts';

const run = promisify(execFile);
const MIB = 2 ** 20;
const socket = socketPaths();

/** Each kind of wire is a network of its own: 10.1.<index>.1 and .2. */
const wires: readonly { readonly name: string; readonly ends: readonly [NicPeer, NicPeer] }[] = [
  {
    name: 'a stream over a Unix socket',
    ends: [
      { kind: 'stream', listen: socket('stream') },
      { kind: 'stream', connect: socket('stream') },
    ],
  },
  {
    name: 'datagrams over the loopback',
    ends: [
      { kind: 'dgram', local: '127.0.0.1:7001', remote: '127.0.0.1:7002' },
      { kind: 'dgram', local: '127.0.0.1:7002', remote: '127.0.0.1:7001' },
    ],
  },
  {
    name: 'taps in a bridge',
    ends: [
      { kind: 'tap', name: 'tap1' },
      { kind: 'tap', name: 'tap2' },
    ],
  },
];

const address = (wire: number, guest: number): string => `10.1.${wire}.${guest + 1}`;
const mac = (wire: number, guest: number): string => `52:54:00:01:0${wire}:0${guest + 1}`;

function nics(guest: 0 | 1): Nic[] {
  return wires.map(({ ends }, wire) => ({
    peer: ends[guest],
    mac: mac(wire, guest),
    address: `${address(wire, guest)}/24`,
  }));
}

describe('guests without us', () => {
  let left: Vm;
  let right: Vm;
  before(
    async () => {
      makeBridge('bridge0', ['10.1.2.100/24']);
      for (const name of ['tap1', 'tap2']) {
        makeTap(name, []);
        joinBridge('bridge0', name);
      }
      const begun = performance.now();
      // The one that listens first: QEMU dials once.
      left = await Vm.start({ nics: nics(0), hotMemoryMiB: 512 });
      right = await Vm.start({ nics: nics(1), processors: 2 });
      await Promise.all([left.booted(), right.booted()]);
      console.log(`both have booted after ${Math.round(performance.now() - begun)} ms`);
      console.log(await left.run('uname -r'));
    },
    { timeout: 180_000 },
  );
  after(async () => {
    await Promise.all([left?.stop(), right?.stop()]);
  });

  for (const [wire, { name }] of wires.entries()) {
    it(`${name}: a ping`, { timeout: 30_000 }, async () => {
      const output = await left.run(`ping -c 3 -i 0.1 ${address(wire, 1)}`);
      assert.match(output, /3 packets received, 0% packet loss/);
    });

    for (const zerocopy of [false, true]) {
      const kind = zerocopy ? 'lent' : 'copied';
      it(`${name}: 20 MB over TCP, ${kind}, byte for byte`, { timeout: 60_000 }, async () => {
        const bytes = 20_000_000;
        const to = `${address(wire, 1)}:5000`;
        const receiver = right.start(`tcp-blast receive at=${to}`, 50);
        await receiver.line('listening');
        const flags = `bytes=${bytes} write=65536 zerocopy=${Number(zerocopy)}`;
        const sent = await left.run(`tcp-blast send to=${to} ${flags}`, 50);
        const received = await receiver.done;
        console.log(`${name}: ${sent}; ${received.split('\n')[1]}`);
        const expected = crc32(blastPattern(bytes)).toString(16).padStart(8, '0');
        const { wrong, crc } = figures(received);
        assert.deepEqual(
          { wrong, crc, bytes: figures(received).bytes },
          { wrong: '-1', crc: expected, bytes: `${bytes}` },
        );
        const { calls, completions } = figures(sent);
        assert.equal(completions, zerocopy ? calls : '0');
      });
    }

    it(`${name}: datagrams there and back`, { timeout: 30_000 }, async () => {
      const to = `${address(wire, 1)}:5001`;
      const server = right.start(`udp-echo serve at=${to}`);
      await server.line('listening');
      // Segmentation needs a checksum that is left to the card, and that needs a vnet header: of these, only a tap's.
      const segmented = name.startsWith('taps') ? ['size=14000 segment=1400'] : [];
      for (const flags of ['size=1', 'size=1472 count=20', 'size=9000 count=5', ...segmented]) {
        const asked = figures(await left.run(`udp-echo ask to=${to} ${flags}`));
        assert.deepEqual([asked.received, asked.wrong], [asked.sent, '0'], flags);
      }
    });
  }

  it('frames of any kind', { timeout: 30_000 }, async () => {
    const listener = right.start('frame-send listen dev=eth0 type=0x88b5 count=3');
    await listener.line('listening');
    const header = `${mac(0, 1).replaceAll(':', '')}${mac(0, 0).replaceAll(':', '')}88b5`;
    const sent = await left.run(`frame-send send dev=eth0 frame=${header} pad=64 count=3 numbered=1`);
    assert.match(sent, /^sent 3 refused=0/);
    // A header that promises a segmented packet where there is none is refused by the guest's own kernel.
    const broken = `vnet=00010000000000000000 frame=${header} pad=64`;
    assert.match(await left.run(`frame-send send dev=eth0 ${broken}`), /^sent 0 refused=1 errno=22/);
    const lines = (await listener.done).split('\n').slice(1);
    assert.deepEqual(
      lines.map((line) => line.slice(0, 'frame bytes=64 vlan=-1 '.length + header.length + 8)),
      [0, 1, 2].map((i) => `frame bytes=64 vlan=-1 ${header}0000000${i}`),
    );
  });

  it('guests have tunnels and VLANs', { timeout: 30_000 }, async () => {
    for (const [guest, vm] of [left, right].entries()) {
      const remote = address(2, 1 - guest);
      await vm.run(`/sbin/ip link add tunnel0 type vxlan id 7 remote ${remote} dstport 4789 dev eth2`);
      await vm.run('/sbin/ip link add link eth0 name tagged0 type vlan id 5');
      for (const [index, name] of ['tunnel0', 'tagged0'].entries()) {
        await vm.run(`ip address add 10.2.${index}.${guest + 1}/24 dev ${name} && ip link set ${name} up`);
      }
    }
    assert.match(await left.run('ping -c 1 10.2.0.2'), /1 packets received/);
    assert.match(await left.run('ping -c 1 10.2.1.2'), /1 packets received/);
  });

  it("a guest's programs run on this machine, too", { timeout: 60_000 }, async () => {
    const receiver = right.start(`tcp-blast receive at=${address(2, 1)}:5002`, 50);
    await receiver.line('listening');
    const blast = await guestProgram('tcp-blast');
    await run(blast, ['send', `to=${address(2, 1)}:5002`, `bytes=${4 * MIB}`]);
    const { wrong, bytes } = figures(await receiver.done);
    assert.deepEqual([wrong, bytes], ['-1', `${4 * MIB}`]);
  });

  it('memory is plugged in and pulled out', { timeout: 60_000 }, async () => {
    const before = await left.memoryMiB();
    await left.addMemory('dimm0', 256);
    assert.ok((await left.memoryMiB()) >= before + 250);
    await left.removeMemory('dimm0');
    assert.equal(await left.memoryMiB(), before);
  });

  it('a card is plugged in and pulled out', { timeout: 60_000 }, async () => {
    makeTap('tap3', ['10.1.3.100/24']);
    const nic: Nic = {
      peer: { kind: 'tap', name: 'tap3' },
      mac: '52:54:00:01:03:01',
      address: '10.1.3.1/24',
    };
    assert.equal(await left.addNic('extra', nic), 'eth3');
    assert.match(await left.run('ping -c 1 10.1.3.100'), /1 packets received/);
    await left.removeNic('extra');
    assert.equal(await left.run('[ -e /sys/class/net/eth3 ] || echo gone'), 'gone');
  });

  it('a reset guest boots again, with its addresses', { timeout: 120_000 }, async () => {
    const waiting = left.start('sleep 100', 100);
    await left.reset();
    await assert.rejects(waiting.done, /the guest was reset/);
    assert.match(await left.run(`ping -c 1 ${address(2, 1)}`), /1 packets received/);
    assert.deepEqual(await left.qmp.execute('query-status'), {
      running: true,
      singlestep: false,
      status: 'running',
    });
  });

  it('QEMU ends when it is told to', { timeout: 30_000 }, async () => {
    await assert.rejects(left.qmp.execute('no-such-command'), /QMP no-such-command: .*not.*found/);
    const waiting = left.start('sleep 100', 100);
    await left.qmp.execute('quit');
    await assert.rejects(waiting.done, /QEMU ended \(0\)/);
    assert.equal(left.running, false);
  });
});
