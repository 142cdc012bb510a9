import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { readU16, readU32, writeU16, writeU32 } from '../../src/wire/bytes.ts';
import * as rds from '../../src/wire/rds.ts';
import { clearPort, createMap, setPort, testPort } from '../../src/wire/rds-congestion.ts';
import { encodeExtensions, parseExtensions } from '../../src/wire/rds-exthdr.ts';
import {
  checkPattern,
  checkStressHeader,
  decodeStressHeader,
  encodeStressHeader,
  fillPattern,
  STRESS_HEADER_BYTES,
} from '../../src/wire/rds-stress.ts';
import {
  decodeOptions,
  defaultOptions,
  encodeOptions,
  optionsBytes,
  optionsForm,
  type StressOptions,
} from '../../src/wire/rds-stress-options.ts';
import * as headers from '../support/rds-headers.ts';

const seed = process.env.FC_SEED;
const parameters = { numRuns: 500, ...(seed === undefined ? {} : { seed: Number(seed) }) };

const u8 = fc.integer({ min: 0, max: 0xff });
const u16 = fc.integer({ min: 0, max: 0xffff });
const u32 = fc.integer({ min: 0, max: 0xffffffff });
const bytes = (length: number): fc.Arbitrary<Uint8Array> =>
  fc.uint8Array({ minLength: length, maxLength: length });

function check<T>(arbitrary: fc.Arbitrary<T>, predicate: (value: T) => void): void {
  fc.assert(fc.property(arbitrary, predicate), parameters);
}

test('integers round trip and agree with DataView', () => {
  check(fc.tuple(u16, u32, fc.nat(9), bytes(16)), ([short, long, at, out]) => {
    const view = new DataView(out.buffer, out.byteOffset, out.length);
    writeU16(out, at, short);
    assert.equal(readU16(out, at), short);
    assert.equal(view.getUint16(at), short);
    writeU32(out, at, long);
    assert.equal(readU32(out, at), long);
    assert.equal(view.getUint32(at), long);
  });
});

test('any 48 bytes decode, and encode to themselves', () => {
  check(bytes(rds.HEADER_BYTES), (header) => {
    assert.deepEqual(headers.encodeHeaderFull(headers.decodeHeader(header, 0)), header);
    rds.classify(header, 0);
    headers.verifyChecksum(header, 0);
  });
});

test('a header reads back as it was written, and its checksum verifies', () => {
  const fields = fc.tuple(u32, u32, u32, u16, u16, u8);
  check(fields, ([hi, lo, length, from, to, flags]) => {
    const out = new Uint8Array(rds.HEADER_BYTES).fill(0xee);
    rds.encodeHeader(out, 0, hi, lo, length, from, to, flags);
    assert.deepEqual([rds.seqHi(out, 0), rds.seqLo(out, 0), rds.payloadLength(out, 0)], [hi, lo, length]);
    assert.deepEqual([rds.sport(out, 0), rds.dport(out, 0), rds.flags(out, 0)], [from, to, flags]);
    assert.ok(out.subarray(8, 16).every((byte) => byte === 0));
    assert.ok(out.subarray(25).every((byte) => byte === 0));
    writeU16(out, 30, headers.headerChecksum(out, 0));
    assert.ok(headers.verifyChecksum(out, 0));
  });
});

test('sequence numbers order as the 64-bit integers they are', () => {
  check(fc.tuple(u32, u32, u32, u32), ([hiA, loA, hiB, loB]) => {
    const a = (BigInt(hiA) << 32n) | BigInt(loA);
    const b = (BigInt(hiB) << 32n) | BigInt(loB);
    assert.equal(Math.sign(rds.compareSeq(hiA, loA, hiB, loB)), a < b ? -1 : a > b ? 1 : 0);
  });
});

test('a later millisecond starts above 2^20 messages of an earlier one', () => {
  check(fc.tuple(fc.nat(2 ** 43), fc.integer({ min: 1, max: 1e6 })), ([ms, later]) => {
    const a = rds.sequenceBase(ms);
    const b = rds.sequenceBase(ms + later);
    assert.ok(rds.compareSeq(a.hi, a.lo + 0xfffff, b.hi, b.lo) < 0);
  });
});

