import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import * as rds from '../../src/wire/rds.ts';
import { CONG_MAP_BYTES, clearPort, createMap, setPort, testPort } from '../../src/wire/rds-congestion.ts';
import {
  type Extensions,
  encodeExtensions,
  type ProbeExtensions,
  parseExtensions,
} from '../../src/wire/rds-exthdr.ts';
import * as headers from '../support/rds-headers.ts';

/** The bytes of hexadecimal text with spaces; `00*13` stands for thirteen zero bytes. */
function hex(text: string): Uint8Array {
  const expanded = text.replace(/([0-9a-f]{2})\*(\d+)/g, (_, byte: string, times: string) =>
    byte.repeat(Number(times)),
  );
  return Uint8Array.from(Buffer.from(expanded.replaceAll(' ', ''), 'hex'));
}

function header(
  length: number,
  sport: number,
  dport: number,
  flags = 0,
  seqLo = 1,
  extensions: ProbeExtensions = {},
): Uint8Array {
  const out = new Uint8Array(rds.HEADER_BYTES).fill(0xee);
  rds.encodeHeader(out, 0, 0, seqLo, length, sport, dport, flags);
  encodeExtensions(out, rds.EXTHDR_OFFSET, extensions);
  return out;
}

describe('header', () => {
  test('a congestion header is the bytes a kernel sends', () => {
    const expected = hex('00*8 00*8 00002000 0000 0000 01 00 00000000 0000 00*16');
    assert.deepEqual(header(CONG_MAP_BYTES, 0, 0, rds.CONG_BITMAP, 0), expected);
    assert.equal(rds.classify(expected, 0), 'congestion');
  });

  const probes: [name: string, bytes: string, made: Uint8Array, kind: rds.MessageKind][] = [
    [
      '6.x ping',
      '0000000000000001 00*8 00000000 0001 0000 00 00 00000000 0000 050008 00*13',
      header(0, 1, 0, 0, 1, { npaths: 8 }),
      'probe-ping',
    ],
    [
      '6.x pong',
      '0000000000000001 00*8 00000000 0000 0001 00 00 00000000 0000 050008 00*13',
      header(0, 0, 1, 0, 1, { npaths: 8 }),
      'probe-pong',
    ],
    [
      '7.2 ping',
      '0000000000000001 00*8 00000000 0001 0000 00 00 00000000 0000 050008 06b5952c8e 0800 00*6',
      header(0, 1, 0, 0, 1, { npaths: 8, genNum: 0xb5952c8e, sportIdx: true }),
      'probe-ping',
    ],
  ];
  for (const [name, bytes, made, kind] of probes) {
    test(`a ${name} probe is the bytes a kernel sends`, () => {
      assert.equal(Buffer.from(made).toString('hex'), Buffer.from(hex(bytes)).toString('hex'));
      assert.equal(rds.classify(made, 0), kind);
    });
  }

  test('accessors read each field from its place, at any offset, unsigned', () => {
    const bytes = hex(
      'ff*3 fedcba98 81234567 89abcdef f0000001 ffffffff c001 8002 86 fe deadbeef 9abc' +
        '000102030405060708090a0b0c0d0e0f',
    );
    assert.equal(bytes.length, 3 + rds.HEADER_BYTES);
    assert.deepEqual(
      {
        seqHi: rds.seqHi(bytes, 3),
        seqLo: rds.seqLo(bytes, 3),
        length: rds.payloadLength(bytes, 3),
        sport: rds.sport(bytes, 3),
        dport: rds.dport(bytes, 3),
        flags: rds.flags(bytes, 3),
      },
      {
        seqHi: 0xfedcba98,
        seqLo: 0x81234567,
        length: 0xffffffff,
        sport: 0xc001,
        dport: 0x8002,
        flags: 0x86,
      },
    );
    const full = headers.decodeHeader(bytes, 3);
    assert.deepEqual([full.ackHi, full.ackLo, full.credit], [0x89abcdef, 0xf0000001, 0xfe]);
    assert.deepEqual([full.padding, full.checksum], [0xdeadbeef, 0x9abc]);
    assert.deepEqual(full.exthdr, bytes.slice(3 + rds.EXTHDR_OFFSET));
    assert.deepEqual(headers.encodeHeaderFull(full), bytes.slice(3));
  });

  test('encodeHeader overwrites its 48 bytes and no others', () => {
    const out = new Uint8Array(50).fill(0xee);
    rds.encodeHeader(out, 1, 0xfedcba98, 0x81234567, 0x100000, 0xc001, 0x8002, rds.RETRANSMITTED);
    assert.deepEqual(out, hex('ee fedcba98 81234567 00*8 00100000 c001 8002 04 00*23 ee'));
  });

  test('decodeHeader copies the extension bytes', () => {
    const bytes = header(0, 1, 0, 0, 1, { npaths: 8 });
    const decoded = headers.decodeHeader(bytes, 0);
    bytes.fill(0);
    assert.equal(parseExtensions(decoded.exthdr, 0).npaths, 8);
  });
});

