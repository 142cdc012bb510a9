/**
 * The codecs against captures of real kernels (Linux 6.1 at 10.77.0.1 and 10.77.0.2, Linux 7.2 at 10.76.255.1): every
 * message decodes, and what the encoders make of the decoded fields is the captured message, byte for byte. The counts
 * are asserted, so a reader that found nothing would not pass.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import * as rds from '../../src/wire/rds.ts';
import { CONG_MAP_BYTES, createMap, setPort } from '../../src/wire/rds-congestion.ts';
import { encodeExtensions, parseExtensions } from '../../src/wire/rds-exthdr.ts';
import { type Connection, readConnections, type Side } from '../support/pcap.ts';
import * as headers from '../support/rds-headers.ts';
import { splitMessages, type WireMessage } from '../support/rds-messages.ts';
import { listVectors, readVector } from '../support/vectors.ts';

interface Counts {
  connections: number;
  messages: number;
  /** Directions whose last message was cut by the end of the capture. */
  cut: number;
  congestion: number;
  data: number;
  ping: number;
  pong: number;
  'probe-ping': number;
  'probe-pong': number;
  ignored: number;
  retransmitted: number;
}

const none: Counts = {
  connections: 0,
  messages: 0,
  cut: 0,
  congestion: 0,
  data: 0,
  ping: 0,
  pong: 0,
  'probe-ping': 0,
  'probe-pong': 0,
  ignored: 0,
  retransmitted: 0,
};

const probed = { 'probe-ping': 2, 'probe-pong': 2 };

const expected: Record<string, Partial<Counts>> = {
  '01-rds-ping-linux61.pcap': { connections: 8, messages: 14, congestion: 4, ping: 3, pong: 3, ...probed },
  '02-rds-stress-q64-a64-linux61.pcap': { connections: 8, messages: 417, data: 417 },
  '03-rds-stress-8k-linux61.pcap': { connections: 7, messages: 63, data: 63 },
  '04-rds-stress-1m-linux61.pcap': { connections: 8, messages: 2, data: 2, cut: 1 },
  '05-congestion-linux61.pcap': { connections: 8, messages: 5206, congestion: 23, data: 5183 },
  '06-reconnect-linux61.pcap': { connections: 16, messages: 13, congestion: 5, ping: 4, pong: 4 },
  '07-peer-reboot-linux61.pcap': {
    connections: 10,
    messages: 16,
    congestion: 4,
    ping: 8,
    pong: 2,
    'probe-ping': 1,
    'probe-pong': 1,
    retransmitted: 1,
  },
  '08-rds-ping-linux72-dials-linux61.pcap': {
    connections: 14,
    messages: 21,
    congestion: 11,
    ping: 3,
    pong: 3,
    ...probed,
  },
  '09-rds-stress-linux72-dials-linux61.pcap': { connections: 8, messages: 281, data: 281 },
};

interface Stream {
  connection: Connection;
  side: Side;
  messages: WireMessage[];
  rest: Uint8Array;
}

const captures = new Map<string, Connection[]>();

function connectionsOf(name: string): Connection[] {
  let connections = captures.get(name);
  if (connections === undefined) {
    connections = readConnections(readVector(`rds/${name}`));
    captures.set(name, connections);
  }
  return connections;
}

function streamsOf(name: string): Stream[] {
  return connectionsOf(name).flatMap((connection) =>
    (['client', 'server'] as const).map((side) => ({
      connection,
      side,
      ...splitMessages(connection.directions[side].bytes),
    })),
  );
}

function countsOf(name: string): Counts {
  const counts = { ...none, connections: connectionsOf(name).length };
  for (const { messages, rest } of streamsOf(name)) {
    if (rest.length > 0) counts.cut++;
    for (const { bytes } of messages) {
      counts.messages++;
      counts[rds.classify(bytes, 0)]++;
      if ((rds.flags(bytes, 0) & rds.RETRANSMITTED) !== 0) counts.retransmitted++;
    }
  }
  return counts;
}

/** The message made again by the encoders a sender uses, from what the accessors and parsers read. */
function rebuild({ bytes, payload }: WireMessage): Uint8Array {
  const out = new Uint8Array(bytes.length).fill(0xee);
  rds.encodeHeader(
    out,
    0,
    rds.seqHi(bytes, 0),
    rds.seqLo(bytes, 0),
    rds.payloadLength(bytes, 0),
    rds.sport(bytes, 0),
    rds.dport(bytes, 0),
    rds.flags(bytes, 0),
  );
  const { unknownTypes, ...extensions } = parseExtensions(bytes, rds.EXTHDR_OFFSET);
  assert.deepEqual(unknownTypes, []);
  encodeExtensions(out, rds.EXTHDR_OFFSET, extensions);
  out.set(rds.classify(bytes, 0) === 'congestion' ? rebuildMap(payload) : payload, rds.HEADER_BYTES);
  return out;
}

