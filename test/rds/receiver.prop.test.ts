/**
 * LaneReceiver against arbitrary bytes: it never throws, holds no more than a chunk or two and one largest message, and
 * what it reports does not depend on how the stream was cut. Well-formed streams are compared with a model of the
 * kernel's rules; the same streams with bytes changed, taken out and put in must at least be read the same way twice.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import fc from 'fast-check';
import { ReleaseQueue } from '../../src/core/releases.ts';
import { type RdsCounters, rdsCounters } from '../../src/rds/counters.ts';
import { BufferPool, CHUNK_BYTES } from '../../src/rds/memory.ts';
import { LaneReceiver } from '../../src/rds/receiver.ts';
import * as rds from '../../src/wire/rds.ts';
import { CONG_MAP_BYTES } from '../../src/wire/rds-congestion.ts';
import * as headers from '../support/rds-headers.ts';
import { splitMessages } from '../support/rds-messages.ts';

const seed = process.env.FC_SEED;
const parameters = {
  numRuns: 200,
  includeErrorInReport: true,
  ...(seed === undefined ? {} : { seed: Number(seed) }),
};

/** What one receiver holds: old chunk and new while it moves over, and one largest message. */
const LIVE_BYTES_MAX = 2 * CHUNK_BYTES + rds.MAX_PAYLOAD;

class CountingPool extends BufferPool {
  liveBytes = 0;
  mostBytes = 0;

  override acquire(bytes: number): Buffer {
    const buffer = super.acquire(bytes);
    this.liveBytes += buffer.byteLength;
    this.mostBytes = Math.max(this.mostBytes, this.liveBytes);
    return buffer;
  }

  override release(buffer: Buffer): void {
    this.liveBytes -= buffer.byteLength;
    super.release(buffer);
  }
}

function digest(bytes: Uint8Array): string {
  return createHash('sha1').update(bytes).digest('hex').slice(0, 8);
}

interface Transcript {
  readonly events: string[];
  /** The stream was read to its end. */
  readonly sane: boolean;
  readonly nextSeq: { hi: number; lo: number };
  readonly counters: RdsCounters;
}

/** Feeds `stream` in pieces of the sizes given, over and over. */
function receive(stream: Uint8Array, cuts: readonly number[]): Transcript {
  const events: string[] = [];
  const pool = new CountingPool(1024 * 1024);
  const counters = rdsCounters();
  let held = 0;
  // Sometimes, and for some time.
  const full = cuts.flatMap((size) => [size % 2 === 0, size % 3 === 0]);
  // Releases run at once, so that live bytes are what is really held.
  const releases: ReleaseQueue = new ReleaseQueue((flush) => flush());
  const receiver = new LaneReceiver(
    {
      congestion: (map) => events.push(`map ${digest(map)}`),
      probe: (isPing, bytes, header) =>
        events.push(
          `probe ${isPing ? 'ping' : 'pong'} ${digest(bytes.subarray(header, header + rds.HEADER_BYTES))}`,
        ),
      ping: (sport) => events.push(`ping ${sport}`),
      data: (sport, dport, buffer, offset, length) => {
        const bytes = (buffer.iov[0] as Uint8Array).subarray(offset, offset + length);
        assert.equal(bytes.byteLength, length);
        events.push(`data ${sport}>${dport} ${length} ${digest(bytes)}`);
      },
      isFull: () => full.shift() ?? false,
      held: (deltaBytes) => {
        held += deltaBytes;
        assert.ok(held >= 0 && held <= 2 * CHUNK_BYTES + rds.MAX_PAYLOAD, `${held} bytes charged`);
      },
    },
    pool,
    releases,
    counters,
  );
  let sane = true;
  let at = 0;
  for (let i = 0; at < stream.length; i++) {
    const size = cuts.length === 0 ? stream.length : cuts[i % cuts.length]!;
    sane = receiver.feed(stream.subarray(at, at + size));
    at += size;
    if (!sane) break;
    if ((at + i) % 3 === 0) {
      // The lane has nothing to read: what is kept is charged, and little is kept for little.
      receiver.rest();
      const kept = pool.liveBytes - pool.cleanChunks.length * CHUNK_BYTES;
      assert.ok(kept <= held, `${kept} bytes kept, ${held} charged`);
      if (receiver.hasBegun) assert.ok(receiver.targets(true)[0]!.byteLength > 0);
    }
    assert.ok(receiver.partialBytes <= rds.MAX_PAYLOAD + rds.HEADER_BYTES, `${receiver.partialBytes} held`);
    const targets = receiver.targets();
    assert.ok(targets.length === 1 || targets.length === 2);
    for (const target of targets) assert.ok(target.byteLength > 0);
  }
  const nextSeq = receiver.rule.next;
  receiver.close();
  assert.ok(pool.mostBytes <= LIVE_BYTES_MAX, `${pool.mostBytes} bytes of buffers`);
  assert.equal(pool.liveBytes, pool.cleanChunks.length * CHUNK_BYTES);
  assert.equal(held, 0);
  return { events, sane, nextSeq, counters };
}

