/** What two guests send each other through a switch: see vm-switch.guest.test.ts. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { scaled } from '../support/counts.ts';
import { readPackets } from '../support/pcap.ts';
import { Cabling, cabled, type Pair } from './vm-cabling.ts';
import { type Blasted, blast, echoes, pings } from './vm-machines.ts';

const MB = 1_000_000;
const STREAM_BYTES = scaled(100, 1000) * MB;
/** Around the head that is copied, the MTU, and what takes several fragments. */
const SIZES = [1, 22, 213, 214, 215, 1471, 1472, 1473, 9000, 65_507];
/** An Ethernet frame without tag, for an MTU of 1500. */
const FRAME_BYTES = 1514;

type Path = (name: string) => string;

/** `path` is in a folder for sockets. */
export function trafficTests(pair: Pair, path: Path): void {
  plainTests(pair, path);
  bareTests(pair, path);
  jumboTests(pair, path);
  queueTests(pair, path);
}

async function bothWays(
  pair: Pair,
  cabling: Cabling,
  bytes: number,
  zerocopy: boolean,
  six = false,
): Promise<Blasted[]> {
  const results: Blasted[] = [];
  for (const [from, to] of Cabling.ways) {
    const address = six ? `[${cabling.address6(to)}]` : cabling.address(to);
    const result = await blast({
      ...{ from: pair[from], to: pair[to], at: `${address}:5000`, bytes, zerocopy },
    });
    console.log(`${from} to ${to}${zerocopy ? ', lent' : ''}: ${result.mbitPerSecond} Mbit/s`);
    results.push(result);
  }
  return results;
}

/** Bytes of each frame in a capture. */
function frameLengths(file: string): number[] {
  return readPackets(readFileSync(file)).map(({ wireBytes }) => wireBytes);
}

function plainTests(pair: Pair, path: Path): void {
  describe('guests with all offloads', () => {
    const made = cabled(pair, {
      path,
      name: 'plain',
      net: 10,
      left: { port: { capture: { file: path('left.pcap'), snap: '128B' } } },
    });

    it('ping', { timeout: 30_000 }, async () => {
      await pings(pair.left, made.cabling.address('right'));
      await pings(pair.right, made.cabling.address('left'));
    });

    it(`${STREAM_BYTES / MB} MB over TCP each way, byte for byte`, { timeout: 200_000 }, async () => {
      await bothWays(pair, made.cabling, STREAM_BYTES, false);
    });

    it('the same by MSG_ZEROCOPY: nothing in a guest is copied', { timeout: 200_000 }, async () => {
      for (const { copied } of await bothWays(pair, made.cabling, STREAM_BYTES, true))
        assert.equal(copied, 0);
    });

    it('TCP over IPv6', { timeout: 60_000 }, async () => {
      for (const { copied } of await bothWays(pair, made.cabling, 20 * MB, true, true))
        assert.equal(copied, 0);
    });

    it('datagrams of many sizes', { timeout: 100_000 }, async () => {
      for (const [from, to] of Cabling.ways)
        await echoes(pair[from], pair[to], `${made.cabling.address(to)}:5001`, SIZES);
    });

    it('segments pass uncut', { timeout: 30_000 }, async () => {
      const { left, right } = await made.cabling.lab.counters();
      for (const { rxFrames = 0, rxBytes = 0 } of [left ?? {}, right ?? {}] as {
        rxFrames?: number;
        rxBytes?: number;
      }[])
        assert.ok(rxBytes / rxFrames > 3 * FRAME_BYTES, `${rxBytes} bytes in ${rxFrames} frames`);
      const lengths = frameLengths(path('left.pcap'));
      const long = lengths.filter((bytes) => bytes > FRAME_BYTES);
      console.log(`${long.length} of ${lengths.length} frames are longer than ${FRAME_BYTES} bytes`);
      assert.ok(Math.max(...long) > 60_000);
    });

    it('nothing was refused', { timeout: 30_000 }, async () => {
      const counters = await made.cabling.lab.counters();
      for (const [port, { rxErrors, rxDropped, txErrors, device }] of Object.entries(counters)) {
        const { ringsBroken, chains, ledger } = device?.details ?? {};
        assert.deepEqual(
          { port, rxErrors, rxDropped, txErrors },
          { port, rxErrors: 0, rxDropped: 0, txErrors: 0 },
        );
        assert.deepEqual(
          [ringsBroken, ...Object.values(chains ?? {})].filter((n) => n !== 0),
          [],
        );
        assert.equal(ledger?.reported, ledger?.taken);
      }
    });
  });
}

