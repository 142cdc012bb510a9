/**
 * The Wireshark dissector on captures made by hand, for what kernels never do and captures never catch: messages cut
 * anywhere, segments lost, repeated or out of order, captures that begin in the middle, headers that lie, and garbage.
 * What it reads of real captures is in wireshark-captures.lab.test.ts.
 */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import * as rds from '../../src/wire/rds.ts';
import { Random } from '../support/random.ts';
import * as headers from '../support/rds-headers.ts';
import { TcpCapture } from '../support/tcp-capture.ts';
import { type FieldRow, noTshark, Tshark } from '../support/tshark.ts';

const IN_ORDER = ['-o', 'tcp.reassemble_out_of_order:TRUE'];

interface Spec {
  seq?: number;
  sport?: number;
  dport?: number;
  flags?: number;
  payload?: Uint8Array;
  /** What the header claims. */
  length?: number;
  ack?: number;
  checksum?: number;
  exthdr?: readonly number[];
}

function message(spec: Spec): Uint8Array {
  const { payload = new Uint8Array(0), seq = 1, sport = 4000, dport = 5000, flags = 0 } = spec;
  const exthdr = new Uint8Array(rds.EXTHDR_BYTES);
  exthdr.set(spec.exthdr ?? []);
  const length = spec.length ?? payload.length;
  const { ack = 0, checksum = 0 } = spec;
  const header = { seqHi: 0, seqLo: seq, ackHi: 0, ackLo: ack, length, sport, dport, flags };
  return Buffer.concat([
    headers.encodeHeaderFull({ ...header, credit: 0, padding: 0, checksum, exthdr }),
    payload,
  ]);
}

function data(seq: number, bytes: number, fill = 0xa5): Uint8Array {
  return message({ seq, payload: new Uint8Array(bytes).fill(fill) });
}

const probe = message({ seq: 1, sport: 1, dport: 0, exthdr: [5, 0, 8, 6, 1, 2, 3, 4, 8, 0] });

function join(...parts: readonly Uint8Array[]): Buffer {
  return Buffer.concat(parts);
}

/** The pieces of `bytes` between `cuts`. */
function cut(bytes: Uint8Array, ...cuts: readonly number[]): Uint8Array[] {
  const ends = [...cuts, bytes.length];
  return ends.map((end, i) => bytes.subarray(i === 0 ? 0 : ends[i - 1], end));
}

