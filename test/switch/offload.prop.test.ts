import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { FRAME_WORDS, GSO_ECN, GSO_TCPV4, GSO_TCPV6, VNET_FLAGS } from '../../src/core/frames.ts';
import { everyFrame } from '../../src/core/host-table.ts';
import { OFFLOAD_CSUM } from '../../src/core/port.ts';
import { Egress } from '../../src/switch/egress.ts';
import { SoftwareOffload } from '../../src/switch/offload.ts';
import { FakePort, type Sent } from './fake-port.ts';
import { GuestTable, type Vnet } from './guest-table.ts';
import { completeTcp, hex, segments, sum16, type TcpOptions, tcp } from './packets.ts';

const seed = process.env.FC_SEED === undefined ? Date.now() : Number(process.env.FC_SEED);
const options = { seed, numRuns: 150 };

function payloadOf(length: number, start: number): Uint8Array {
  return Uint8Array.from({ length }, (_, i) => (i * 31 + start + (i >>> 8)) & 255);
}

const packets: fc.Arbitrary<TcpOptions> = fc.record({
  version: fc.constantFrom(4 as const, 6 as const),
  tags: fc.constantFrom<number[]>([], [5], [5, 6]),
  extra: fc.nat(10),
  tcpOptions: fc.nat(10),
  payload: fc
    .record({ length: fc.oneof(fc.nat(200), fc.nat(20_000)), start: fc.nat(255) })
    .map(({ length, start }) => payloadOf(length, start)),
  flags: fc.nat(255),
  sequence: fc.oneof(fc.nat(), fc.constant(0xffff_fff0)),
  id: fc.oneof(fc.nat(0xffff), fc.constant(0xfffe)),
});

function vnetOf({ version }: TcpOptions, transportAt: number, gsoSize: number, ecn = false): Vnet {
  return {
    flags: 1,
    gsoType: (version === 4 ? GSO_TCPV4 : GSO_TCPV6) | (ecn ? GSO_ECN : 0),
    gsoSize,
    hdrLen: 0,
    csumStart: transportAt,
    csumOffset: 16,
  };
}

/** Sends one frame through the way out of a port that has `offloads`. */
function forward(frame: Uint8Array, vnet: Vnet, offloads: number, mtu = 65_535): Sent[] {
  const port = new FakePort('out', { offloads, mtu });
  const egress = new Egress(port);
  const guest = new GuestTable([{ bytes: frame, vnet }]);
  assert.equal(egress.send(guest.table, everyFrame, 0, 1), 1);
  assert.equal(egress.counters.reworkedSent, port.sent.length);
  return port.take();
}

describe('segmentation', () => {
  it('makes the frames that another implementation makes, to the bit', () => {
    const cases = fc.record({
      packet: packets,
      gsoSize: fc.integer({ min: 12, max: 3000 }),
      ecn: fc.boolean(),
    });
    fc.assert(
      fc.property(cases, ({ packet, gsoSize, ecn }) => {
        const { bytes, transportAt } = tcp(packet);
        const sent = forward(bytes, vnetOf(packet, transportAt, gsoSize, ecn), 0);
        const expected = segments(packet, gsoSize);
        assert.equal(sent.length, expected.length);
        for (const [i, { bytes, vnet }] of sent.entries()) {
          assert.equal(hex(bytes), hex(expected[i]!.bytes));
          assert.deepEqual(Object.values(vnet), [0, 0, 0, 0, 0, 0]);
        }
      }),
      options,
    );
  });

  it('leaves the checksum to a port that has one', () => {
    const cases = fc.record({ packet: packets, gsoSize: fc.integer({ min: 100, max: 3000 }) });
    fc.assert(
      fc.property(cases, ({ packet, gsoSize }) => {
        const { bytes, transportAt } = tcp(packet);
        const sent = forward(bytes, vnetOf(packet, transportAt, gsoSize), OFFLOAD_CSUM);
        const expected = segments(packet, gsoSize);
        for (const [i, { bytes, vnet }] of sent.entries()) {
          assert.deepEqual(vnet, {
            flags: 1,
            gsoType: 0,
            hdrLen: 0,
            gsoSize: 0,
            csumStart: transportAt,
            csumOffset: 16,
          });
          // What the port does then.
          const view = new DataView(bytes.buffer);
          view.setUint16(transportAt + 16, ~sum16([...bytes.subarray(transportAt)]) & 0xffff);
          assert.equal(hex(bytes), hex(expected[i]!.bytes));
        }
        assert.equal(sent.length, expected.length);
      }),
      options,
    );
  });

  it('cuts to the MTU of the port when the guest thought of a larger one', () => {
    const cases = fc.record({ packet: packets, mtu: fc.integer({ min: 300, max: 1500 }) });
    fc.assert(
      fc.property(cases, ({ packet, mtu }) => {
        const { bytes, transportAt, headerBytes, networkAt } = tcp(packet);
        const sent = forward(bytes, vnetOf(packet, transportAt, 1460), 0, mtu);
        const room = Math.min(1460, mtu - (headerBytes - networkAt));
        assert.deepEqual(
          sent.map(({ bytes }) => hex(bytes)),
          segments(packet, room).map(({ bytes }) => hex(bytes)),
        );
        assert.ok(sent.every(({ bytes }) => bytes.length - networkAt <= mtu));
      }),
      options,
    );
  });

  it('stops where there is no room, and goes on', () => {
    const packet: TcpOptions = { version: 4, payload: payloadOf(64_000, 3) };
    const { bytes, transportAt } = tcp(packet);
    const software = new SoftwareOffload();
    const guest = new GuestTable([{ bytes, vnet: vnetOf(packet, transportAt, 100) }]);
    assert.equal(software.begin(guest.table, 0, 0, 1500), null);
    const made: string[] = [];
    let fills = 0;
    for (let isDone = false; !isDone && fills < 100; fills++) {
      isDone = software.fill();
      for (let i = 0; i < software.table.count; i++) {
        const out = new Uint8Array(154);
        const length = software.table.owner.gather(i, out);
        made.push(hex(out.subarray(0, length)));
      }
      software.clear();
    }
    assert.ok(fills > 3);
    assert.deepEqual(
      made,
      segments(packet, 100).map(({ bytes }) => hex(bytes)),
    );
  });
});