function rebuildMap(payload: Uint8Array): Uint8Array {
  assert.equal(payload.length, CONG_MAP_BYTES);
  const map = createMap();
  for (const port of headers.congestedPorts(payload)) setPort(map, port);
  return map;
}

function seqLosOf(messages: WireMessage[]): number[] {
  return messages
    .filter(({ bytes }) => rds.classify(bytes, 0) !== 'congestion')
    .map(({ bytes }) => rds.seqLo(bytes, 0));
}

function lane(name: string, clientPort: number): Connection {
  const found = connectionsOf(name).find(({ client }) => client.endsWith(`:${clientPort}`));
  assert.ok(found, `no connection from port ${clientPort}`);
  return found;
}

test('every capture is known to these tests', () => {
  assert.deepEqual(
    listVectors('rds').filter((name) => name.endsWith('.pcap')),
    Object.keys(expected),
  );
});

for (const [name, counts] of Object.entries(expected)) {
  describe(name, () => {
    test('has the messages it has', () => {
      assert.deepEqual(countsOf(name), { ...none, ...counts });
    });

    test('every message is encoded again byte for byte', () => {
      for (const { messages, rest, connection, side } of streamsOf(name)) {
        for (const message of messages) {
          const { bytes } = message;
          assert.deepEqual(
            headers.encodeHeaderFull(headers.decodeHeader(bytes, 0)),
            bytes.slice(0, rds.HEADER_BYTES),
          );
          assert.ok(Buffer.from(rebuild(message)).equals(bytes), `${connection.client} ${side}`);
          assert.ok(rds.payloadLength(bytes, 0) <= rds.MAX_PAYLOAD);
        }
        if (rest.length >= rds.HEADER_BYTES) assert.ok(rds.payloadLength(rest, 0) <= rds.MAX_PAYLOAD);
      }
    });

    test('no acknowledgement, credit, padding, checksum or ACK_REQUIRED is ever sent', () => {
      for (const { messages } of streamsOf(name)) {
        for (const { bytes } of messages) {
          const { ackHi, ackLo, credit, padding, checksum, flags } = headers.decodeHeader(bytes, 0);
          assert.deepEqual({ ackHi, ackLo, credit, padding, checksum }, unused);
          assert.equal(flags & headers.ACK_REQUIRED, 0);
        }
      }
    });

    test('within one connection sequence numbers rise, and maps carry none', () => {
      for (const { messages } of streamsOf(name)) {
        let last = 0;
        for (const { bytes } of messages) {
          assert.equal(rds.seqHi(bytes, 0), 0);
          if (rds.classify(bytes, 0) === 'congestion') {
            assert.equal(rds.seqLo(bytes, 0), 0);
            continue;
          }
          assert.ok(rds.compareSeq(0, last, 0, rds.seqLo(bytes, 0)) < 0);
          last = rds.seqLo(bytes, 0);
        }
      }
    });

    test('after a SYN, maps come before anything else', () => {
      for (const { messages, connection, side } of streamsOf(name)) {
        if (!connection.directions[side].sawSyn) continue;
        const kinds = messages.map(({ bytes }) => rds.classify(bytes, 0));
        const first = kinds.findIndex((kind) => kind !== 'congestion');
        if (first >= 0) assert.ok(!kinds.slice(first).includes('congestion'), kinds.join());
      }
    });

    test('the streams have no holes, and their events are the streams', () => {
      for (const { directions, events } of connectionsOf(name)) {
        for (const side of ['client', 'server'] as const) {
          assert.equal(directions[side].hasGap, false);
          const data = events.filter(({ from, kind }) => from === side && kind === 'data');
          const joined = Buffer.concat(data.map(({ bytes }) => bytes));
          assert.ok(joined.equals(directions[side].bytes));
        }
      }
    });
  });
}

const unused = { ackHi: 0, ackLo: 0, credit: 0, padding: 0, checksum: 0 };

