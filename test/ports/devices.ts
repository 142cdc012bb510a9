/**
 * Ports on devices of a kernel: taps, macvtaps and tunnels between two network namespaces, with TCP and UDP of that kernel at
 * both ends, and every byte compared.
 *
 *   us      10.x.0.1 on a tap, whose other end is a TapPort
 *   them    10.x.0.2 on whatever is tested, in a namespace of their own
 */
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, before, describe, it } from 'node:test';
import { OFFLOAD_ALL, type Port } from '../../src/core/port.ts';
import { MacvtapPort } from '../../src/ports/macvtap.ts';
import { TapPort } from '../../src/ports/tap.ts';
import { VxlanPort } from '../../src/ports/vxlan.ts';
import { writeU16, writeU32 } from '../../src/wire/bytes.ts';
import { FrameSink, frame } from '../support/frames.ts';
import { all } from '../support/guest-memory.ts';
import { echoUdp, exchangeTcp, internetChecksum, labPattern } from '../support/lab-client.ts';
import { Netns, run } from '../support/netns.ts';
import { atEnd, closePorts, guest, opened, settled } from '../support/ports.ts';

const PEER = new URL('./children/lab-peer.js', import.meta.url);
const MIB = 1 << 20;

let them: Netns;
let nextPort = 7000;

/** Frames go from each to the other. */
function joinPorts(a: Port, b: Port): void {
  const which = all(1024);
  a.receiver = (table) => b.send(table, which, 0, table.count);
  b.receiver = (table) => a.send(table, which, 0, table.count);
  a.onWritable = () => b.resume();
  b.onWritable = () => a.resume();
}

async function tap(device: string, options: object = {}): Promise<TapPort> {
  return opened(new TapPort({ name: device, device, ...options }));
}

/** A UDP datagram without a checksum, in IPv4, in Ethernet. */
function udpFrame(
  from: string,
  to: string,
  port: number,
  payload: Uint8Array,
  macs: readonly number[],
): Uint8Array {
  const out = new Uint8Array(14 + 28 + payload.length);
  out.set(macs);
  out.set([0x08, 0x00, 0x45, 0], 12);
  writeU16(out, 16, 28 + payload.length);
  out.set([64, 17], 22);
  out.set(from.split('.').map(Number), 26);
  out.set(to.split('.').map(Number), 30);
  writeU16(out, 24, internetChecksum(out.subarray(14, 34)));
  writeU16(out, 34, port);
  writeU16(out, 36, port);
  writeU16(out, 38, 8 + payload.length);
  out.set(payload, 42);
  return out;
}