const u32 = fc.integer({ min: 0, max: 0xffffffff });
/** From single bytes to several chunks at once. */
const cuts = fc.array(
  fc.oneof(
    fc.integer({ min: 1, max: 100 }),
    fc.integer({ min: 100, max: 9000 }),
    fc.integer({ min: 9000, max: 300_000 }),
  ),
  { maxLength: 8, size: 'max' },
);
const port = fc.oneof(fc.integer({ min: 0, max: 3 }), fc.integer({ min: 0, max: 0xffff }));

interface Spec {
  seqHi: number;
  seqLo: number;
  length: number;
  from: number;
  to: number;
  flags: number;
}

const spec: fc.Arbitrary<Spec> = fc.record(
  {
    seqHi: fc.oneof(fc.constant(0), u32),
    seqLo: fc.oneof({ weight: 3, arbitrary: fc.integer({ min: 0, max: 20 }) }, fc.constant(0xffffffff), u32),
    length: fc.oneof(
      { weight: 4, arbitrary: fc.integer({ min: 0, max: 200 }) },
      { weight: 1, arbitrary: fc.constant(CONG_MAP_BYTES) },
      { weight: 1, arbitrary: fc.integer({ min: 16 * 1024 - 2, max: 16 * 1024 + 2 }) },
      { weight: 1, arbitrary: fc.integer({ min: 0, max: 150_000 }) },
    ),
    from: port,
    to: port,
    flags: fc.oneof(
      { weight: 4, arbitrary: fc.constantFrom(0, rds.RETRANSMITTED) },
      { weight: 1, arbitrary: fc.constant(rds.CONG_BITMAP) },
      { weight: 1, arbitrary: fc.integer({ min: 0, max: 255 }) },
    ),
  },
  { noNullPrototype: true },
);

function encode(specs: readonly Spec[]): Buffer {
  return Buffer.concat(
    specs.map(({ seqHi, seqLo, length, from, to, flags }, i) => {
      const out = Buffer.alloc(rds.HEADER_BYTES + length, i + 1);
      rds.encodeHeader(out, 0, seqHi, seqLo, length, from, to, flags);
      return out;
    }),
  );
}

/** The kernel's rules (rds_tcp_data_recv, rds_recv_incoming) with 64-bit integers, less the handling of 0 to 0. */
function model(stream: Buffer): { events: string[]; next: bigint; duplicates: number } {
  const events: string[] = [];
  let next = 0n;
  let duplicates = 0;
  for (const { bytes, payload } of splitMessages(stream).messages) {
    const { seqHi, seqLo, sport, dport, flags } = headers.decodeHeader(bytes, 0);
    const seq = (BigInt(seqHi) << 32n) | BigInt(seqLo);
    if (flags === rds.CONG_BITMAP) {
      if (payload.length === CONG_MAP_BYTES) events.push(`map ${digest(payload)}`);
      continue;
    }
    if (sport === 0 && dport === 0) continue;
    if (seq < next && (flags & rds.RETRANSMITTED) !== 0) {
      duplicates += 1;
      continue;
    }
    next = seq + 1n;
    if (dport !== 0 && !(sport === 0 && dport === 1)) {
      const shown = sport === 0 ? new Uint8Array() : payload;
      events.push(`data ${sport}>${dport} ${shown.length} ${digest(shown)}`);
    } else if (sport === 1 || dport === 1) {
      events.push(`probe ${dport === 0 ? 'ping' : 'pong'} ${digest(bytes.subarray(0, rds.HEADER_BYTES))}`);
    } else events.push(`ping ${sport}`);
  }
  return { events, next, duplicates };
}