describe('the Wireshark dissector, captures made by hand', { skip: noTshark(), timeout: 300_000 }, () => {
  let tshark: Tshark;
  before(() => {
    tshark = new Tshark();
  });
  after(() => tshark.close());

  /** `seq:len` of each message, by the client's port. */
  function messages(capture: TcpCapture, args: readonly string[] = []): Map<number, string[]> {
    const rows = tshark.fields(
      capture.file(),
      ['tcp.srcport', 'rds.seq', 'rds.len'],
      ['-Y', 'rds.seq', ...args],
    );
    const found = new Map<number, string[]>();
    for (const row of rows) {
      const port = Number(row['tcp.srcport']![0]);
      const texts = row['rds.seq']!.map((seq, i) => `${seq}:${row['rds.len']![i]}`);
      found.set(port, [...(found.get(port) ?? []), ...texts]);
    }
    return found;
  }

  /** The fields of each piece of stream, sent by the client of its own connection in one segment. */
  function each(
    pieces: readonly Uint8Array[],
    names: readonly string[],
    args: readonly string[] = [],
  ): FieldRow[] {
    const capture = new TcpCapture();
    for (const [i, piece] of pieces.entries()) capture.talk(40_000 + i).send('client', piece);
    const rows = tshark.fields(capture.file(), names, ['-Y', 'rds', ...args]);
    assert.equal(rows.length, pieces.length);
    return rows;
  }

  function one(bytes: Uint8Array, names: readonly string[]): FieldRow {
    return each([bytes], names)[0]!;
  }

  describe('reassembly', () => {
    const stream = join(probe, data(2, 100), data(3, 0), data(4, 70));
    const whole = ['1:0', '2:100', '3:0', '4:70'];

    test('a stream cut once, at every byte', () => {
      const capture = new TcpCapture();
      for (let at = 1; at < stream.length; at++) {
        capture.talk(20_000 + at).send('client', ...cut(stream, at));
      }
      for (const args of [[], ['-2']]) {
        const found = messages(capture, args);
        assert.equal(found.size, stream.length - 1);
        for (const [port, read] of found) assert.deepEqual(read, whole, `cut at ${port - 20_000}`);
      }
    });

    test('a stream in segments of 1, 2, 3, ... bytes', () => {
      const capture = new TcpCapture();
      for (let bytes = 1; bytes <= 64; bytes++) {
        const cuts = Array.from({ length: Math.ceil(stream.length / bytes) - 1 }, (_, i) => (i + 1) * bytes);
        capture.talk(20_000 + bytes).send('client', ...cut(stream, ...cuts));
      }
      const found = messages(capture);
      assert.equal(found.size, 64);
      for (const [port, read] of found) assert.deepEqual(read, whole, `${port - 20_000} bytes`);
    });

    test('1 MiB over many segments, and both directions between each other', () => {
      const capture = new TcpCapture();
      const talk = capture.talk(40_000);
      const large = join(data(1, rds.MAX_PAYLOAD), data(2, 10));
      for (let at = 0; at < large.length; at += 60_000) {
        talk.send('client', large.subarray(at, at + 60_000));
        talk.send('server', data(1 + at / 60_000, 20));
      }
      const found = messages(capture);
      assert.deepEqual(found.get(40_000), [`1:${rds.MAX_PAYLOAD}`, '2:10']);
      assert.equal(found.get(16_385)!.length, Math.ceil(large.length / 60_000));
    });

    test('segments in any order, with reordering switched on', () => {
      const random = new Random(1);
      const capture = new TcpCapture();
      for (let i = 0; i < 50; i++) {
        const talk = capture.talk(20_000 + i);
        const places = cut(stream, 30, 60, 110, 200, 250).map((piece) => ({
          piece,
          at: piece.byteOffset - stream.byteOffset,
        }));
        // The first segment stays the first: before it, TCP knows of no hole.
        const [first, ...others] = places;
        others.sort(() => random.next() - 0.5);
        for (const { at, piece } of [first!, ...others]) talk.place('client', at, piece);
      }
      const found = messages(capture, IN_ORDER);
      assert.equal(found.size, 50);
      for (const [port, read] of found) assert.deepEqual(read, whole, `run ${port - 20_000}`);
      // Without it Wireshark shows what it can; see tshark.run() for what it must not.
      assert.ok(messages(capture).size > 0);
    });

    test('segments that come again, whole or overlapping', () => {
      const capture = new TcpCapture();
      const again = capture.talk(40_000);
      const pieces = cut(stream, 30, 148, 196);
      again.send('client', pieces[0]!, pieces[1]!);
      again.place('client', 0, pieces[0]!);
      again.place('client', 30, pieces[1]!);
      again.send('client', pieces[2]!, pieces[3]!);
      again.place('client', 0, stream);
      const overlapping = capture.talk(40_001);
      overlapping.send('client', stream.subarray(0, 100));
      overlapping.place('client', 50, stream.subarray(50, 200));
      overlapping.place('client', 150, stream.subarray(150));
      const found = messages(capture, IN_ORDER);
      assert.deepEqual(found.get(40_000), whole);
      assert.deepEqual(found.get(40_001), whole);
    });

    test('packets cut by the capture, and reassembly switched off', () => {
      const short = new TcpCapture(54 + 48 + 20);
      short.talk(40_000).send('client', data(1, 1000), join(data(2, 0), data(3, 5)), data(4, 1000));
      const read = messages(short).get(40_000)!;
      assert.deepEqual(read, ['1:1000', '2:0', '4:1000']);
      assert.match(tshark.run(short.file(), ['-V']), /20 of 1000 payload bytes are here/);
      const capture = new TcpCapture();
      capture.talk(40_000).send('client', ...cut(join(data(1, 1000), data(2, 10)), 20, 500), data(3, 10));
      const off = messages(capture, ['-o', 'tcp.desegment_tcp_streams:FALSE']).get(40_000)!;
      assert.deepEqual(off, ['2:10', '3:10']);
    });
  });

  describe('finding the way back', () => {
    test('a capture that begins in the middle of a payload', () => {
      const capture = new TcpCapture();
      for (const [i, fill] of [0, 0xff, 0x41].entries()) {
        const talk = capture.talk(40_000 + i, { syn: false });
        const rest = new Uint8Array(500 + i).fill(fill);
        talk.send('client', rest, join(rest, data(7, 100), data(8, 30)), data(9, 10));
      }
      const found = messages(capture);
      assert.equal(found.size, 3);
      for (const read of found.values()) assert.deepEqual(read, ['7:100', '8:30', '9:10']);
      const rows = tshark.fields(
        capture.file(),
        ['tcp.srcport', 'rds.unread'],
        ['-Y', 'rds.expert.out_of_step'],
      );
      assert.deepEqual(
        rows.map((row) => row['rds.unread']!.map((bytes) => bytes.length / 2)),
        [[500], [500], [501], [501], [502], [502]],
      );
    });

    test('a capture that begins on a message', () => {
      const capture = new TcpCapture();
      capture.talk(40_000, { syn: false }).send('client', ...cut(join(data(7, 100), data(8, 30)), 120, 150));
      assert.deepEqual(messages(capture).get(40_000), ['7:100', '8:30']);
    });

    test('a hole in the middle of a message', () => {
      const capture = new TcpCapture();
      const talk = capture.talk(40_000);
      talk.send('client', data(1, 10), data(2, 5000).subarray(0, 1000));
      talk.lose('client', 2000);
      talk.send('client', data(2, 5000).subarray(3000), data(3, 10), join(data(4, 10), data(5, 10)));
      const read = messages(capture).get(40_000)!;
      assert.deepEqual(read.slice(0, 1), ['1:10']);
      assert.deepEqual(read.slice(-2), ['4:10', '5:10']);
    });

    test('a hole over the end of a message, and zeros behind it, which would make headers', () => {
      const capture = new TcpCapture();
      const talk = capture.talk(40_000);
      talk.send('client', join(data(1, 10), data(2, 1000, 0).subarray(0, 500)));
      talk.lose('client', 1000);
      const third = data(3, 1000, 0).subarray(500);
      talk.send('client', third, join(data(4, 10), data(5, 10)), data(6, 10));
      assert.deepEqual(messages(capture).get(40_000), ['1:10', '4:10', '5:10', '6:10']);
    });

    test('what stands where a header must be and is none', () => {
      const garbage = Buffer.alloc(300, 0xee);
      const read = one(join(data(1, 10), garbage, data(2, 10), data(3, 0)), ['rds.seq', 'rds.unread']);
      assert.deepEqual(read['rds.seq'], ['1', '2', '3']);
      assert.deepEqual(read['rds.unread'], [garbage.toString('hex')]);
    });
  });

  describe('headers that lie', () => {
    test('more than 1 MiB is an error, and nobody waits for it', () => {
      const capture = new TcpCapture();
      const talk = capture.talk(40_000);
      talk.send('client', join(data(1, 10), message({ seq: 2, length: rds.MAX_PAYLOAD + 1 })));
      talk.send('client', data(3, 10), data(4, 10));
      talk.send('server', data(1, 10));
      const names = ['frame.number', 'rds.seq', 'rds.expert.oversized', 'tcp.reassembled.length'];
      const rows = tshark.fields(capture.file(), names, ['-Y', 'rds']);
      assert.deepEqual(
        rows.map((row) => row['rds.seq']),
        [['1', '2'], [], [], ['1']],
      );
      assert.deepEqual(
        rows.map((row) => row['rds.expert.oversized']!.length),
        [1, 0, 0, 0],
      );
      for (const row of rows) assert.deepEqual(row['tcp.reassembled.length'], []);
      assert.match(tshark.run(capture.file(), []), /\[given up: 58 bytes\]/);
      assert.equal(messages(capture, ['-2']).get(40_000)!.length, 2);
    });

    test('exactly 1 MiB is waited for, 4 GiB is not', () => {
      const capture = new TcpCapture();
      capture.talk(40_000).send('client', message({ length: rds.MAX_PAYLOAD }));
      capture.talk(40_001).send('client', message({ length: 0xffff_ffff }));
      const found = messages(capture);
      assert.equal(found.has(40_000), false);
      assert.deepEqual(found.get(40_001), ['1:4294967295']);
    });

    test('a congestion map of another length', () => {
      const map = message({ seq: 0, sport: 0, dport: 0, flags: 1, payload: new Uint8Array(100).fill(1) });
      const row = one(join(map, data(1, 5)), [
        'rds.kind',
        'rds.seq',
        'rds.expert.cong_length',
        'rds.cong.port',
      ]);
      assert.deepEqual(row['rds.kind'], ['congestion', 'data']);
      assert.equal(row['rds.expert.cong_length']!.length, 1);
      assert.deepEqual(row['rds.cong.port'], []);
      const empty = message({ seq: 0, sport: 0, dport: 0, flags: 1 });
      assert.equal(one(empty, ['rds.expert.cong_length'])['rds.expert.cong_length']!.length, 1);
    });

    test('a map that is full is counted whole and listed in part', () => {
      const map = message({ seq: 0, sport: 0, dport: 0, flags: 1, payload: new Uint8Array(8192).fill(255) });
      const row = one(map, ['rds.cong.count', 'rds.cong.port', 'rds.expert.cong_length']);
      assert.deepEqual(row['rds.cong.count'], ['65536']);
      assert.deepEqual(
        row['rds.cong.port'],
        Array.from({ length: 64 }, (_, port) => String(port)),
      );
      assert.deepEqual(row['rds.expert.cong_length'], []);
    });

    test('extension headers', () => {
      const names = ['rds.ext.type', 'rds.ext.npaths', 'rds.ext.rdma_rkey', 'rds.ext.csum'];
      const cases: [exthdr: number[], read: string, complaints: number][] = [
        [[5, 0, 3], '5 3 - -', 0],
        [[12, 5, 0, 3], '12,5 3 - -', 1],
        [[200, 5, 0, 3], '200 - - -', 1],
        // SPORT_IDX ends nothing for us; for older kernels its byte must be 0.
        [[8, 0, 5, 0, 3], '8,5 3 - -', 0],
        [[8, 5, 0, 3], '8 - - -', 1],
        // The last one would need one byte more than the area has.
        [[1, 0, 0, 0, 1, 3, 0, 0, 0, 7, 0, 0, 0, 9, 5, 0], '1,3,5 - 0x00000007 -', 1],
        [[7, 0, 0, 1, 0, 9, 0xde, 0xad, 0xbe, 0xef, 1], '7,9 - - 0xdeadbeef', 0],
      ];
      const pieces = cases.map(([exthdr]) => message({ sport: 1, dport: 0, exthdr }));
      for (const [i, row] of each(pieces, [...names, 'rds.expert.exthdr']).entries()) {
        const [exthdr, read, complaints] = cases[i]!;
        assert.equal(names.map((name) => row[name]!.join() || '-').join(' '), read, exthdr.join());
        assert.equal(row['rds.expert.exthdr']!.length, complaints, exthdr.join());
      }
    });

    test('checksums', () => {
      const right = Buffer.from(message({ seq: 5, sport: 4001, dport: 4002 }));
      right.writeUInt16BE(headers.headerChecksum(right, 0), 30);
      const wrong = Buffer.from(right);
      wrong[31]! ^= 1;
      const row = one(join(right, data(6, 3), wrong), ['rds.csum', 'rds.expert.csum']);
      assert.equal(row['rds.csum']!.length, 3);
      assert.equal(row['rds.expert.csum']!.length, 1);
      assert.equal(one(right, ['rds.expert.csum'])['rds.expert.csum']!.length, 0);
    });

    test('numbers that do not rise, per connection and direction', () => {
      const capture = new TcpCapture();
      const map = message({ seq: 0, sport: 0, dport: 0, flags: 1, payload: new Uint8Array(8192) });
      const nothing = message({ seq: 0, sport: 0, dport: 0 });
      const [a, b] = [capture.talk(40_000), capture.talk(40_001)];
      a.send('client', join(data(5, 0), map, nothing, data(9, 0)), join(data(9, 1), data(8, 0)), data(10, 0));
      a.send('server', data(1, 0));
      b.send('client', data(4, 0));
      for (const args of [[], ['-2']]) {
        const rows = tshark.fields(capture.file(), ['rds.seq'], ['-Y', 'rds.expert.seq', ...args]);
        assert.deepEqual(rows, [{ 'rds.seq': ['9', '8'] }]);
      }
      const text = tshark.run(capture.file(), ['-V']);
      assert.match(text, /Sequence number 9 comes after 9/);
      assert.match(text, /Sequence number 8 comes after 9/);
    });
  });

  describe('what is shown', () => {
    test('kinds', () => {
      const kinds = [
        [4000, 5000, 0, 'data'],
        [4000, 0, 0, 'ping'],
        [0, 4000, 0, 'pong'],
        [1, 0, 0, 'probe-ping'],
        [0, 1, 0, 'probe-pong'],
        [0, 0, 0, 'ignored'],
        [0, 0, 5, 'ignored'],
        [4000, 5000, 1, 'congestion'],
      ] as const;
      const all = kinds.map(([sport, dport, flags], i) => message({ seq: i + 1, sport, dport, flags }));
      const row = one(join(...all), ['rds.kind']);
      assert.deepEqual(
        row['rds.kind'],
        kinds.map(([, , , kind]) => kind),
      );
      for (const [i, bytes] of all.entries()) assert.equal(rds.classify(bytes, 0), kinds[i]![3]);
    });

    test('flags, and the mark of what was sent before', () => {
      const row = one(message({ flags: 0x3e }), [
        'rds.flags',
        'rds.flags.cong_bitmap',
        'rds.flags.ack_required',
        'rds.flags.exthdr_extension',
        'rds.expert.retransmitted',
      ]);
      assert.deepEqual(Object.values(row).map(String), ['0x3e', '0', '1', '1', '1']);
    });

    test('the lane, and whether the dialler says that it is one', () => {
      const capture = new TcpCapture();
      capture.talk(40_003).send('client', data(1, 0), join(probe, data(2, 0)));
      const rows = tshark.fields(capture.file(), ['rds.lane', 'rds.from_dialler'], ['-Y', 'rds']);
      assert.deepEqual(rows, [
        { 'rds.lane': ['3'], 'rds.from_dialler': ['1'] },
        { 'rds.lane': ['3', '3'], 'rds.from_dialler': ['1', '1'] },
      ]);
      const text = tshark.run(capture.file(), ['-V']);
      assert.equal(text.match(/a guess, its SPORT_IDX was not seen/g)?.length, 1);
    });

    test('messages of rds-stress, unless told otherwise or anything is not as it must be', () => {
      const stress = Buffer.alloc(64);
      stress.set([
        0,
        0,
        0,
        7,
        10,
        0,
        0,
        1,
        10,
        0,
        0,
        2,
        4000 >> 8,
        4000 & 255,
        5000 >> 8,
        5000 & 255,
        0,
        3,
        1,
      ]);
      const read = (payloads: readonly Uint8Array[], args: readonly string[] = []): string[] =>
        each(
          payloads.map((payload) => message({ payload })),
          ['rds.stress.index'],
          args,
        ).map((row) => row['rds.stress.index']!.join());
      const others = [4, 11, 12, 14, 18, 19, 30, 59, 61, 62].map((at) => {
        const other = Buffer.from(stress);
        other[at]! ^= 0x80;
        return other;
      });
      assert.deepEqual(read([stress, stress.subarray(0, 63), stress.subarray(0, 62)]), ['3', '3', '']);
      assert.deepEqual(
        read(others),
        others.map(() => ''),
      );
      assert.deepEqual(read([stress], ['-o', 'rds.stress:FALSE']), ['']);
    });

    test("a program's own dissector, by the RDS port of either end", (t) => {
      const other = new Tshark();
      t.after(() => other.close());
      other.script(
        'greeting.lua',
        `local greeting = Proto("greeting", "A program's messages")
         local text = ProtoField.string("greeting.text", "Text")
         greeting.fields = { text }
         function greeting.dissector(tvb, pinfo, tree) tree:add(greeting, tvb()):add(text, tvb()) return tvb:len() end
         DissectorTable.get("rds.port"):add(4001, greeting)`,
      );
      const capture = new TcpCapture();
      const hello = { payload: Buffer.from('hello') };
      const ends = [{ sport: 4001 }, { dport: 4001 }, { dport: 4002 }];
      capture
        .talk(40_000)
        .send('client', join(...ends.map((end, i) => message({ ...hello, ...end, seq: i + 1 }))));
      const [row] = other.fields(capture.file(), ['greeting.text', 'rds.payload'], ['-Y', 'rds']);
      assert.deepEqual(row, {
        'greeting.text': ['hello', 'hello'],
        'rds.payload': [hello.payload.toString('hex')],
      });
    });

    test('another port, when told', () => {
      const capture = new TcpCapture();
      capture.talk(40_000, { serverPort: 16_390 }).send('client', data(1, 10));
      assert.equal(messages(capture).size, 0);
      assert.deepEqual(messages(capture, ['-o', 'rds.port:16390']).get(40_000), ['1:10']);
    });

    test('the info column names eight messages of a packet', () => {
      const capture = new TcpCapture();
      const many = Array.from({ length: 12 }, (_, i) => data(i + 1, 1));
      capture.talk(40_000).send('client', ...cut(join(...many), 20));
      const line = tshark.run(capture.file(), []).split('\n').at(-2)!;
      assert.match(line, / RDS \d+ data 4000 > 5000 Seq=1 Len=1; .*Seq=8 Len=1; \.\.\.$/);
    });
  });

  describe('garbage', () => {
    const passes = [[], ['-2'], ['-V'], ['-o', 'tcp.desegment_tcp_streams:FALSE'], IN_ORDER];

    test('random bytes, with and without a SYN', () => {
      const random = new Random(2);
      const capture = new TcpCapture();
      for (let i = 0; i < 60; i++) {
        const talk = capture.talk(20_000 + i, { syn: i % 2 === 0 });
        for (let segments = 0; segments < 6; segments++) {
          const bytes = Buffer.alloc(1 + random.below(1500));
          for (let at = 0; at < bytes.length; at++) bytes[at] = random.chance(0.5) ? 0 : random.below(256);
          talk.send('client', bytes);
        }
        talk.finish('client');
      }
      for (const args of passes) assert.notEqual(tshark.run(capture.file(), args), '');
    });

    test('messages with bytes changed, segments lost, and packets cut', () => {
      const random = new Random(3);
      for (const snapBytes of [65_535, 110]) {
        const capture = new TcpCapture(snapBytes);
        for (let i = 0; i < 60; i++) {
          const talk = capture.talk(20_000 + i, { syn: random.chance(0.7) });
          for (let seq = 1; seq < 12; seq++) {
            const bytes = Buffer.from(data(seq, random.below(200), 0));
            if (random.chance(0.5)) bytes[random.below(bytes.length)] = random.below(256);
            if (random.chance(0.1)) talk.lose('client', bytes.length);
            else talk.send('client', ...cut(bytes, random.below(bytes.length)));
          }
        }
        for (const args of passes) assert.notEqual(tshark.run(capture.file(), args), '');
      }
    });
  });
});
