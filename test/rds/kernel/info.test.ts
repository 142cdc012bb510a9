/** Tables of the kernel's RDS, as bytes: packed structures of include/uapi/linux/rds.h, written field by field. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ZerotxError } from '../../../src/core/errors.ts';
import {
  decodeConnections,
  decodeCounters,
  decodeMessages,
  decodeSockets,
  decodeTcpSockets,
  type KernelRecords,
} from '../../../src/rds/kernel/info.ts';
import { parseIp } from '../../../src/wire/sockaddr.ts';

type Field =
  | readonly ['u8' | 'u32' | 'port', number]
  | readonly ['u64', bigint]
  | readonly ['text', string, number]
  | readonly ['ip', string];

/** The bytes of one record; numbers in the order of this machine, little endian wherever Node runs on Linux. */
function record(ipv6: boolean, fields: readonly Field[]): Buffer {
  return Buffer.concat(
    fields.map((field) => {
      const out = Buffer.alloc(8);
      switch (field[0]) {
        case 'u8':
          return out.subarray(0, out.writeUInt8(field[1]));
        case 'u32':
          return out.subarray(0, out.writeUInt32LE(field[1]));
        case 'port':
          return out.subarray(0, out.writeUInt16BE(field[1]));
        case 'u64':
          return out.subarray(0, out.writeBigUInt64LE(field[1]));
        case 'text':
          return Buffer.concat([Buffer.from(field[1]), Buffer.alloc(field[2])]).subarray(0, field[2]);
        default:
          return Buffer.from(parseIp(field[1])).subarray(ipv6 ? 0 : 12);
      }
    }),
  );
}

function records(ipv6: boolean, ...list: Buffer[]): KernelRecords {
  return { recordBytes: list[0]?.byteLength ?? 0, bytes: Buffer.concat(list), ipv6 };
}

const connection = (ipv6: boolean, from: string, to: string, flags: number): Buffer =>
  record(ipv6, [
    ['u64', 2n ** 60n + 5n],
    ['u64', 7n],
    ['ip', from],
    ['ip', to],
    ['text', 'tcp', 16],
    ['u8', flags],
    ...(ipv6 ? [] : [['u8', 0] as const]),
  ]);

const message = (ipv6: boolean, from: string, to: string): Buffer =>
  record(ipv6, [
    ['u64', 12n],
    ['u32', 106_496],
    ['ip', from],
    ['ip', to],
    ['port', 4000],
    ['port', 65_535],
    ['u8', 0],
    ['u8', 0],
  ]);

const tcpSocket = (ipv6: boolean, from: string, to: string): Buffer =>
  record(ipv6, [
    ['ip', from],
    ['port', 16_385],
    ['ip', to],
    ['port', 32_776],
    ['u64', 48n],
    ['u64', 1_048_576n],
    ['u32', 0xffffff00],
    ['u32', 0x30],
    ['u32', 0xfffffff0],
    ...(ipv6 ? [] : [['u8', 0] as const]),
  ]);

const socket = (ipv6: boolean, at: string, to: string): Buffer =>
  record(ipv6, [
    ['u32', 212_992],
    ['ip', at],
    ['ip', to],
    ['port', 4000],
    ['port', to === '0.0.0.0' || to === '::' ? 0 : 5000],
    ['u32', 106_496],
    ['u64', 123_456n],
  ]);

