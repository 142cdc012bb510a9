/** The tests of guests of User-Mode Linux: see vm-uml.guest.test.ts. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, describe, it } from 'node:test';
import { createTap } from '../../src/ports/index.ts';
import { Switch, systemClock } from '../../src/switch/index.ts';
import { VhostUserDevice } from '../../src/vhost/index.ts';
import { type RunningTool, startTool } from '../support/tools.ts';
import { loopbackUp, makeTap, socketPaths } from './namespace.ts';
import { Uml, type UmlNic } from './uml.ts';
import { Vm } from './vm.ts';
import { blast, echoes, Host, type Machine, pings, reaches } from './vm-machines.ts';

const path = socketPaths();
const MB = 1_000_000;
const STREAM_BYTES = 20 * MB;
/** An Ethernet frame without tag, for an MTU of 1500. */
const FRAME_BYTES = 1514;
/** Around the head that is copied, the MTU, and what takes several fragments. */
const SIZES = [1, 214, 215, 1472, 1473, 9000, 65_507];
/** Of virtio: completion in order, and a link that the device tells of. */
const IN_ORDER = 35;
const STATUS = 16;

loopbackUp();

interface End {
  readonly machine: Machine;
  readonly address: string;
}

/** Both ways, copied and lent. */
async function streams(a: End, b: End): Promise<void> {
  for (const [from, to] of [
    [a, b],
    [b, a],
  ] as const)
    for (const zerocopy of [false, true]) {
      const { mbitPerSecond, copied } = await blast({
        ...{ from: from.machine, to: to.machine, at: `${to.address}:5000`, bytes: STREAM_BYTES, zerocopy },
      });
      const kind = zerocopy ? `lent, ${copied} copied` : 'copied';
      console.log(`${from.address} to ${to.address}, ${kind}: ${mbitPerSecond} Mbit/s`);
    }
}

function nonZero(counters: object): object {
  return Object.fromEntries(Object.entries(counters).filter(([, count]) => count !== 0));
}

/** Features that the driver has accepted. */
async function accepted(uml: Uml): Promise<readonly number[]> {
  const bits = await uml.run('cat /sys/bus/virtio/devices/virtio0/features');
  return Array.from(bits.trim()).flatMap((bit, i) => (bit === '1' ? [i] : []));
}

describe('zerotx vhost --front-end uml, and a tap', () => {
  const mac = '02:00:00:00:0a:01';
  const guest = '10.4.0.1';
  const ours = '10.4.0.100';
  let tool: RunningTool;
  let uml: Uml;
  let host: Host;
  before(
    async () => {
      makeTap('tap0', [`${ours}/24`]);
      host = await Host.make();
      const flags = ['--front-end', 'uml', '--mac', mac, '--json', '--user', 'root'];
      tool = startTool('dist/cli/zerotx.js', [
        ...['vhost', '--socket', path('tap'), '--uplink', 'tap:tap0'],
        ...flags,
      ]);
      await tool.printed(/"event":"guest"/);
      const begun = performance.now();
      uml = await Uml.boot({ nics: [{ path: path('tap'), mac, address: `${guest}/24` }] });
      console.log(`booted after ${Math.round(performance.now() - begun)} ms`);
      console.log(await uml.run('uname -r'));
    },
    { timeout: 60_000 },
  );
  after(async () => {
    await uml?.stop();
    tool?.child.kill('SIGTERM');
    await tool?.ended;
  });

  it('the driver accepts completion in order and the status of the link', async () => {
    const bits = await accepted(uml);
    assert.ok(bits.includes(IN_ORDER) && bits.includes(STATUS), `${bits}`);
  });

  it('ping', { timeout: 30_000 }, async () => {
    await pings(uml, ours);
    await pings(host, guest);
  });

  it(`${STREAM_BYTES / MB} MB over TCP each way, byte for byte`, { timeout: 100_000 }, async () => {
    await streams({ machine: uml, address: guest }, { machine: host, address: ours });
  });

  it('datagrams of many sizes', { timeout: 100_000 }, async () => {
    await echoes(uml, host, `${ours}:5001`, SIZES);
    await echoes(host, uml, `${guest}:5001`, SIZES);
  });

  it('the guest is killed, and another one comes', { timeout: 60_000 }, async () => {
    const stream = uml.start(`yes | nc ${ours} 9`);
    await uml.stop();
    await assert.rejects(stream.done, /User-Mode Linux ended/);
    uml = await Uml.boot({ nics: [{ path: path('tap'), mac, address: `${guest}/24` }] });
    await reaches(uml, ours);
  });

  it('nothing was refused or lost', { timeout: 30_000 }, async () => {
    await uml.stop();
    tool.child.kill('SIGTERM');
    const { code, out, errors } = await tool.ended;
    assert.equal(code, 0, errors);
    const line = out.split('\n').findLast((each) => each.includes('"event":"counters"')) ?? '';
    const device = JSON.parse(line).ports.tap;
    const { rxErrors, txErrors, rxFrames, rxBytes, txFrames, txBytes } = device;
    const { ringsBroken, signalErrors, chains, ledger } = device.device;
    // A guest that is killed may have been signalled when it was gone already.
    assert.deepEqual([rxErrors, txErrors, ringsBroken, signalErrors > 1], [0, 0, 0, false]);
    assert.deepEqual(nonZero(chains), {});
    assert.equal(ledger.reported, ledger.taken);
    // Segments pass uncut, both ways.
    for (const [frames, bytes] of [
      [rxFrames, rxBytes],
      [txFrames, txBytes],
    ])
      assert.ok(bytes / frames > 3 * FRAME_BYTES, `${bytes} bytes in ${frames} frames`);
  });
});