describe('what kernels do', () => {
  test('6.1 begins its first lane with an 8240-byte map in both directions, first probe number 1', () => {
    const { directions } = lane('01-rds-ping-linux61.pcap', 59649);
    for (const side of ['client', 'server'] as const) {
      const [map, ping, pong] = splitMessages(directions[side].bytes).messages;
      assert.equal(map!.bytes.length, 8240);
      assert.equal(rds.classify(map!.bytes, 0), 'congestion');
      assert.equal(rds.classify(ping!.bytes, 0), 'probe-ping');
      assert.equal(rds.classify(pong!.bytes, 0), 'probe-pong');
      assert.deepEqual(seqLosOf([ping!, pong!]), [1, 2]);
    }
  });

  test('6.1 probes carry NPATHS alone; 7.2 adds its generation and SPORT_IDX', () => {
    const { directions } = lane('08-rds-ping-linux72-dials-linux61.pcap', 32776);
    const probes = (side: Side): unknown[] =>
      splitMessages(directions[side].bytes)
        .messages.filter(({ bytes }) => rds.classify(bytes, 0).startsWith('probe'))
        .map(({ bytes }) => parseExtensions(bytes, rds.EXTHDR_OFFSET));
    const from72 = { npaths: 8, genNum: 0xb5952c8e, sportIdx: true, unknownTypes: [] };
    const from61 = { npaths: 8, unknownTypes: [] };
    assert.deepEqual(probes('client'), [from72, from72]);
    assert.deepEqual(probes('server'), [from61, from61]);
  });

  test('7.2 begins lane 0 with a probe: its map travels on another lane', () => {
    const { directions } = lane('08-rds-ping-linux72-dials-linux61.pcap', 32776);
    const first = splitMessages(directions.client.bytes).messages[0]!;
    assert.equal(rds.classify(first.bytes, 0), 'probe-ping');
    const second = splitMessages(
      lane('08-rds-ping-linux72-dials-linux61.pcap', 32777).directions.client.bytes,
    ).messages;
    assert.deepEqual(
      second.map(({ bytes }) => rds.classify(bytes, 0)),
      ['congestion', 'congestion'],
    );
  });

  test('7.2 dials lane n from a port that is n modulo 8', () => {
    const ports = connectionsOf('08-rds-ping-linux72-dials-linux61.pcap').map(({ client }) =>
      Number(client.slice(client.lastIndexOf(':') + 1)),
    );
    assert.deepEqual(
      ports,
      [32776, 32777, 32778, 32779, 32780, 32781, 32782, 32783, 32785, 32786, 32787, 32788, 32789, 32790],
    );
    // Lanes 0 and 7 stayed up at the first attempt; 1 to 6 were dialled again, each from its port plus 8.
    assert.deepEqual(
      ports.map((port) => port % 8),
      [0, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6],
    );
  });

  test('a receiver that does not read sets its port in the map, and clears it when it does', () => {
    const maps = streamsOf('05-congestion-linux61.pcap')
      .filter(({ side }) => side === 'server')
      .flatMap(({ messages }) => messages)
      .filter(({ bytes }) => rds.classify(bytes, 0) === 'congestion')
      .map(({ payload }) => [...headers.congestedPorts(payload)].join());
    assert.deepEqual(new Set(maps), new Set(['', '5001']));
    assert.equal(maps.filter((ports) => ports === '5001').length, 9);
    assert.equal(maps.filter((ports) => ports === '').length, 14);
  });

  test('a message sent on a dead connection comes again with its number, marked RETRANSMITTED', () => {
    const name = '07-peer-reboot-linux61.pcap';
    const before = splitMessages(lane(name, 51663).directions.client.bytes).messages.at(-1)!;
    const [map, again] = splitMessages(lane(name, 40971).directions.client.bytes).messages;
    assert.equal(rds.classify(map!.bytes, 0), 'congestion');
    assert.equal(rds.flags(again!.bytes, 0), rds.RETRANSMITTED);
    const unmarked = Uint8Array.from(again!.bytes);
    unmarked[24] = 0;
    assert.deepEqual(unmarked, Uint8Array.from(before.bytes));
    assert.equal(rds.seqLo(before.bytes, 0), 4737);
  });

  test('6.1 numbers lanes by arrival, so a reconnect can join one end of a lane to another end', () => {
    const name = '06-reconnect-linux61.pcap';
    const firstOf = (clientPort: number, side: Side): number =>
      seqLosOf(splitMessages(lane(name, clientPort).directions[side].bytes).messages)[0]!;
    assert.deepEqual([firstOf(50633, 'client'), firstOf(50633, 'server')], [3, 3]);
    assert.deepEqual([firstOf(39107, 'client'), firstOf(39107, 'server')], [3, 2080]);
  });

  test('one lane can carry the maps of several that came up together', () => {
    const { messages } = splitMessages(lane('06-reconnect-linux61.pcap', 39107).directions.client.bytes);
    assert.deepEqual(
      messages.map(({ bytes }) => rds.classify(bytes, 0)),
      ['congestion', 'congestion', 'congestion', 'ping'],
    );
  });

  test('a whole 1 MiB message passes in each direction', () => {
    const { directions } = lane('04-rds-stress-1m-linux61.pcap', 58793);
    for (const side of ['client', 'server'] as const) {
      assert.equal(splitMessages(directions[side].bytes).messages[0]!.payload.length, rds.MAX_PAYLOAD);
    }
  });
});
