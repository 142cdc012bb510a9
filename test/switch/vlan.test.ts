import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { FrameTable } from '../../src/core/frames.ts';
import { createHostTable } from '../../src/core/host-table.ts';
import { OFFLOAD_CSUM } from '../../src/core/port.ts';
import { Switch } from '../../src/switch/switch.ts';
import type { VlanOptions } from '../../src/switch/vlan.ts';
import { FakePort } from './fake-port.ts';
import { BROADCAST, completeTcp, frame, hex, mac, tcp } from './packets.ts';
import { VirtualClock } from './virtual-clock.ts';

function join(options: readonly (VlanOptions | undefined)[], offloads = 15) {
  const lan = new Switch({ clock: new VirtualClock() });
  const ports = options.map((vlan, i) => {
    const port = new FakePort(`p${i}`, { offloads });
    lan.add(port, vlan === undefined ? {} : { vlan });
    return port;
  });
  return { lan, ports, counters: (i: number) => lan.stats().ports[`p${i}`]! };
}

const unaware = undefined;
const access5 = { access: 5 };
const access6 = { access: 6 };
const trunk56 = { trunk: [5, 6] };
const trunk6native5 = { trunk: [6], native: 5 };

/** What a broadcast with these tags is when it leaves; null: it does not. */
const matrix: readonly {
  readonly from: VlanOptions | undefined;
  readonly tags: readonly number[];
  readonly to: VlanOptions | undefined;
  readonly out: readonly number[] | null;
}[] = [
  { from: unaware, tags: [], to: unaware, out: [] },
  { from: unaware, tags: [5], to: unaware, out: [5] },
  { from: unaware, tags: [], to: access5, out: null },
  { from: unaware, tags: [5], to: access5, out: null },
  { from: unaware, tags: [5], to: trunk56, out: null },
  { from: unaware, tags: [], to: trunk6native5, out: null },
  { from: access5, tags: [], to: unaware, out: null },
  { from: access5, tags: [], to: access5, out: [] },
  { from: access5, tags: [], to: access6, out: null },
  { from: access5, tags: [], to: trunk56, out: [5] },
  { from: access5, tags: [], to: trunk6native5, out: [] },
  // Tags that a guest makes up.
  { from: access5, tags: [5], to: access5, out: null },
  { from: access5, tags: [6], to: access6, out: null },
  { from: access5, tags: [6], to: trunk56, out: null },
  { from: access5, tags: [5, 6], to: trunk6native5, out: null },
  // A priority is no VLAN.
  { from: access5, tags: [0xe000], to: access5, out: [] },
  { from: access5, tags: [0xe000], to: trunk56, out: [0xe005] },
  { from: access5, tags: [0xe000, 6], to: trunk6native5, out: null },
  { from: trunk56, tags: [5], to: access5, out: [] },
  { from: trunk56, tags: [6], to: access5, out: null },
  { from: trunk56, tags: [7], to: trunk56, out: null },
  { from: trunk56, tags: [], to: access5, out: null },
  { from: trunk56, tags: [0], to: access5, out: null },
  { from: trunk56, tags: [5], to: unaware, out: null },
  { from: trunk56, tags: [5], to: trunk6native5, out: [] },
  { from: trunk56, tags: [6], to: trunk6native5, out: [6] },
  { from: trunk56, tags: [0xb006], to: trunk56, out: [0xb006] },
  // A second tag stays inside, and never comes out as the first.
  { from: trunk56, tags: [6, 9], to: trunk6native5, out: [6, 9] },
  { from: trunk56, tags: [5, 9], to: trunk6native5, out: null },
  { from: trunk56, tags: [5, 9], to: access5, out: null },
  { from: trunk6native5, tags: [], to: access5, out: [] },
  { from: trunk6native5, tags: [0xe000], to: trunk56, out: [0xe005] },
  { from: trunk6native5, tags: [5], to: access5, out: [] },
  { from: trunk6native5, tags: [], to: trunk56, out: [5] },
  { from: trunk6native5, tags: [6], to: access6, out: [] },
];