describe('a checksum', () => {
  it('is completed wherever it begins, also in an odd place and over an odd number of bytes', () => {
    const cases = fc.record({
      bytes: fc.uint8Array({ minLength: 40, maxLength: 900 }),
      start: fc.nat(1000),
      offset: fc.nat(1000),
    });
    fc.assert(
      fc.property(cases, ({ bytes, start, offset }) => {
        bytes.fill(0, 12, 14);
        const csumStart = 14 + (start % (bytes.length - 16));
        const csumOffset = offset % (bytes.length - csumStart - 1);
        const [sent] = forward(bytes, { flags: 1, csumStart, csumOffset }, 0);
        const expected = bytes.slice();
        const sum = ~sum16([...bytes.subarray(csumStart)]) & 0xffff;
        new DataView(expected.buffer).setUint16(csumStart + csumOffset, sum === 0 ? 0xffff : sum);
        assert.equal(hex(sent!.bytes), hex(expected));
        assert.deepEqual(Object.values(sent!.vnet), [0, 0, 0, 0, 0, 0]);
      }),
      options,
    );
  });

  it('is right for whole packets', () => {
    fc.assert(
      fc.property(packets, (packet) => {
        const guest = tcp(packet);
        const [sent] = forward(
          guest.bytes.slice(),
          { flags: 1, csumStart: guest.transportAt, csumOffset: 16 },
          0,
        );
        completeTcp(guest, packet.version);
        assert.equal(hex(sent!.bytes), hex(guest.bytes));
      }),
      options,
    );
  });
});

describe('a hostile vnet header', () => {
  it('writes nowhere but into the frame made, and never throws', () => {
    const words = fc.oneof(fc.nat(0xffff), fc.nat(80), fc.constantFrom(0xffff, 0xfffe, 0xfff0));
    const cases = fc.record({
      packet: packets,
      cut: fc.nat(400),
      noise: fc.array(fc.tuple(fc.nat(120), fc.nat(255)), { maxLength: 4 }),
      flags: fc.nat(255),
      gsoType: fc.oneof(fc.constantFrom(0, 1, 3, 4, 5, 0x81, 0x84, 0x80), fc.nat(255)),
      hdrLen: words,
      gsoSize: words,
      csumStart: words,
      csumOffset: words,
      headMax: fc.constantFrom(64, 256, 40_000),
    });
    fc.assert(
      fc.property(cases, ({ packet, cut, noise, headMax, ...vnet }) => {
        const bytes = tcp(packet).bytes.slice(0, Math.max(14, cut));
        for (const [at, value] of noise) if (at < bytes.length) bytes[at] = value;
        const guest = new GuestTable([{ bytes, vnet }], headMax);
        const before = guest.table.bytes.slice();
        const software = new SoftwareOffload();
        const memory = software.table.bytes;
        memory.fill(0xc3, software.table.headAt(0) - 64);
        const record = software.table.records;
        const fault = software.begin(guest.table, 0, 0, 1500);
        let produced = 0;
        for (let rounds = 0; fault === null && !software.fill(); rounds++) {
          assert.ok(rounds < 100);
          produced += software.table.count;
          software.clear();
        }
        produced += software.table.count;
        assert.ok(produced <= 2048);
        assert.deepEqual(guest.table.bytes, before);
        assert.equal(hex(memory.subarray(-64)), 'c3'.repeat(64));
        for (let i = 0; i < software.table.count; i++) assert.equal(record[i * FRAME_WORDS + VNET_FLAGS], 0);
      }),
      { seed, numRuns: 600 },
    );
  });
});