test('arbitrary bytes are read the same way whatever the cuts', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 4000, size: 'max' }), cuts, (stream, sizes) => {
      assert.deepEqual(receive(stream, sizes), receive(stream, []));
    }),
    parameters,
  );
});

test('arbitrary headers, most of them of bounded length', () => {
  const header = fc.tuple(spec, fc.oneof({ weight: 5, arbitrary: fc.constant(null) }, u32));
  fc.assert(
    fc.property(fc.array(header, { maxLength: 12, size: 'max' }), cuts, (headers, sizes) => {
      const parts = headers.map(([fields, claimed]) => {
        const part = encode([fields]);
        // A length that has nothing to do with what follows.
        if (claimed !== null) part.writeUInt32BE(claimed, 16);
        return part;
      });
      const stream = Buffer.concat(parts);
      assert.deepEqual(receive(stream, sizes), receive(stream, []));
    }),
    parameters,
  );
});

test('well-formed streams follow the model', () => {
  fc.assert(
    fc.property(fc.array(spec, { maxLength: 20, size: 'max' }), cuts, (specs, sizes) => {
      const stream = encode(specs);
      const { events, next, duplicates } = model(stream);
      const got = receive(stream, sizes);
      assert.equal(got.sane, true);
      assert.deepEqual(got.events, events);
      assert.equal((BigInt(got.nextSeq.hi) << 32n) | BigInt(got.nextSeq.lo), BigInt.asUintN(64, next));
      assert.equal(got.counters.recv_drop_old_seq, duplicates);
      assert.equal(got.counters.recv_truncated, 0);
    }),
    parameters,
  );
});

test('well-formed streams with changes', () => {
  const change = fc.record(
    { at: fc.nat(), kind: fc.constantFrom('flip', 'cut', 'insert'), with: fc.uint8Array({ maxLength: 60 }) },
    { noNullPrototype: true },
  );
  const input = fc.tuple(
    fc.array(spec, { maxLength: 10, size: 'max' }),
    fc.array(change, { minLength: 1, maxLength: 5 }),
    cuts,
  );
  fc.assert(
    fc.property(input, ([specs, changes, sizes]) => {
      let stream = encode(specs);
      for (const { at, kind, with: bytes } of changes) {
        const where = stream.length === 0 ? 0 : at % stream.length;
        if (kind === 'flip') {
          if (stream.length > 0) stream[where]! ^= bytes[0] ?? 1;
          continue;
        }
        const behind = kind === 'cut' ? where + bytes.length : where;
        stream = Buffer.concat([
          stream.subarray(0, where),
          ...(kind === 'cut' ? [] : [bytes]),
          stream.subarray(behind),
        ]);
      }
      assert.deepEqual(receive(stream, sizes), receive(stream, []));
    }),
    parameters,
  );
});

test('a largest message is taken, one byte more is refused before anything is allocated for it', () => {
  const largest = encode([{ seqHi: 0, seqLo: 1, length: rds.MAX_PAYLOAD, from: 5, to: 6, flags: 0 }]);
  assert.equal(receive(largest, [60_000]).events.length, 1);
  const header = largest.subarray(0, rds.HEADER_BYTES);
  for (const length of [rds.MAX_PAYLOAD + 1, 0xffffffff]) {
    header.writeUInt32BE(length, 16);
    const { sane, events, counters } = receive(header, [1]);
    assert.deepEqual([sane, events.length, counters.recv_oversized], [false, 0, 1]);
  }
});
