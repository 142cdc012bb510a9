import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { OFFLOAD_ALL, OFFLOAD_CSUM, OFFLOAD_ECN, OFFLOAD_TSO4, OFFLOAD_TSO6 } from '../../src/core/port.ts';
import { Link } from '../../src/switch/link.ts';
import { FakePort } from './fake-port.ts';
import type { Frame, Vnet } from './guest-table.ts';
import { frame, MAC_A, MAC_B, tcp } from './packets.ts';
import { VirtualClock } from './virtual-clock.ts';

const payload = new Uint8Array(3000).fill(0x5a);
const v4 = tcp({ version: 4, payload });
const v6 = tcp({ version: 6, payload, extra: 1 });
const good4: Vnet = { flags: 1, gsoType: 1, gsoSize: 1000, hdrLen: 54, csumStart: 34, csumOffset: 16 };
const good6: Vnet = { flags: 1, gsoType: 4, gsoSize: 1000, hdrLen: 82, csumStart: 62, csumOffset: 16 };

function pair(offloads: number, mtu = 1500) {
  const guest = new FakePort('guest');
  const out = new FakePort('out', { offloads, mtu });
  const link = new Link(guest, out, { clock: new VirtualClock() });
  return { guest, out, counters: link.counters[0] };
}

/** The frame with some of its bytes changed. */
function changed(bytes: Uint8Array, change: Readonly<Record<number, number>>): Uint8Array {
  const copy = bytes.slice();
  for (const [at, value] of Object.entries(change)) copy[Number(at)] = value;
  return copy;
}

const plain = frame(MAC_B, MAC_A, 60);
const hostile: readonly { readonly name: string; readonly frame: Frame }[] = [
  ...[59, 60, 61, 65_535].map((csumStart) => ({
    name: `csum_start ${csumStart} in 60 bytes`,
    frame: { bytes: plain, vnet: { flags: 1, csumStart, csumOffset: 0 } },
  })),
  { name: 'csum_start in the addresses', frame: { bytes: plain, vnet: { flags: 1, csumStart: 13 } } },
  {
    name: 'the field one byte beyond',
    frame: { bytes: plain, vnet: { flags: 1, csumStart: 34, csumOffset: 25 } },
  },
  {
    name: 'offsets whose sum would wrap in 16 bits',
    frame: { bytes: plain, vnet: { flags: 1, csumStart: 20, csumOffset: 65_530 } },
  },
  {
    name: 'the largest offsets there are',
    frame: { bytes: plain, vnet: { flags: 1, csumStart: 65_535, csumOffset: 65_535 } },
  },
  {
    name: 'hdr_len beyond the frame',
    frame: { bytes: plain, vnet: { flags: 1, csumStart: 20, hdrLen: 61 } },
  },
  { name: 'gso_size 0', frame: { bytes: v4.bytes, vnet: { ...good4, gsoSize: 0 } } },
  { name: 'TSO without a checksum', frame: { bytes: v4.bytes, vnet: { ...good4, flags: 0 } } },
  { name: 'TSO for IPv4 of an IPv6 packet', frame: { bytes: v6.bytes, vnet: { ...good6, gsoType: 1 } } },
  { name: 'TSO for IPv6 of an IPv4 packet', frame: { bytes: v4.bytes, vnet: { ...good4, gsoType: 4 } } },
  { name: 'segmentation of UDP (UFO)', frame: { bytes: v4.bytes, vnet: { ...good4, gsoType: 3 } } },
  { name: 'segmentation of UDP (USO)', frame: { bytes: v4.bytes, vnet: { ...good4, gsoType: 5 } } },
  {
    name: 'congestion notification of nothing',
    frame: { bytes: v4.bytes, vnet: { ...good4, gsoType: 0x80 } },
  },
  { name: 'an unknown kind', frame: { bytes: v4.bytes, vnet: { ...good4, gsoType: 0x7f } } },
  { name: 'TSO of UDP', frame: { bytes: changed(v4.bytes, { 23: 17 }), vnet: good4 } },
  { name: 'TSO of a fragment', frame: { bytes: changed(v4.bytes, { 20: 0x20 }), vnet: good4 } },
  { name: 'TSO of what is no IP', frame: { bytes: changed(v4.bytes, { 12: 0x88 }), vnet: good4 } },
  { name: 'csum_start elsewhere than TCP', frame: { bytes: v4.bytes, vnet: { ...good4, csumStart: 38 } } },
  {
    name: 'csum_offset elsewhere than in TCP',
    frame: { bytes: v4.bytes, vnet: { ...good4, csumOffset: 6 } },
  },
  { name: 'a TCP header of 16 bytes', frame: { bytes: changed(v4.bytes, { 46: 0x40 }), vnet: good4 } },
  {
    name: 'a TCP header beyond the frame',
    frame: { bytes: changed(v4.bytes.slice(0, 60), { 46: 0xf0 }), vnet: good4 },
  },
  { name: 'a cut TCP header', frame: { bytes: v4.bytes.slice(0, 50), vnet: { ...good4, hdrLen: 0 } } },
];