describe('classify', () => {
  const cases: [sport: number, dport: number, flags: number, kind: rds.MessageKind][] = [
    [0, 0, 0x01, 'congestion'],
    [4001, 4002, 0x01, 'congestion'],
    [0, 0, 0x03, 'ignored'],
    [0, 0, 0x05, 'ignored'],
    [0, 0, 0x00, 'ignored'],
    [4001, 4002, 0x05, 'data'],
    [2, 0, 0, 'ping'],
    [65535, 0, rds.RETRANSMITTED, 'ping'],
    [1, 0, 0, 'probe-ping'],
    [1, 0, rds.RETRANSMITTED, 'probe-ping'],
    [0, 1, 0, 'probe-pong'],
    [0, 2, 0, 'pong'],
    [0, 65535, 0, 'pong'],
    [4001, 4002, 0, 'data'],
    [4001, 4002, 0xfe, 'data'],
    [1, 4002, 0, 'data'],
    [4001, 1, 0, 'data'],
    [1, 1, 0, 'data'],
  ];
  for (const [sport, dport, flags, kind] of cases) {
    test(`${sport} -> ${dport}, flags 0x${flags.toString(16)}: ${kind}`, () => {
      assert.equal(rds.classify(header(0, sport, dport, flags), 0), kind);
    });
  }
});

describe('sequence numbers', () => {
  test('compare as 64-bit unsigned numbers', () => {
    assert.ok(rds.compareSeq(0, 5, 0, 6) < 0);
    assert.ok(rds.compareSeq(0, 0xffffffff, 1, 0) < 0);
    assert.ok(rds.compareSeq(0x80000000, 0, 0x7fffffff, 0xffffffff) > 0);
    assert.equal(rds.compareSeq(7, 0x80000000, 7, 0x80000000), 0);
  });

  test('the base is the milliseconds shifted left by 20 bits', () => {
    for (const ms of [0, 1, 4095, 4096, 1_700_000_000_123, 2 ** 43]) {
      const { hi, lo } = rds.sequenceBase(ms);
      assert.equal((BigInt(hi) << 32n) | BigInt(lo), BigInt(ms) << 20n, `${ms}`);
    }
    assert.deepEqual(rds.sequenceBase(4097.9), { hi: 1, lo: 0x100000 });
  });
});

describe('checksum', () => {
  test('is the complement of the words summed without the checksum itself', () => {
    const bytes = header(1024, 4001, 4002, 0, 5);
    assert.equal(headers.headerChecksum(bytes, 0), 0xdcb7);
    bytes.set([0xdc, 0xb7], 30);
    assert.equal(headers.headerChecksum(bytes, 0), 0xdcb7);
    assert.ok(headers.verifyChecksum(bytes, 0));
  });

  test('none is right, a wrong one is not', () => {
    const bytes = header(1024, 4001, 4002, 0, 5);
    assert.ok(headers.verifyChecksum(bytes, 0));
    bytes.set([0xdc, 0xb8], 30);
    assert.ok(!headers.verifyChecksum(bytes, 0));
  });
});