function bareTests(pair: Pair, path: Path): void {
  describe('a guest without offloads, and one with them', () => {
    const none = { guest_csum: false, guest_tso4: false, guest_tso6: false, csum: false, mrg_rxbuf: false };
    const made = cabled(pair, {
      path,
      name: 'bare',
      net: 11,
      right: { properties: none },
    });

    it('the switch cuts segments and fills in checksums', { timeout: 100_000 }, async () => {
      await bothWays(pair, made.cabling, 20 * MB, true);
      await bothWays(pair, made.cabling, 5 * MB, false, true);
      for (const [from, to] of Cabling.ways)
        await echoes(pair[from], pair[to], `${made.cabling.address(to)}:5001`, SIZES);
      const { left, right } = await made.cabling.lab.counters();
      assert.ok((left?.rxBytes ?? 0) / (left?.rxFrames ?? 1) > FRAME_BYTES);
      assert.ok((right?.txBytes ?? 0) / (right?.txFrames ?? 1) <= FRAME_BYTES);
      const { droppedSize, droppedOffload, droppedHeader } = right?.device?.details.rx ?? {};
      assert.deepEqual([droppedSize, droppedOffload, droppedHeader], [0, 0, 0]);
    });
  });
}

function jumboTests(pair: Pair, path: Path): void {
  describe('jumbo frames', () => {
    const device = { mtu: 9000 };
    const properties = { host_mtu: 9000, host_tso4: false, host_tso6: false };
    const made = cabled(pair, {
      path,
      ...{ name: 'jumbo', net: 12 },
      left: { device, properties, port: { vlan: 10, capture: { file: path('jumbo.pcap'), snap: '64B' } } },
      right: { device, properties, port: { vlan: { trunk: [10, 20] } } },
    });

    it('end to end, to a guest behind a trunk', { timeout: 100_000 }, async () => {
      const { cabling } = made;
      const { right } = pair;
      assert.equal(await pair.left.run(`cat /sys/class/net/${cabling.names.left}/mtu`), '9000');
      // The address moves to where the tag is taken off.
      const { right: name } = cabling.names;
      await right.run(`/sbin/ip link add link ${name} name ten type vlan id 10`);
      await right.run(`/sbin/ip address flush dev ${name}; ip link set ten up`);
      await right.run(`ip address add ${cabling.address('right')}/24 dev ten`);
      for (const [from, to] of Cabling.ways) {
        await pings(pair[from], cabling.address(to));
        await echoes(pair[from], pair[to], `${cabling.address(to)}:5001`, [1472, 8972, 8973, 65_507]);
      }
      await bothWays(pair, cabling, 50 * MB, true);
      const lengths = frameLengths(path('jumbo.pcap'));
      assert.equal(Math.max(...lengths), 9014);
      const full = lengths.filter((bytes) => bytes === 9014).length;
      assert.ok(full > 1000, `${full} frames are full`);
    });
  });
}

function queueTests(pair: Pair, path: Path): void {
  describe('two queue pairs', () => {
    const end = { queuePairs: 2 };
    const made = cabled(pair, {
      path,
      name: 'pairs',
      net: 13,
      left: end,
      right: { ...end, server: true },
    });

    it('share the flows', { timeout: 150_000 }, async () => {
      const { cabling } = made;
      for (const side of ['left', 'right'] as const) {
        const queues = await pair[side].run(`ls /sys/class/net/${cabling.names[side]}/queues`);
        assert.equal(queues.replaceAll('\n', ' '), 'rx-0 rx-1 tx-0 tx-1');
      }
      for (const [from, to] of Cabling.ways) {
        const flows = Array.from({ length: 12 }, (_, i) =>
          blast({
            ...{ from: pair[from], to: pair[to], at: `${cabling.address(to)}:${5010 + i}` },
            ...{ bytes: 5 * MB, zerocopy: i % 2 === 0 },
          }),
        );
        await Promise.all(flows);
      }
      // Which queue a flow takes is by chance; that 24 take the same is not.
      const shown = `[ ! -x /sbin/ethtool ] || /sbin/ethtool -S ${cabling.names.right}`;
      const packets = [...(await pair.right.run(shown)).matchAll(/([rt]x_queue_[01])_packets: (\d+)/g)];
      console.log(packets.map(([, queue, count]) => `${queue}: ${count}`).join(', '));
      for (const [, queue, count] of packets) assert.ok(Number(count) > 50, `${queue}: ${count} packets`);
    });
  });
}