describe('a VLAN', () => {
  for (const { from, tags, to, out } of matrix) {
    const name = (vlan: VlanOptions | undefined): string => JSON.stringify(vlan) ?? 'unaware';
    it(`lets [${tags}] from ${name(from)} to ${name(to)}: ${out === null ? 'no' : `[${out}]`}`, () => {
      const { ports, counters } = join([from, to]);
      const given = frame(BROADCAST, mac(1), 64 + 4 * tags.length, tags);
      assert.equal(ports[0]!.offer([{ bytes: given }]), 1);
      assert.equal(ports[1]!.sent.length, out === null ? 0 : 1);
      if (out !== null) {
        const { bytes } = ports[1]!.sent[0]!;
        assert.equal(hex(bytes.subarray(12 + 4 * out.length)), hex(given.subarray(12 + 4 * tags.length)));
        for (const [i, tag] of out.entries()) {
          assert.equal(
            hex(bytes.subarray(12 + 4 * i, 16 + 4 * i)),
            `8100${tag.toString(16).padStart(4, '0')}`,
          );
        }
      }
      const { dropped } = counters(0).ingress;
      const gone = dropped.vlan + dropped.alone + counters(1).egress.dropped.vlan;
      assert.equal(gone, out === null ? 1 : 0);
    });
  }

  it('keeps the same address apart in two VLANs', () => {
    const { lan, ports } = join([access5, access6, trunk56]);
    const [a, b, trunk] = ports as [FakePort, FakePort, FakePort];
    a.offer([{ bytes: frame(mac(9), mac(1)) }]);
    b.offer([{ bytes: frame(mac(9), mac(1)) }]);
    trunk.take();
    trunk.offer([{ bytes: frame(mac(1), mac(2), 64, [6]) }]);
    assert.deepEqual([a.take().length, b.take().length], [0, 1]);
    trunk.offer([{ bytes: frame(mac(1), mac(2), 64, [5]) }]);
    assert.deepEqual([a.take().length, b.take().length], [1, 0]);
    assert.deepEqual(
      lan
        .fdb()
        .map(({ mac, vlan, port }) => `${vlan} ${mac} ${port}`)
        .sort(),
      [
        '5 02:00:00:00:00:01 p0',
        '5 02:00:00:00:00:02 p2',
        '6 02:00:00:00:00:01 p1',
        '6 02:00:00:00:00:02 p2',
      ],
    );
  });

  it('moves the offsets of the vnet header with the tag, for each port on its own', () => {
    const packet = tcp({ version: 4, payload: new Uint8Array(100) });
    const vnet = { flags: 1, hdrLen: 54, csumStart: packet.transportAt, csumOffset: 16 };
    const { ports } = join([access5, trunk56, access5, trunk56, access5]);
    packet.bytes.set(BROADCAST);
    ports[0]!.offer([{ bytes: packet.bytes, vnet }]);
    const seen = ports
      .slice(1)
      .map(({ sent }) => [sent[0]!.vnet.hdrLen, sent[0]!.vnet.csumStart, sent[0]!.bytes.length]);
    assert.deepEqual(seen, [
      [58, 38, 158],
      [54, 34, 154],
      [58, 38, 158],
      [54, 34, 154],
    ]);
    assert.equal(hex(ports[4]!.sent[0]!.bytes), hex(packet.bytes));
  });

  it('has tags in the frames that are made for a port without offloads', () => {
    const payload = new Uint8Array(2500).fill(7);
    const packet = tcp({ version: 6, payload });
    packet.bytes.set(BROADCAST);
    const vnet = { flags: 1, gsoType: 4, gsoSize: 1000, hdrLen: 74, csumStart: 54, csumOffset: 16 };
    for (const offloads of [0, OFFLOAD_CSUM]) {
      const { ports } = join([access5, trunk56], offloads);
      ports[0]!.offer([{ bytes: packet.bytes, vnet }]);
      const { sent } = ports[1]!;
      assert.deepEqual(
        sent.map(({ bytes }) => bytes.length),
        [1078, 1078, 578],
      );
      for (const { bytes, vnet } of sent) {
        assert.equal(hex(bytes.subarray(12, 18)), '8100000586dd');
        assert.equal(vnet.csumStart, offloads === 0 ? 0 : 58);
        const right = { bytes: bytes.slice(), networkAt: 18, transportAt: 58, headerBytes: 78 };
        completeTcp(right, 6);
        if (offloads === 0) assert.equal(hex(bytes), hex(right.bytes));
      }
    }
  });

  it('leaves alone what lies before a frame, wherever the frame lies', () => {
    const table = createHostTable(4, 256);
    // Frames one behind the other with 4 bytes between them, as a stream leaves them.
    const at = table.headAt(0) + 1;
    table.bytes.fill(0xdd, at - 8, at + 400);
    for (let i = 0; i < 3; i++) {
      table.addHead(60);
      table.records[i * 12] = at + i * 64;
      table.bytes.set(frame(BROADCAST, mac(i + 1), 60), at + i * 64);
    }
    const before = table.bytes.slice();
    const { ports } = join([access5, trunk56]);
    const offered: FrameTable = table;
    ports[0]!.receiver!(offered, ports[0]!);
    assert.deepEqual(
      ports[1]!.sent.map(({ bytes }) => hex(bytes.subarray(0, 18))),
      [1, 2, 3].map((n) => `ffffffffffff02000000000${n}8100000588b5`),
    );
    assert.deepEqual(table.bytes, withVlan(before, table));
  });

  it('does not tag a frame whose offsets would not fit', () => {
    const { ports, counters } = join([access5, trunk56]);
    const large = new Uint8Array(65_560);
    large.set(frame(BROADCAST, mac(1), 60));
    ports[1]!.change({ capability: { mtu: 65_560 } });
    ports[0]!.offer([{ bytes: large, vnet: { flags: 1, csumStart: 65_534, csumOffset: 1 } }]);
    assert.equal(counters(1).egress.dropped.vlan, 1);
    assert.equal(ports[1]!.sent.length, 0);
  });

  it('refuses a tag whose offsets lie within it, and one that is cut', () => {
    const { ports, counters } = join([trunk56, trunk56]);
    const bytes = frame(BROADCAST, mac(1), 64, [5]);
    ports[0]!.offer([{ bytes, vnet: { flags: 1, csumStart: 17 } }, { bytes: bytes.slice(0, 17) }]);
    assert.equal(counters(0).ingress.dropped.malformed, 2);
    ports[0]!.offer([{ bytes, vnet: { flags: 1, csumStart: 18 } }]);
    assert.equal(ports[1]!.sent[0]!.vnet.csumStart, 18);
  });

  it('does not take a service tag for one of its own', () => {
    const { ports, counters } = join([trunk56, access5]);
    const bytes = frame(BROADCAST, mac(1), 64, [5]);
    bytes.set([0x88, 0xa8], 12);
    ports[0]!.offer([{ bytes }]);
    ports[1]!.offer([{ bytes }]);
    assert.equal(counters(0).ingress.dropped.vlan + counters(1).ingress.dropped.vlan, 2);
  });

  for (const vlan of [
    { access: 0 },
    { access: 4095 },
    { access: 1.5 },
    { trunk: [5, 4095] },
    { trunk: [], native: -1 },
  ]) {
    it(`is not ${JSON.stringify(vlan)}`, () => {
      assert.throws(() => join([vlan]), { code: 'ERR_OUT_OF_RANGE' });
    });
  }
});

/** The memory with the one word changed that records which VLAN a frame is in. */
function withVlan(before: Uint8Array, table: FrameTable): Uint8Array {
  const words = new Uint32Array(before.buffer, 64, table.records.length);
  for (let i = 0; i < table.count; i++) words[i * 12 + 10] = 5;
  return before;
}