describe('tables of the kernel', () => {
  const both = [
    { ipv6: false, ours: '10.0.0.1', theirs: '10.0.0.2', nobody: '0.0.0.0' },
    { ipv6: true, ours: '2001:db8::1', theirs: 'fe80::2', nobody: '::' },
    // IPv4 in the newer form is mapped.
    { ipv6: true, ours: '10.0.0.1', theirs: '10.0.0.2', nobody: '::' },
  ];
  for (const { ipv6, ours, theirs, nobody } of both) {
    const form = `${ours} in records of ${ipv6 ? 'both families' : 'IPv4'}`;

    it(`connections: ${form}`, () => {
      const one = connection(ipv6, ours, theirs, 5);
      assert.equal(one.byteLength, ipv6 ? 65 : 42);
      assert.deepEqual(decodeConnections(records(ipv6, one, connection(ipv6, ours, theirs, 2))), [
        {
          ...{ localAddress: ours, remoteAddress: theirs, lane: 0, transport: 'tcp' },
          ...{ nextTx: 2n ** 60n + 5n, nextRx: 7n, sending: true, connecting: false, connected: true },
          ...{ npaths: null, peerGeneration: null },
        },
        {
          ...{ localAddress: ours, remoteAddress: theirs, lane: 0, transport: 'tcp' },
          ...{ nextTx: 2n ** 60n + 5n, nextRx: 7n, sending: false, connecting: true, connected: false },
          ...{ npaths: null, peerGeneration: null },
        },
      ]);
    });

    it(`messages: ${form}`, () => {
      const one = message(ipv6, ours, theirs);
      assert.equal(one.byteLength, ipv6 ? 50 : 26);
      assert.deepEqual(decodeMessages(records(ipv6, one)), [
        {
          ...{ sequence: 12n, bytes: 106_496 },
          ...{ localAddress: ours, localPort: 4000, remoteAddress: theirs, remotePort: 65_535 },
        },
      ]);
    });

    it(`sockets: ${form}`, () => {
      const one = socket(ipv6, ours, theirs);
      assert.equal(one.byteLength, ipv6 ? 52 : 28);
      const common = { address: ours, port: 4000, sendBufferBytes: 212_992, receiveBufferBytes: 106_496 };
      assert.deepEqual(decodeSockets(records(ipv6, one, socket(ipv6, ours, nobody))), [
        { ...common, peerAddress: theirs, peerPort: 5000, inode: 123_456 },
        { ...common, peerAddress: '', peerPort: 0, inode: 123_456 },
      ]);
    });

    it(`TCP sockets: ${form}`, () => {
      const one = tcpSocket(ipv6, ours, theirs);
      assert.equal(one.byteLength, ipv6 ? 64 : 41);
      assert.deepEqual(decodeTcpSockets(records(ipv6, one)), [
        {
          ...{ localAddress: ours, localPort: 16_385, remoteAddress: theirs, remotePort: 32_776 },
          ...{ headerBytesLeft: 48, dataBytesLeft: 1_048_576 },
          ...{ lastSentNext: 0xffffff00, lastExpectedUna: 0x30, lastSeenUna: 0xfffffff0 },
        },
      ]);
    });
  }

  it('counters keep the kernel’s order', () => {
    const counter = (name: string, value: bigint): Buffer =>
      record(false, [
        ['text', name, 32],
        ['u64', value],
      ]);
    const longest = 'n'.repeat(32);
    const list = records(
      false,
      counter('conn_reset', 3n),
      counter('send_queued', 2n ** 40n),
      counter(longest, 0n),
    );
    const counters = decodeCounters(list);
    assert.deepEqual(Object.entries(counters), [
      ['conn_reset', 3],
      ['send_queued', 2 ** 40],
      [longest, 0],
    ]);
  });

  it('a record that is longer than known is read, and one that is shorter is not', () => {
    const grown = (one: Buffer): Buffer => Buffer.concat([one, Buffer.alloc(3, 0xee)]);
    const one = message(true, '10.0.0.1', '10.0.0.2');
    const many = decodeMessages(records(true, grown(one), grown(one)));
    assert.equal(many.length, 2);
    assert.equal(many[1]?.remotePort, 65_535);
    assert.throws(
      () => decodeMessages({ recordBytes: 20, bytes: Buffer.alloc(40), ipv6: false }),
      (error) => error instanceof ZerotxError && error.code === 'EPROTO',
    );
  });

  it('empty tables, and what is left of a cut record, are nothing', () => {
    assert.deepEqual(decodeSockets({ recordBytes: 28, bytes: new Uint8Array(0), ipv6: false }), []);
    assert.deepEqual(decodeSockets({ recordBytes: 28, bytes: new Uint8Array(27), ipv6: false }), []);
  });

  it('lie anywhere in memory', () => {
    const one = socket(false, '10.0.0.1', '10.0.0.2');
    const shifted = Buffer.concat([Buffer.alloc(5), one]).subarray(5);
    const [decoded] = decodeSockets({ recordBytes: 28, bytes: shifted, ipv6: false });
    assert.equal(decoded?.address, '10.0.0.1');
  });
});
