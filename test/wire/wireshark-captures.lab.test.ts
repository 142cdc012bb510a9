/**
 * The Wireshark dissector against our own decoder: every message of every capture of real kernels, field by field. Two
 * programs that share no code put the same streams together and must read the same from them.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import * as rds from '../../src/wire/rds.ts';
import { parseExtensions } from '../../src/wire/rds-exthdr.ts';
import { decodeStressHeader, OP_ACK, OP_REQ } from '../../src/wire/rds-stress.ts';
import { type Connection, readConnections, type Side } from '../support/pcap.ts';
import * as headers from '../support/rds-headers.ts';
import { splitMessages, type WireMessage } from '../support/rds-messages.ts';
import { ROOT } from '../support/sources.ts';
import { type FieldRow, noTshark, Tshark } from '../support/tshark.ts';
import { listVectors, readVector } from '../support/vectors.ts';

/** A line of a figure in docs/rds-wire.md: frame, the dialler's port, direction, and what tshark says. */
const FIGURE_LINE = /^ *(\d+) +(\d+) +(──▶|◀──) +(.+)$/;

/** One value a message. */
const HEADER_FIELDS = [
  'rds.kind',
  'rds.seq',
  'rds.ack',
  'rds.len',
  'rds.sport',
  'rds.dport',
  'rds.flags',
  'rds.flags.retransmitted',
  'rds.credit',
  'rds.padding',
  'rds.csum',
  'rds.exthdr',
  'rds.lane',
] as const;
/** Any number of values a message, mostly none. */
const OTHER_FIELDS = [
  'rds.ext.npaths',
  'rds.ext.gen_num',
  'rds.ext.sport_idx',
  'rds.cong.count',
  'rds.cong.port',
  'rds.stress.seq',
  'rds.stress.index',
  'rds.stress.op',
  'rds.stress.from_addr',
  'rds.stress.to_port',
] as const;
const FIELDS = [...HEADER_FIELDS, ...OTHER_FIELDS];
const EXPERTS = ['seq', 'oversized', 'cong_length', 'csum', 'exthdr', 'out_of_step', 'cut'] as const;

type Columns = Record<string, string[]>;

function emptyColumns(): Columns {
  return Object.fromEntries(FIELDS.map((name) => [name, []]));
}

/** What tshark read, by TCP stream and direction. */
function columnsOf(rows: readonly FieldRow[]): Map<string, Columns> {
  const all = new Map<string, Columns>();
  for (const row of rows) {
    const key = `${row['tcp.stream']![0]} ${row['tcp.srcport']![0]}`;
    const columns = all.get(key) ?? emptyColumns();
    all.set(key, columns);
    for (const name of FIELDS) columns[name]!.push(...row[name]!);
  }
  return all;
}

function hex(value: number, digits: number): string {
  return `0x${value.toString(16).padStart(digits, '0')}`;
}

function seqText(hi: number, lo: number): string {
  return String((BigInt(hi) << 32n) | BigInt(lo));
}

/** What our decoder reads of one direction, in tshark's words. */
function expectedColumns(messages: readonly WireMessage[], clientPort: number): Columns {
  const columns = emptyColumns();
  const put = (name: (typeof FIELDS)[number], ...values: (string | number)[]): void => {
    columns[name]!.push(...values.map(String));
  };
  for (const { bytes, payload } of messages) {
    const header = headers.decodeHeader(bytes, 0);
    const kind = rds.classify(bytes, 0);
    put('rds.kind', kind);
    put('rds.seq', seqText(header.seqHi, header.seqLo));
    put('rds.ack', seqText(header.ackHi, header.ackLo));
    put('rds.len', header.length);
    put('rds.sport', header.sport);
    put('rds.dport', header.dport);
    put('rds.flags', hex(header.flags, 2));
    put('rds.flags.retransmitted', (header.flags & rds.RETRANSMITTED) !== 0 ? 1 : 0);
    put('rds.credit', header.credit);
    put('rds.padding', hex(header.padding, 8));
    put('rds.csum', hex(header.checksum, 4));
    put('rds.exthdr', Buffer.from(header.exthdr).toString('hex'));
    put('rds.lane', clientPort % 8);
    const { npaths, genNum, sportIdx, unknownTypes } = parseExtensions(bytes, rds.EXTHDR_OFFSET);
    assert.deepEqual(unknownTypes, []);
    if (npaths !== undefined) put('rds.ext.npaths', npaths);
    if (genNum !== undefined) put('rds.ext.gen_num', hex(genNum, 8));
    if (sportIdx !== undefined) put('rds.ext.sport_idx', 0);
    if (kind === 'congestion') {
      const ports = [...headers.congestedPorts(payload)];
      put('rds.cong.count', ports.length);
      put('rds.cong.port', ...ports);
    }
    if (kind === 'data') putStress(put, payload, header);
  }
  return columns;
}