test('any 16 bytes parse as extensions', () => {
  // Small type numbers are where the parser has something to do.
  const area = fc.array(fc.oneof(u8, fc.integer({ min: 0, max: 16 })), { minLength: 16, maxLength: 16 });
  check(fc.tuple(area, u8), ([list, guard]) => {
    const alone = Uint8Array.from(list);
    const surrounded = Uint8Array.from([guard, ...list, guard, guard, guard]);
    assert.deepEqual(parseExtensions(surrounded, 1), parseExtensions(alone, 0));
  });
});

test('extensions round trip', () => {
  const probe = fc.record(
    { npaths: u16, genNum: u32, sportIdx: fc.constant(true) },
    { requiredKeys: [], noNullPrototype: true },
  );
  check(fc.tuple(probe, bytes(16)), ([extensions, out]) => {
    encodeExtensions(out, 0, extensions);
    assert.deepEqual(parseExtensions(out, 0), { ...extensions, unknownTypes: [] });
  });
});

test('a congestion map behaves as a set of ports', () => {
  const operations = fc.array(fc.tuple(fc.boolean(), fc.oneof(u16, fc.nat(20))), { maxLength: 40 });
  check(operations, (list) => {
    const map = createMap();
    const model = new Set<number>();
    for (const [set, port] of list) {
      if (set) {
        setPort(map, port);
        model.add(port);
      } else {
        clearPort(map, port);
        model.delete(port);
      }
      assert.equal(testPort(map, port), set);
    }
    assert.deepEqual(
      [...headers.congestedPorts(map)],
      [...model].sort((a, b) => a - b),
    );
  });
});

const stressHeader = fc.record(
  {
    seq: u32,
    fromAddr: u32,
    toAddr: u32,
    fromPort: u16,
    toPort: u16,
    index: u16,
    op: u8,
  },
  { noNullPrototype: true },
);

test('rds-stress headers round trip and pass their own check', () => {
  check(fc.tuple(stressHeader, fc.nat(9)), ([header, at]) => {
    const out = new Uint8Array(80).fill(0xee);
    encodeStressHeader(out, at, header);
    assert.deepEqual(decodeStressHeader(out, at), header);
    assert.equal(checkStressHeader(out, at, header), undefined);
    assert.ok(out.subarray(at + 19, at + 63).every((byte) => byte === 0));
    assert.ok(out.subarray(at + 63).every((byte) => byte === 0xee));
  });
});

test('a changed byte among the first 19 is found, one behind them is not', () => {
  const change = fc.tuple(stressHeader, fc.nat(62), fc.integer({ min: 1, max: 255 }));
  check(change, ([header, at, flip]) => {
    const out = new Uint8Array(STRESS_HEADER_BYTES);
    encodeStressHeader(out, 0, header);
    out[at]! ^= flip;
    assert.equal(checkStressHeader(out, 0, header) === undefined, at >= 19);
  });
});

test('a changed filler byte is found where it is', () => {
  const change = fc.tuple(fc.integer({ min: 64, max: 3000 }), fc.nat(), fc.integer({ min: 1, max: 255 }));
  check(change, ([size, pick, flip]) => {
    const out = new Uint8Array(size + 5);
    fillPattern(out, 5, size);
    assert.equal(checkPattern(out, 5, size), -1);
    const at = STRESS_HEADER_BYTES + (pick % (size - STRESS_HEADER_BYTES));
    out[5 + at]! ^= flip;
    assert.equal(checkPattern(out, 5, size), at);
  });
});

test('any 59 or 77 bytes decode as options and encode to themselves', () => {
  check(bytes(59), (plain) => {
    assert.deepEqual(encodeOptions(decodeOptions(plain, 'plain'), 'plain'), plain);
  });
  check(bytes(77), (versioned) => {
    versioned.set(encodeOptions(defaultOptions, 'versioned').subarray(0, 16));
    assert.equal(optionsForm(versioned), 'versioned');
    assert.deepEqual(encodeOptions(decodeOptions(versioned, 'versioned'), 'versioned'), versioned);
  });
});

test('the passive side tells the two forms apart', () => {
  const settings = fc.record({ reqDepth: fc.nat(1e6), reqSize: u32, tos: u8, async: u8 });
  check(settings, (some) => {
    const options: StressOptions = { ...defaultOptions, ...some };
    const sent = encodeOptions(options);
    const form = optionsForm(sent.subarray(0, 16));
    assert.equal(form, some.tos !== 0 || some.async !== 0 ? 'versioned' : 'plain');
    assert.equal(sent.length, optionsBytes(form));
    assert.deepEqual(decodeOptions(sent, form), options);
  });
});
