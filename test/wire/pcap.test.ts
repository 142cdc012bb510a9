import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  PCAP_HEADER_BYTES,
  PCAP_RECORD_BYTES,
  PcapRecord,
  parsePcapHeader,
  readPcapRecord,
  writePcapHeader,
  writePcapRecord,
} from '../../src/wire/pcap.ts';
import { readPackets } from '../support/pcap.ts';

function file(nanoseconds: boolean): Uint8Array {
  const out = new Uint8Array(200);
  let at = writePcapHeader(out, 0, 1000, nanoseconds);
  at += writePcapRecord(out, at, 1_700_000_000, 123_456, 60, 1514);
  out.fill(0xab, at, at + 60);
  at += 60;
  at += writePcapRecord(out, at, 0xffff_fffe, 7, 14, 14);
  return out.slice(0, at + 14);
}

/** The same file as a big-endian machine would write it: the words of the headers turned around. */
function turned(bytes: Uint8Array): Uint8Array {
  const out = bytes.slice();
  const turn = (at: number, width: number): void => {
    out.subarray(at, at + width).reverse();
  };
  turn(0, 4);
  turn(4, 2);
  turn(6, 2);
  for (let at = 8; at < PCAP_HEADER_BYTES; at += 4) turn(at, 4);
  for (const start of [PCAP_HEADER_BYTES, PCAP_HEADER_BYTES + PCAP_RECORD_BYTES + 60]) {
    for (let at = start; at < start + PCAP_RECORD_BYTES; at += 4) turn(at, 4);
  }
  return out;
}

describe('a capture file', () => {
  for (const nanoseconds of [true, false]) {
    it(`is read by another reader, nanoseconds ${nanoseconds}`, () => {
      const packets = readPackets(file(nanoseconds));
      assert.equal(packets.length, 2);
      assert.equal(packets[0]!.wireBytes, 1514);
      assert.equal(packets[0]!.frame.length, 60);
      assert.equal(packets[0]!.timeUs, 1.7e15 + (nanoseconds ? 123.456 : 123_456));
    });

    for (const littleEndian of [true, false]) {
      it(`is read back, nanoseconds ${nanoseconds}, little-endian ${littleEndian}`, () => {
        const bytes = littleEndian ? file(nanoseconds) : turned(file(nanoseconds));
        const format = parsePcapHeader(bytes);
        assert.deepEqual(format, { littleEndian, nanoseconds, snapBytes: 1000, linkType: 1 });
        const record = new PcapRecord();
        const first = readPcapRecord(format, bytes, PCAP_HEADER_BYTES, bytes.length, record);
        assert.equal(first, PCAP_RECORD_BYTES + 60);
        assert.deepEqual(
          { ...record },
          {
            seconds: 1_700_000_000,
            nanoseconds: nanoseconds ? 123_456 : 123_456_000,
            capturedBytes: 60,
            frameBytes: 1514,
          },
        );
        const next = PCAP_HEADER_BYTES + first;
        assert.equal(readPcapRecord(format, bytes, next, bytes.length, record), PCAP_RECORD_BYTES + 14);
        assert.equal(record.seconds, 0xffff_fffe);
      });
    }
  }

  it('is waited for where it is cut, and refused where it is none', () => {
    const bytes = file(true);
    const format = parsePcapHeader(bytes);
    const record = new PcapRecord();
    for (const end of [PCAP_HEADER_BYTES, PCAP_HEADER_BYTES + 15, PCAP_HEADER_BYTES + 75]) {
      assert.equal(readPcapRecord(format, bytes, PCAP_HEADER_BYTES, end, record), 0);
    }
    bytes.fill(0xff, PCAP_HEADER_BYTES + 8, PCAP_HEADER_BYTES + 12);
    assert.equal(readPcapRecord(format, bytes, PCAP_HEADER_BYTES, bytes.length, record), -1);
    const refused = { code: 'ZTX_BAD_PCAP' };
    assert.throws(() => parsePcapHeader(bytes.subarray(0, 23)), refused);
    assert.throws(() => parsePcapHeader(new Uint8Array(24)), refused);
    bytes[4] = 3;
    assert.throws(() => parsePcapHeader(bytes), refused);
  });
});