describe('extension headers', () => {
  const cases: [name: string, bytes: string, expected: Extensions][] = [
    ['nothing', '00*16', { unknownTypes: [] }],
    ['6.x probe', '050008 00*13', { npaths: 8, unknownTypes: [] }],
    [
      '7.2 probe',
      '050008 06deadbeef 0800 00*6',
      { npaths: 8, genNum: 0xdeadbeef, sportIdx: true, unknownTypes: [] },
    ],
    ['UEK probe', '050008 0800 00*11', { npaths: 8, sportIdx: true, unknownTypes: [] }],
    ['nothing after the terminator', '00 050008 00*12', { unknownTypes: [] }],
    ['type 16 ends', '10 050008 00*12', { unknownTypes: [] }],
    ['type 255 ends', '050004 ff 06deadbeef 00*7', { npaths: 4, unknownTypes: [] }],
    ['unknown types below 16 have no payload', '0a 0f 050002 00*11', { npaths: 2, unknownTypes: [10, 15] }],
    ['sixteen unknown types', '0b*16', { unknownTypes: Array.from({ length: 16 }, () => 11) }],
    [
      'a payload that ends the area',
      '0b*11 06 00000007',
      { genNum: 7, unknownTypes: Array.from({ length: 11 }, () => 11) },
    ],
    [
      'a payload that crosses the end',
      '0b*12 06 000000',
      { unknownTypes: Array.from({ length: 12 }, () => 11) },
    ],
    ['a type without room for its payload', '0b*15 05', { unknownTypes: Array(15).fill(11) }],
    ['the last value counts', '050002 050003 00*10', { npaths: 3, unknownTypes: [] }],
    [
      'the InfiniBand types',
      '0100000301 0280000001 00*6',
      { version: 0x301, rdmaRkey: 0x80000001, unknownTypes: [] },
    ],
    [
      'RDMA destination',
      '03ffffffff00000010 00*7',
      { rdmaDest: { rkey: 0xffffffff, offset: 16 }, unknownTypes: [] },
    ],
    [
      'RDMA bytes',
      '040010000002000000 050001 00*4',
      { rdmaBytes: { bytes: 0x100000, direction: 2 }, npaths: 1, unknownTypes: [] },
    ],
    [
      'the UEK types keep their sizes',
      '0700000003 09aabbccdd01000000 0800',
      { capBits: 3, payloadChecksum: 0xaabbccdd, sportIdx: true, unknownTypes: [] },
    ],
  ];
  for (const [name, bytes, expected] of cases) {
    test(name, () => {
      const area = hex(bytes);
      assert.equal(area.length, rds.EXTHDR_BYTES);
      assert.deepEqual(parseExtensions(area, 0), expected);
    });
  }

  test('reads its own 16 bytes and not the ones behind', () => {
    assert.deepEqual(parseExtensions(hex('ffff 0b*13 060000 0007'), 2).genNum, undefined);
  });

  test('the area is cleared before it is written', () => {
    const out = new Uint8Array(20).fill(0xee);
    encodeExtensions(out, 2, { npaths: 1 });
    assert.deepEqual(out, hex('eeee 050001 00*13 eeee'));
    encodeExtensions(out, 2, {});
    assert.deepEqual(out, hex('eeee 00*16 eeee'));
  });

  test('a kernel that does not know SPORT_IDX reads the rest and stops there', () => {
    const area = new Uint8Array(rds.EXTHDR_BYTES);
    encodeExtensions(area, 0, { npaths: 8, genNum: 0x01020304, sportIdx: true });
    assert.deepEqual(oldKernelTypes(area), [5, 6, 8]);
  });
});

/** The types a 6.x kernel meets: it has no payload size for type 8 and those above. */
function oldKernelTypes(area: Uint8Array): number[] {
  const sizes = [0, 4, 4, 8, 0, 2, 4];
  const types: number[] = [];
  let at = 0;
  while (at < area.length) {
    const type = area[at]!;
    if (type === 0 || type >= 16) break;
    at += 1 + (sizes[type] ?? 0);
    if (at > area.length) break;
    types.push(type);
  }
  return types;
}

describe('congestion map', () => {
  test('port p is bit p & 7 of byte p >> 3', () => {
    const map = createMap();
    setPort(map, 5001);
    assert.equal(map[625], 0b10);
    setPort(map, 0);
    setPort(map, 65535);
    assert.equal(map[0], 1);
    assert.equal(map[8191], 0x80);
    assert.deepEqual([...headers.congestedPorts(map)], [0, 5001, 65535]);
  });

  test('setting and clearing one port leaves its neighbours alone', () => {
    const map = new Uint8Array(CONG_MAP_BYTES).fill(0xff);
    clearPort(map, 4001);
    clearPort(map, 4001);
    assert.ok(testPort(map, 4000) && !testPort(map, 4001) && testPort(map, 4002));
    assert.equal([...headers.congestedPorts(map)].length, 65535);
    setPort(map, 4001);
    setPort(map, 4001);
    assert.ok(map.every((byte) => byte === 0xff));
  });
});