function putStress(
  put: (name: (typeof OTHER_FIELDS)[number], value: string | number) => void,
  payload: Uint8Array,
  header: headers.RdsHeader,
): void {
  if (payload.length < 63) return;
  const message = decodeStressHeader(payload, 0);
  if (![OP_REQ, OP_ACK].includes(message.op) || message.toPort !== header.dport) return;
  put('rds.stress.seq', message.seq);
  put('rds.stress.index', message.index);
  put('rds.stress.op', message.op);
  const from = message.fromAddr;
  put('rds.stress.from_addr', [from >>> 24, (from >>> 16) & 255, (from >>> 8) & 255, from & 255].join('.'));
  put('rds.stress.to_port', message.toPort);
}

function portOf(name: string): number {
  return Number(name.slice(name.lastIndexOf(':') + 1));
}

function compare(connections: readonly Connection[], read: Map<string, Columns>): number {
  let messages = 0;
  for (const [stream, connection] of connections.entries()) {
    for (const side of ['client', 'server'] as const satisfies Side[]) {
      const split = splitMessages(connection.directions[side].bytes);
      const key = `${stream} ${portOf(connection[side])}`;
      const expected = expectedColumns(split.messages, portOf(connection.client));
      assert.deepEqual(read.get(key) ?? emptyColumns(), expected, key);
      read.delete(key);
      messages += split.messages.length;
    }
  }
  assert.deepEqual([...read.keys()], [], 'streams that we did not find');
  return messages;
}

describe('the Wireshark dissector reads what our decoder reads', {
  skip: noTshark(),
  timeout: 300_000,
}, () => {
  let tshark: Tshark;
  before(() => {
    tshark = new Tshark();
  });
  after(() => tshark.close());

  const names = listVectors('rds').filter((name) => name.endsWith('.pcap'));
  let messages = 0;
  for (const name of names) {
    test(name, () => {
      const file = readVector(`rds/${name}`);
      const connections = readConnections(file);
      for (const passes of [[], ['-2']]) {
        const rows = tshark.fields(
          file,
          ['tcp.stream', 'tcp.srcport', ...FIELDS, ...EXPERTS.map((expert) => `rds.expert.${expert}`)],
          [...passes, '-Y', 'rds'],
        );
        for (const row of rows) {
          for (const expert of EXPERTS) assert.deepEqual(row[`rds.expert.${expert}`], [], expert);
        }
        messages += compare(connections, columnsOf(rows));
      }
    });
  }

  test('all of them together have the messages that they have', () => {
    // As test/wire/rds-captures.test.ts counts them; each was read in one pass and in two.
    assert.equal(messages, 2 * (14 + 417 + 63 + 2 + 5206 + 13 + 16 + 21 + 281));
  });

  test('the figures of docs/rds-wire.md are what tshark prints', () => {
    const page = readFileSync(join(ROOT, 'docs/rds-wire.md'), 'utf8');
    let lines = 0;
    for (const figure of page.split('```')) {
      const name = /^\n\$ tshark .*test\/vectors\/(rds\/[\w.-]+\.pcap)/.exec(figure)?.[1];
      if (name === undefined) continue;
      const rows = tshark.fields(readVector(name), ['tcp.srcport', 'tcp.dstport']);
      const infos = tshark.run(readVector(name), ['-T', 'fields', '-e', '_ws.col.Info']).split('\n');
      for (const line of figure.split('\n')) {
        const [, frame, port, arrow, text] = FIGURE_LINE.exec(line) ?? [];
        if (text === undefined) continue;
        const at = Number(frame) - 1;
        const [from, to] = arrow === '──▶' ? [port, '16385'] : ['16385', port];
        assert.deepEqual(rows[at], { 'tcp.srcport': [from], 'tcp.dstport': [to] }, line);
        const info = infos[at]!;
        // Of TCP's own segments a figure names but the flag: SYN, FIN or RST.
        assert.ok(info.includes(text) && (text.length > 3 || info.includes(`[${text}`)), line);
        lines += 1;
      }
    }
    assert.ok(lines > 50, String(lines));
  });

  test('the one message that was sent again is marked, and nothing else is', () => {
    const marked = names.flatMap((name) =>
      tshark.fields(readVector(`rds/${name}`), ['rds.seq'], ['-Y', 'rds.expert.retransmitted']),
    );
    assert.deepEqual(marked, [{ 'rds.seq': ['0', '4737'] }]);
  });
});
