/**
 * The capture reader itself: file formats, and putting streams together from segments in any order.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import fc from 'fast-check';
import { type Connection, readConnections, readPackets, type Side } from './pcap.ts';

const seed = process.env.FC_SEED;
const parameters = { numRuns: 300, ...(seed === undefined ? {} : { seed: Number(seed) }) };

const FIN = 0x01;
const SYN = 0x02;
const RST = 0x04;
const ACK = 0x10;

interface SegmentSpec {
  from?: Side;
  seq: number;
  flags?: number;
  text?: string;
  clientPort?: number;
  ipv6?: boolean;
}

/** One Ethernet frame, padded to the minimum of 60 bytes as short ones are on a wire. */
function frameOf(spec: SegmentSpec): Uint8Array {
  const { from = 'client', seq, flags = ACK, text = '', clientPort = 40000, ipv6 = false } = spec;
  const ipBytes = ipv6 ? 40 : 20;
  const frame = Buffer.alloc(Math.max(60, 14 + ipBytes + 20 + text.length), 0xaa);
  const ends = from === 'client' ? [1, 2] : [2, 1];
  const ports = from === 'client' ? [clientPort, 16385] : [16385, clientPort];
  frame.fill(0, 0, 14 + ipBytes + 20);
  frame.writeUInt16BE(ipv6 ? 0x86dd : 0x0800, 12);
  if (ipv6) {
    frame[14] = 0x60;
    frame.writeUInt16BE(20 + text.length, 18);
    frame[20] = 6;
    frame[37] = ends[0]!;
    frame[53] = ends[1]!;
  } else {
    frame[14] = 0x45;
    frame.writeUInt16BE(40 + text.length, 16);
    frame[23] = 6;
    frame.set([10, 0, 0, ends[0]!, 10, 0, 0, ends[1]!], 26);
  }
  const tcp = 14 + ipBytes;
  frame.writeUInt16BE(ports[0]!, tcp);
  frame.writeUInt16BE(ports[1]!, tcp + 2);
  frame.writeUInt32BE(seq >>> 0, tcp + 4);
  frame[tcp + 12] = 0x50;
  frame[tcp + 13] = flags;
  frame.write(text, tcp + 20, 'latin1');
  return frame;
}

function pcapOf(
  frames: readonly Uint8Array[],
  { littleEndian = true, nanoseconds = false, linkType = 1, cutTo = 65535 } = {},
): Uint8Array {
  const put = (values: number[]): Uint8Array => {
    const view = new DataView(new ArrayBuffer(values.length * 4));
    for (const [i, value] of values.entries()) view.setUint32(i * 4, value, littleEndian);
    return new Uint8Array(view.buffer);
  };
  const version = littleEndian ? 0x00040002 : 0x00020004;
  const parts = [put([nanoseconds ? 0xa1b23c4d : 0xa1b2c3d4, version, 0, 0, 65535, linkType])];
  for (const [i, frame] of frames.entries()) {
    const captured = Math.min(frame.length, cutTo);
    parts.push(put([1000, nanoseconds ? i * 1500 : i, captured, frame.length]), frame.subarray(0, captured));
  }
  return Buffer.concat(parts);
}

function connect(specs: SegmentSpec[]): Connection[] {
  return readConnections(pcapOf(specs.map(frameOf)));
}

function only(specs: SegmentSpec[]): Connection {
  const connections = connect(specs);
  assert.equal(connections.length, 1);
  return connections[0]!;
}

function textOf(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('latin1');
}

/** Events as short text: `c data ab`, `s fin`. */
function eventsOf({ events }: Connection): string[] {
  return events.map(({ from, kind, bytes }) => `${from[0]} ${kind} ${textOf(bytes)}`.trimEnd());
}

describe('file format', () => {
  for (const littleEndian of [true, false]) {
    for (const nanoseconds of [true, false]) {
      test(`${littleEndian ? 'little' : 'big'}-endian, ${nanoseconds ? 'nano' : 'micro'}seconds`, () => {
        const frames = [frameOf({ seq: 1, text: 'ab' }), frameOf({ seq: 3, text: 'c' })];
        const packets = readPackets(pcapOf(frames, { littleEndian, nanoseconds }));
        assert.deepEqual(
          packets.map(({ frame }) => Buffer.from(frame)),
          frames,
        );
        assert.deepEqual(
          packets.map(({ timeUs }) => timeUs),
          [1e9, 1e9 + (nanoseconds ? 1.5 : 1)],
        );
      });
    }
  }

  test('other files and other links are refused', () => {
    assert.throws(() => readPackets(new Uint8Array(24)), /not a classic pcap/);
    assert.throws(() => readPackets(pcapOf([], { linkType: 113 })), /link type 113/);
  });

  test('a record cut by the end of the file is left out', () => {
    const file = pcapOf([frameOf({ seq: 1 }), frameOf({ seq: 1 })]);
    assert.equal(readPackets(file.subarray(0, file.length - 1)).length, 1);
    assert.equal(readPackets(file.subarray(0, 30)).length, 0);
  });
});