describe('offload headers that contradict the frame', () => {
  for (const offloads of [0, OFFLOAD_CSUM, OFFLOAD_ALL]) {
    for (const { name, frame } of hostile) {
      it(`are dropped and counted, by ports with offloads ${offloads}: ${name}`, () => {
        const { guest, out, counters } = pair(offloads);
        assert.equal(guest.offer([frame, { bytes: plain }]), 2);
        assert.equal(out.sent.length, 1);
        assert.deepEqual(counters.dropped, { malformed: 0, badOffload: 1 });
      });
    }
  }

  it('are dropped when they ask for more segments than anybody needs', () => {
    const { guest, out, counters } = pair(0);
    guest.offer([{ bytes: v4.bytes, vnet: { ...good4, gsoSize: 1 } }]);
    assert.equal(out.sent.length, 0);
    assert.equal(counters.egress.dropped.badOffload, 1);
  });

  it('and unknown flags are not passed on', () => {
    const { guest, out } = pair(OFFLOAD_ALL);
    guest.offer([{ bytes: plain, vnet: { flags: 0xff, csumStart: 20 } }]);
    assert.equal(out.sent[0]!.vnet.flags, 3);
  });
});

describe('a port', () => {
  const frames: readonly Frame[] = [
    { bytes: plain, vnet: { flags: 1, csumStart: 34, csumOffset: 6 } },
    { bytes: v4.bytes, vnet: good4 },
    { bytes: v6.bytes, vnet: good6 },
    { bytes: v4.bytes, vnet: { ...good4, gsoType: 0x81 } },
    { bytes: plain },
  ];
  const cases = [
    { offloads: OFFLOAD_ALL, counts: [1, 1, 1, 1, 1] },
    { offloads: 0, counts: [1, 3, 3, 3, 1] },
    { offloads: OFFLOAD_CSUM, counts: [1, 3, 3, 3, 1] },
    { offloads: OFFLOAD_CSUM | OFFLOAD_TSO4, counts: [1, 1, 3, 3, 1] },
    { offloads: OFFLOAD_CSUM | OFFLOAD_TSO4 | OFFLOAD_ECN, counts: [1, 1, 3, 1, 1] },
    { offloads: OFFLOAD_CSUM | OFFLOAD_TSO6, counts: [1, 3, 1, 3, 1] },
  ];
  for (const { offloads, counts } of cases) {
    it(`with offloads ${offloads} gets what it can take, and the rest reworked`, () => {
      for (const [i, frame] of frames.entries()) {
        const { guest, out } = pair(offloads);
        guest.offer([frame]);
        assert.equal(out.sent.length, counts[i], `frame ${i}`);
        if (counts[i] === 1 && offloads === OFFLOAD_ALL) assert.deepEqual(out.sent[0]!.bytes, frame.bytes);
        for (const { vnet } of out.sent) {
          if ((offloads & OFFLOAD_CSUM) === 0) assert.equal(vnet.flags, 0);
        }
      }
    });
  }

  it('gets a sum of zero as 0xffff, which UDP does not take for none', () => {
    const { guest, out } = pair(0);
    const bytes = plain.slice().fill(0, 34);
    bytes.set([0xff, 0xff], 50);
    guest.offer([{ bytes, vnet: { flags: 1, csumStart: 34, csumOffset: 6 } }]);
    assert.deepEqual([...out.sent[0]!.bytes.subarray(40, 42)], [0xff, 0xff]);
  });

  it('gets frames in order when some of them are reworked', () => {
    const { guest, out, counters } = pair(0);
    const numbered = (n: number): Frame => ({ bytes: changed(plain, { 50: n }) });
    guest.offer([
      numbered(1),
      numbered(2),
      { bytes: v4.bytes, vnet: good4 },
      numbered(3),
      frames[0]!,
      numbered(4),
    ]);
    assert.deepEqual(
      out.sent.map(({ bytes }) => (bytes.length === 60 ? bytes[50] : bytes.length)),
      [1, 2, 1054, 1054, 1054, 3, plain[50], 4],
    );
    assert.deepEqual(out.batches, [2, 3, 1, 1, 1]);
    assert.equal(counters.egress.frames, 6);
    assert.equal(counters.egress.segmented, 1);
    assert.equal(counters.egress.checksummed, 1);
    assert.equal(counters.egress.reworkedSent, 4);
  });

  it('gets nothing longer than its MTU, tags aside', () => {
    const { guest, out, counters } = pair(OFFLOAD_ALL, 1000);
    const lengths = (bytes: number, tags: number[] = []): Frame => ({
      bytes: frame(MAC_B, MAC_A, bytes, tags),
    });
    guest.offer([
      lengths(1014),
      lengths(1015),
      lengths(1018, [5]),
      lengths(1019, [5]),
      lengths(1022, [5, 6]),
    ]);
    assert.deepEqual(
      out.sent.map(({ bytes }) => bytes.length),
      [1014, 1018, 1022],
    );
    assert.equal(counters.egress.dropped.tooLong, 2);
  });

  it('gets no segment of a packet whose headers alone are longer than its MTU', () => {
    const { guest, out, counters } = pair(0, 40);
    guest.offer([{ bytes: v4.bytes, vnet: good4 }]);
    assert.equal(out.sent.length, 0);
    assert.equal(counters.egress.dropped.tooLong, 1);
  });

  it('does not get what cannot be read', () => {
    const { guest, out, counters } = pair(0);
    guest.offer([
      { bytes: v4.bytes, vnet: good4, gatherError: -14 },
      { bytes: plain, status: 14 },
      { bytes: plain.slice(0, 13) },
    ]);
    assert.equal(out.sent.length, 0);
    assert.equal(counters.egress.dropped.unreadable, 1);
    assert.deepEqual(counters.dropped, { malformed: 2, badOffload: 0 });
  });
});