describe('guests of both kinds behind a switch', () => {
  const net = new Switch({ clock: systemClock });
  const mac = (guest: number): string => `02:00:00:00:0b:0${guest}`;
  const address = (guest: number): string => `10.5.0.${guest}`;
  const socket = (guest: number): string => path(`guest${guest}`);
  /** The first two are of User-Mode Linux, and tell the guest an MTU; the third is QEMU's. */
  const devices = [1, 2, 3].map(
    (guest) =>
      new VhostUserDevice({
        path: socket(guest),
        frontend: guest === 3 ? 'qemu' : 'uml',
        mac: mac(guest),
        mtu: guest === 1 ? 1400 : 1500,
      }),
  ) as [VhostUserDevice, VhostUserDevice, VhostUserDevice];
  for (const device of devices)
    device.on('broken', (ring, reason) => console.log(`${device.name}, ring ${ring}: ${reason}`));
  const tap = createTap({ name: 'tap', device: 'tap1' });
  const nic = (guest: number): UmlNic & { address: string } => ({
    path: socket(guest),
    mac: mac(guest),
    address: `${address(guest)}/24`,
  });
  let first: Uml;
  let second: Uml;
  let third: Vm;
  before(
    async () => {
      makeTap('tap1', [`${address(100)}/24`]);
      for (const port of [...devices, tap]) net.add(port);
      await Promise.all([...devices, tap].map((port) => port.open()));
      const { path: socketPath, ...card } = nic(3);
      [first, second, third] = await Promise.all([
        Uml.boot({ nics: [nic(1)] }),
        Uml.boot({ nics: [nic(2)] }),
        Vm.boot({ nics: [{ ...card, peer: { kind: 'vhost-user', path: socketPath } }] }),
      ]);
    },
    { timeout: 120_000 },
  );
  after(async () => {
    await Promise.all([first?.stop(), second?.stop(), third?.stop()]);
    await Promise.all([...devices, tap].map((port) => port.close()));
  });

  it('the guest has the MTU that the device says', { timeout: 30_000 }, async () => {
    assert.equal(await first.run('cat /sys/class/net/eth0/mtu'), '1400');
    assert.equal(await second.run('cat /sys/class/net/eth0/mtu'), '1500');
  });

  it('all reach each other', { timeout: 60_000 }, async () => {
    const guests = [first, second, third];
    for (const from of guests)
      for (const [to] of guests.entries()) if (guests[to] !== from) await pings(from, address(to + 1));
    await pings(first, address(100));
  });

  it('User-Mode Linux and User-Mode Linux', { timeout: 100_000 }, async () => {
    const ends = [first, second].map((machine, i) => ({ machine, address: address(i + 1) }));
    await streams(ends[0] as End, ends[1] as End);
  });

  it('User-Mode Linux and QEMU', { timeout: 150_000 }, async () => {
    await streams({ machine: second, address: address(2) }, { machine: third, address: address(3) });
    await echoes(second, third, `${address(3)}:5001`, SIZES);
    await echoes(third, second, `${address(2)}:5001`, SIZES);
  });

  it('a cable that is pulled is seen by the guest', { timeout: 60_000 }, async () => {
    const carrier = (expected: number): Promise<string> =>
      first.run(`until [ $(cat /sys/class/net/eth0/carrier) = ${expected} ]; do sleep 0.05; done`);
    const [device] = devices;
    device.setLink(false);
    await carrier(0);
    assert.equal(device.isUp, false);
    device.setLink(true);
    await carrier(1);
    await reaches(first, address(2));
  });

  it('the driver is unloaded and loaded again, under traffic', { timeout: 60_000 }, async () => {
    const [device] = devices;
    const card = `ip address add ${address(1)}/24 dev eth0; ip link set eth0 up`;
    const ping = `ping -q -w 1 -i 0.001 -s 1000 ${address(1)}`;
    const senders = [second, third];
    // It gives up when a queue of its own guest is full.
    const traffic = senders.map((from) => from.start(`until [ -e /tmp/enough ]; do ${ping}; done; true`, 40));
    for (let i = 0; i < 3; i++) {
      await first.run('until [ $(cat /sys/class/net/eth0/statistics/rx_packets) -gt 100 ]; do :; done');
      await first.run('rmmod virtio_net');
      assert.equal(device.isUp, false);
      await first.run(`insmod /modules/virtio_net.ko; ${card}`);
      await reaches(first, address(2));
    }
    await Promise.all(senders.map((from) => from.run('touch /tmp/enough')));
    await Promise.all(traffic.map((job) => job.done));
  });

  it('a guest that reboots comes back', { timeout: 60_000 }, async () => {
    const [device] = devices;
    const { connections } = device.stats();
    await first.reboot();
    assert.equal(device.stats().connections, connections + 1);
    await reaches(first, address(2));
  });

  it('a guest whose device is restarted has lost its card, and has it again when it reboots', {
    timeout: 60_000,
  }, async () => {
    const [device] = devices;
    await device.close();
    await first.run('while [ -e /sys/class/net/eth0 ]; do sleep 0.05; done');
    await device.open();
    const up = once(device, 'link');
    await first.reboot();
    await up;
    await reaches(first, address(3));
  });

  it('a guest that is killed under traffic harms nobody', { timeout: 60_000 }, async () => {
    const receiver = second.start(`tcp-blast receive at=${address(2)}:5002`, 30);
    await receiver.line('listening');
    const sender = first.start(`tcp-blast send to=${address(2)}:5002 bytes=2000000000`, 30);
    const counter = '/sys/class/net/eth0/statistics/tx_bytes';
    await first.run(`until [ $(cat ${counter}) -gt ${STREAM_BYTES} ]; do :; done`);
    await first.stop();
    await assert.rejects(sender.done, /User-Mode Linux ended/);
    await reaches(second, address(3));
    await second.run('killall tcp-blast');
    first = await Uml.boot({ nics: [nic(1)] });
    await reaches(first, address(2));
  });

  it('nothing was refused', () => {
    for (const device of devices) {
      const { failures, rxErrors, txErrors, lentNow, details } = device.stats();
      assert.deepEqual([failures, rxErrors, txErrors, lentNow, details.ringsBroken], [0, 0, 0, 0, 0]);
      assert.deepEqual(nonZero(details.chains), {});
    }
  });
});