describe('ports on devices', { timeout: 240_000 }, () => {
  before(async () => {
    run('ip link set lo up', 'mount -t sysfs sysfs /sys');
    them = await Netns.make();
  });

  after(() => them.end());

  afterEach(closePorts);

  for (const { queues, offloads } of [
    { queues: 1, offloads: 0 },
    { queues: 2, offloads: OFFLOAD_ALL },
  ]) {
    it(`taps carry TCP and UDP: ${queues} queues, ${offloads === 0 ? 'no' : 'all'} offloads`, async () => {
      const ours = await tap('tap%d', { queues, offloads });
      const theirs = await tap('tap%d', { queues, offloads });
      joinPorts(ours, theirs);
      run(`ip link set ${theirs.device} netns ${them.pid}`);
      run(`ip addr add 10.1.0.1/24 dev ${ours.device}`, `ip link set ${ours.device} up`);
      them.run(`ip addr add 10.1.0.2/24 dev ${theirs.device}`, `ip link set ${theirs.device} up`);
      const at = nextPort++;
      await them.start(PEER, '10.1.0.2', String(at));
      await echoUdp('10.1.0.2', at, [0, 1, 100, 1472, 1473, 9000]);
      await Promise.all([1, 2, 3].map(() => exchangeTcp('10.1.0.2', at, 8 * MIB)));
      const frames = ours.counters.rxFrames;
      assert.equal(theirs.counters.txFrames, frames);
      if (offloads !== 0) assert.ok(ours.counters.rxBytes / frames > 3000, 'segments came uncut');
      assert.equal(ours.counters.txErrors + theirs.counters.txErrors, 0);
      assert.equal(ours.counters.rxErrors + theirs.counters.rxErrors, 0);
    });
  }

  it('a tap that is down, or has a header it cannot follow, is no reason to end', async () => {
    const port = await tap('tap%d');
    const source = guest();
    await source.send(port, [frame(60, 1), frame(1514, 2)]);
    assert.equal(port.counters.txErrors, 2, 'the device is down: EIO');
    run(`ip link set ${port.device} up`);
    const lies = [
      // gso_size 0; no such type; a checksum beyond the end; a header longer than the frame.
      [0, 1, 54, 0, 0, 0, 0, 0, 0, 0, 0, 0],
      [0, 0x7f, 54, 0, 1, 0, 0, 0, 0, 0, 0, 0],
      [1, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
      [0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0],
    ].map((bytes) => Uint8Array.from(bytes));
    const frames = [...lies.map((_, i) => frame(100, i)), frame(100, 9)];
    await source.send(port, frames, lies);
    assert.equal(port.counters.txErrors, 2 + lies.length);
    assert.equal(port.counters.txFrames, 1);
    assert.equal(port.isUp, true);
    let changes = 0;
    port.onChange = () => {
      changes += 1;
    };
    run(`ip link del ${port.device}`);
    while (port.isUp) await new Promise((resolve) => setImmediate(resolve));
    assert.equal(changes, 1);
    await source.send(port, [frame(60, 1)]);
    assert.equal(port.counters.txDropped, 1);
  });

  it('a tap cannot be opened twice, nor with queues that it has not', async () => {
    const port = await tap('tap%d');
    await assert.rejects(new TapPort({ name: 'x', device: port.device }).open(), { code: 'EBUSY' });
    await assert.rejects(new TapPort({ name: 'x', device: port.device, queues: 2 }).open(), {
      code: 'EINVAL',
    });
    await assert.rejects(new TapPort({ name: 'x', device: 'lo' }).open(), { code: 'EINVAL' });
    assert.equal(port.isUp, true);
  });

  for (const offloads of [0, OFFLOAD_ALL]) {
    it(`a macvtap carries TCP and UDP: ${offloads === 0 ? 'no' : 'all'} offloads`, async () => {
      const folder = mkdtempSync(join(tmpdir(), 'zerotx-macvtap-'));
      atEnd(() => rmSync(folder, { recursive: true }));
      run(`ip link add m0 type veth peer name m1 netns ${them.pid}`, 'ip link set m0 up');
      atEnd(() => run('ip link del m0'));
      them.run('ip addr add 10.2.0.2/24 dev m1', 'ip link set m1 up');
      run('ip link add link m0 name mv0 type macvtap mode bridge', 'ip link set mv0 up');
      const mac = readFileSync('/sys/class/net/mv0/address', 'utf8').trim();
      const index = readFileSync('/sys/class/net/mv0/ifindex', 'utf8').trim();
      const [major, minor] = readFileSync(`/sys/class/net/mv0/tap${index}/dev`, 'utf8').trim().split(':');
      // The file in /dev belongs to the namespace that the system started in.
      const file = join(folder, 'tap');
      run(`mknod ${file} c ${major} ${minor}`);
      const port = await opened(new MacvtapPort({ name: 'mv', device: file, offloads }));
      const ours = await tap('tap%d', { offloads });
      joinPorts(ours, port);
      run(`ip link set ${ours.device} address ${mac}`);
      run(`ip addr add 10.2.0.1/24 dev ${ours.device}`, `ip link set ${ours.device} up`);
      const at = nextPort++;
      await them.start(PEER, '10.2.0.2', String(at));
      await echoUdp('10.2.0.2', at, [0, 1, 100, 1472, 1473, 9000]);
      await Promise.all([1, 2].map(() => exchangeTcp('10.2.0.2', at, 8 * MIB)));
      assert.equal(port.counters.txErrors, 0);
      assert.equal(port.counters.rxErrors, 0);
      if (offloads !== 0) assert.ok(port.counters.txBytes / port.counters.txFrames > 3000);
    });
  }

  /** A veth with room for the tunnel's headers, and the kernel's own VXLAN at their end of it. */
  function underlay(mtu: number): void {
    run(`ip link add u0 type veth peer name u1 netns ${them.pid}`);
    atEnd(() => run('ip link del u0'));
    run(`ip link set u0 mtu ${mtu + 50}`, 'ip addr add 10.9.0.1/24 dev u0', 'ip link set u0 up');
    them.run(
      `ip link set u1 mtu ${mtu + 50}`,
      // A veth would leave checksums to us that nobody on a real wire sees undone: those inside, too.
      'ethtool -K u1 tx off',
      'ip addr add 10.9.0.2/24 dev u1',
      'ip link set u1 up',
      'ip link add vx address 02:00:00:00:00:88 type vxlan id 42 local 10.9.0.2 remote 10.9.0.1 dstport 4789 dev u1',
      `ip link set vx mtu ${mtu}`,
      'ip addr add 10.3.0.2/24 dev vx',
      'ip link set vx up',
    );
  }

  const remotes = ['10.9.0.2'];

  for (const mtu of [1500, 9000]) {
    it(`a VXLAN carries TCP and UDP to the kernel's own at an MTU of ${mtu}`, async () => {
      underlay(mtu);
      const port = await opened(new VxlanPort({ name: 'vx', vni: 42, local: '10.9.0.1', remotes, mtu }));
      const ours = await tap('tap%d');
      joinPorts(ours, port);
      run(`ip link set ${ours.device} mtu ${mtu}`);
      run(`ip addr add 10.3.0.1/24 dev ${ours.device}`, `ip link set ${ours.device} up`);
      const at = nextPort++;
      await them.start(PEER, '10.3.0.2', String(at));
      await echoUdp('10.3.0.2', at, [0, 1, 100, mtu - 28, mtu, 20_000]);
      await Promise.all([1, 2, 3, 4].map(() => exchangeTcp('10.3.0.2', at, 4 * MIB)));
      assert.equal(port.counters.rxErrors, 0);
      // A frame that is too long for the tunnel's device is dropped here, and not cut.
      const longest = frame(mtu + 14 + 1, 1);
      const { txErrors } = port.counters;
      await guest().send(port, [longest]);
      assert.equal(port.counters.txErrors, txErrors + 1);
    });

    it(`a VXLAN sends runs of frames, and the kernel's own finds them whole: an MTU of ${mtu}`, async () => {
      underlay(mtu);
      const port = await opened(new VxlanPort({ name: 'vx', vni: 42, local: '10.9.0.1', remotes, mtu }));
      const sink = new FrameSink(port);
      sink.wants = (bytes) => bytes[12] === 0x08 && bytes[13] === 0x00 && bytes[23] === 17;
      them.run('ip neigh replace 10.3.0.1 lladdr 02:00:00:00:00:77 dev vx nud permanent');
      const at = nextPort++;
      await them.start(PEER, '10.3.0.2', String(at));
      const macs = [2, 0, 0, 0, 0, 0x88, 2, 0, 0, 0, 0, 0x77];
      const source = guest({ memoryBytes: 8 * MIB });
      // Seven of a kind, a shorter one, and so on: in bursts that the peer's buffer has room for.
      for (let burst = 0; burst < 20; burst++) {
        const payloads = Array.from({ length: 16 }, (_, i) => labPattern(i % 8 === 7 ? 100 + i : mtu - 28));
        for (const [i, payload] of payloads.entries()) writeU32(payload, 0, 16 * burst + i);
        const frames = payloads.map((payload) => udpFrame('10.3.0.1', '10.3.0.2', at, payload, macs));
        await source.send(port, frames);
        await sink.until(16 * (burst + 1));
        payloads.forEach((payload, i) => {
          assert.equal(
            Buffer.compare(sink.frames[16 * burst + i]!.subarray(42), payload),
            0,
            `${burst}, ${i}`,
          );
        });
      }
      assert.equal(port.counters.txErrors + port.counters.rxErrors, 0);
    });

    it(`a VXLAN lends frames of a guest, and the kernel's own finds them whole: an MTU of ${mtu}`, async () => {
      underlay(mtu);
      const options = { name: 'vx', vni: 42, local: '10.9.0.1', remotes, mtu };
      const port = await opened(new VxlanPort({ ...options, zerocopy: 'force' }));
      const sink = new FrameSink(port);
      // Neighbours and multicast groups are also talked about.
      sink.wants = (bytes) => bytes[12] === 0x08 && bytes[13] === 0x00 && bytes[23] === 17;
      them.run('ip neigh replace 10.3.0.1 lladdr 02:00:00:00:00:77 dev vx nud permanent');
      const at = nextPort++;
      await them.start(PEER, '10.3.0.2', String(at));
      const macs = [2, 0, 0, 0, 0, 0x88, 2, 0, 0, 0, 0, 0x77];
      const source = guest({ memoryBytes: 8 * MIB });
      const payload = labPattern(mtu - 28);
      for (let i = 0; i < 200; i++) {
        writeU32(payload, 0, i);
        await source.send(port, [udpFrame('10.3.0.1', '10.3.0.2', at, payload, macs)]);
        await sink.until(i + 1);
        assert.equal(Buffer.compare(sink.frames[i]!.subarray(42), payload), 0, `datagram ${i}`);
      }
      await settled(source);
      assert.equal(source.loans.length, 200);
      assert.equal(port.counters.txLentBytes, port.counters.txBytes + 200 * 8);
      assert.equal(port.zerocopy.unexpectedCompletions, 0);
    });
  }

  it('what a VXLAN lends is not copied; and frames of an MTU of 1500 it does not lend by choice', async () => {
    run('ip link add i0 type ifb', 'ip addr add 10.98.0.1/24 dev i0', 'ip link set i0 mtu 9500 up');
    atEnd(() => run('ip link del i0'));
    // Its driver drops what it is given, and confirms it.
    run('ip neigh add 10.98.0.2 lladdr 02:00:00:00:00:02 dev i0');
    const source = guest({ memoryBytes: 8 * MIB });
    for (const [zerocopy, bytes, port] of [
      ['auto', 1514, 4790],
      ['force', 9014, 4791],
    ] as const) {
      const options = { name: zerocopy, vni: 1, remotes: ['10.98.0.2'], mtu: 9000, zerocopy, port };
      const tunnel = await opened(new VxlanPort(options));
      const table = source.table(Array.from({ length: 64 }, (_, i) => frame(bytes, i)));
      for (let i = 0; i < 100; i++) {
        for (let at = 0; at < 64; ) {
          at = tunnel.send(table, all(64), at, 64);
          await new Promise((resolve) => setImmediate(resolve));
        }
      }
      await settled(source);
      const { txFrames, txLentBytes, txBytes, txKernelCopiedBytes, txErrors } = tunnel.counters;
      assert.deepEqual(
        { txFrames, txKernelCopiedBytes, txErrors },
        { txFrames: 6400, txKernelCopiedBytes: 0, txErrors: 0 },
      );
      assert.ok(
        zerocopy === 'auto' ? txLentBytes === 0 : txLentBytes > txBytes / 2,
        `${txLentBytes} were lent`,
      );
    }
  });
});