describe('streams', () => {
  test('a whole connection', () => {
    const connection = only([
      { seq: 100, flags: SYN },
      { seq: 100, flags: SYN },
      { from: 'server', seq: 900, flags: SYN | ACK },
      { seq: 101 },
      { seq: 101, text: 'abc' },
      { from: 'server', seq: 901, text: 'xy' },
      { seq: 104, flags: ACK | FIN, text: 'd' },
      { from: 'server', seq: 903, flags: ACK | FIN },
      { seq: 104, flags: ACK | FIN, text: 'd' },
    ]);
    assert.deepEqual(
      [connection.client, connection.server, connection.sawSyn, connection.resetBy],
      ['10.0.0.1:40000', '10.0.0.2:16385', true, undefined],
    );
    assert.deepEqual(eventsOf(connection), [
      'c syn',
      's syn',
      'c data abc',
      's data xy',
      'c data d',
      'c fin',
      's fin',
    ]);
    assert.equal(textOf(connection.directions.client.bytes), 'abcd');
    assert.equal(connection.directions.client.complete, true);
    assert.equal(connection.directions.server.complete, true);
  });

  test('early, repeated and overlapping segments, and keepalive probes', () => {
    const connection = only([
      { seq: 0, flags: SYN },
      { seq: 4, text: 'de' },
      { seq: 6, flags: ACK | FIN },
      { seq: 1, text: 'ab' },
      { seq: 1, text: 'ab' },
      { seq: 0 },
      { seq: 2, text: '?' },
      { seq: 2, text: 'bcd' },
    ]);
    assert.deepEqual(eventsOf(connection), ['c syn', 'c data ab', 'c data cd', 'c data e', 'c fin']);
  });

  test('a capture that starts in the middle begins with the first data it sees', () => {
    const connection = only([
      { from: 'server', seq: 500 },
      { from: 'server', seq: 499 },
      { from: 'server', seq: 500, text: 'xy' },
      { from: 'server', seq: 490, text: 'old stuff!xyz' },
      { seq: 7, text: 'a' },
    ]);
    assert.equal(connection.client, '10.0.0.1:40000');
    assert.equal(connection.sawSyn, false);
    assert.deepEqual(eventsOf(connection), ['s data xy', 's data z', 'c data a']);
    assert.equal(connection.directions.server.complete, false);
  });

  test('sequence numbers wrap', () => {
    const connection = only([
      { seq: 0xfffffffd, flags: SYN },
      { seq: 1, text: 'de' },
      { seq: 0xfffffffe, text: 'abc' },
    ]);
    assert.equal(textOf(connection.directions.client.bytes), 'abcde');
  });

  test('what lies behind a hole is left out and said so', () => {
    const cut = pcapOf([frameOf({ seq: 0, flags: SYN }), frameOf({ seq: 1, text: 'a'.repeat(100) })], {
      cutTo: 94,
    });
    assert.equal(readConnections(cut)[0]!.directions.client.bytes.length, 40);
    const { directions } = only([
      { seq: 0, flags: SYN },
      { seq: 1, text: 'a' },
      { seq: 3, text: 'c' },
      { seq: 4, flags: ACK | FIN },
    ]);
    assert.equal(textOf(directions.client.bytes), 'a');
    assert.deepEqual([directions.client.hasGap, directions.client.sawFin], [true, false]);
    assert.equal(directions.server.hasGap, false);
  });

  test('a reset, and the ports used again', () => {
    const [first, second] = connect([
      { seq: 100, flags: SYN },
      { seq: 101, text: 'a' },
      { from: 'server', seq: 5, flags: RST },
      { from: 'server', seq: 5, flags: RST },
      { seq: 7000, flags: SYN },
      { seq: 7001, text: 'b' },
    ]);
    assert.deepEqual(eventsOf(first!), ['c syn', 'c data a', 's rst']);
    assert.equal(first!.resetBy, 'server');
    assert.deepEqual(eventsOf(second!), ['c syn', 'c data b']);
  });

  test('connections are told apart; other frames are skipped', () => {
    const arp = new Uint8Array(60);
    arp.set([0x08, 0x06], 12);
    const udp = frameOf({ seq: 1, text: 'u' });
    udp[23] = 17;
    const fragment = frameOf({ seq: 1, text: 'f' });
    fragment[20] = 0x20;
    const frames = [
      arp,
      udp,
      fragment,
      new Uint8Array(5),
      frameOf({ seq: 1, text: 'a', clientPort: 40001 }),
      frameOf({ seq: 1, text: 'b', ipv6: true }),
    ];
    assert.deepEqual(
      readConnections(pcapOf(frames)).map(({ client, directions }) => [
        client,
        textOf(directions.client.bytes),
      ]),
      [
        ['10.0.0.1:40001', 'a'],
        ['[0:0:0:0:0:0:0:1]:40000', 'b'],
      ],
    );
  });

  test('any cover of a stream by segments in any order gives the stream', () => {
    const text = 'The quick brown fox jumps over the lazy dog';
    const pieces = fc.array(fc.tuple(fc.nat(text.length - 1), fc.nat(12)), { maxLength: 30 });
    const isn = fc.integer({ min: 0, max: 0xffffffff });
    fc.assert(
      fc.property(pieces, isn, fc.infiniteStream(fc.nat(1000)), (some, start, order) => {
        const cover = Array.from({ length: Math.ceil(text.length / 5) }, (_, i): [number, number] => [
          i * 5,
          5,
        ]);
        const segments = [...some, ...cover]
          .map(([at, length]) => ({ seq: start + 1 + at, text: text.slice(at, at + length) }))
          .map((segment) => ({ segment, key: order.next().value }))
          .sort((a, b) => a.key - b.key)
          .map(({ segment }) => segment);
        const connection = only([{ seq: start, flags: SYN }, ...segments]);
        assert.equal(textOf(connection.directions.client.bytes), text);
        assert.equal(connection.directions.client.hasGap, false);
      }),
      parameters,
    );
  });
});
