/**
 * What the kernel's RDS shows of itself (RDS_INFO_..., RDS6_INFO_...), decoded into the records of ../info.ts.
 *
 * The kernel copies packed structures (include/uapi/linux/rds.h): numbers are in the byte order of the machine, addresses and ports in
 * network order. Each kind has two numbers: the older one shows IPv4 alone, the one that begins with RDS6 shows both, IPv4
 * as mapped addresses. The kernel says how long a record is; what a later kernel appends is passed over.
 */
import { ZerotxError } from '../../core/errors.ts';
import { formatIp, IP_BYTES } from '../../wire/sockaddr.ts';
import type { ConnectionInfo, MessageInfo, SocketInfo, TcpSocketInfo } from '../info.ts';

/** Numbers of RDS_INFO_... and RDS6_INFO_...; of counters there is one form. */
export const infoNumbers = {
  counters: { ipv4: 10_000, ipv6: 10_000 },
  connections: { ipv4: 10_001, ipv6: 10_011 },
  sendMessages: { ipv4: 10_003, ipv6: 10_012 },
  retransmitMessages: { ipv4: 10_004, ipv6: 10_013 },
  receiveMessages: { ipv4: 10_005, ipv6: 10_014 },
  sockets: { ipv4: 10_006, ipv6: 10_015 },
  tcpSockets: { ipv4: 10_007, ipv6: 10_016 },
} as const;

const COUNTER_NAME_BYTES = 32;
const TRANSPORT_NAME_BYTES = 16;
const FLAG_SENDING = 1;
const FLAG_CONNECTING = 2;
const FLAG_CONNECTED = 4;

/** Bytes of each record with addresses of 4 and of 16 bytes, without what may follow. */
const sizes = {
  counter: { ipv4: 40, ipv6: 40 },
  connection: { ipv4: 41, ipv6: 65 },
  message: { ipv4: 25, ipv6: 49 },
  socket: { ipv4: 28, ipv6: 52 },
  tcpSocket: { ipv4: 40, ipv6: 64 },
} as const;

/** Records as the kernel gave them: `ipv6` says which of the two forms they have. */
export interface KernelRecords {
  readonly recordBytes: number;
  readonly bytes: Uint8Array;
  readonly ipv6: boolean;
}

const hostIsLittleEndian = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1;

/** Reads the fields of one record, one after the other. */
class Fields {
  readonly #view: DataView;
  readonly #ipv6: boolean;
  #at: number;

  constructor(records: KernelRecords, index: number) {
    const { bytes, recordBytes } = records;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#ipv6 = records.ipv6;
    this.#at = index * recordBytes;
  }

  u8(): number {
    return this.#view.getUint8(this.#step(1));
  }

  u32(): number {
    return this.#view.getUint32(this.#step(4), hostIsLittleEndian);
  }

  u64(): bigint {
    return this.#view.getBigUint64(this.#step(8), hostIsLittleEndian);
  }

  port(): number {
    return this.#view.getUint16(this.#step(2));
  }

  /** Up to the first zero byte of `bytes`. */
  text(bytes: number): string {
    const start = this.#step(bytes);
    let text = '';
    for (let i = start; i < start + bytes; i++) {
      const character = this.#view.getUint8(i);
      if (character === 0) break;
      text += String.fromCharCode(character);
    }
    return text;
  }

  address(): string {
    const ip = new Uint8Array(IP_BYTES);
    const bytes = this.#ipv6 ? IP_BYTES : 4;
    const start = this.#step(bytes);
    if (!this.#ipv6) ip.fill(0xff, 10, 12);
    for (let i = 0; i < bytes; i++) ip[IP_BYTES - bytes + i] = this.#view.getUint8(start + i);
    return formatIp(ip);
  }

  #step(bytes: number): number {
    const at = this.#at;
    this.#at += bytes;
    return at;
  }
}

function decode<T>(kind: keyof typeof sizes, records: KernelRecords, one: (fields: Fields) => T): T[] {
  const { recordBytes, bytes, ipv6 } = records;
  const least = sizes[kind][ipv6 ? 'ipv6' : 'ipv4'];
  if (recordBytes < least) {
    throw new ZerotxError('EPROTO', `a ${kind} record of ${recordBytes} bytes, at least ${least} are known`);
  }
  const count = Math.floor(bytes.byteLength / recordBytes);
  return Array.from({ length: count }, (_, i) => one(new Fields(records, i)));
}

/** RDS_INFO_COUNTERS: by name, in the kernel's order. */
export function decodeCounters(records: KernelRecords): Record<string, number> {
  const pairs = decode('counter', records, (fields): [string, number] => [
    fields.text(COUNTER_NAME_BYTES),
    Number(fields.u64()),
  ]);
  return Object.fromEntries(pairs);
}

/** RDS_INFO_CONNECTIONS: the kernel shows lane 0 of each. */
export function decodeConnections(records: KernelRecords): ConnectionInfo[] {
  return decode('connection', records, (fields) => {
    const nextTx = fields.u64();
    const nextRx = fields.u64();
    const localAddress = fields.address();
    const remoteAddress = fields.address();
    const transport = transportName(fields.text(TRANSPORT_NAME_BYTES));
    const flags = fields.u8();
    return {
      ...{ localAddress, remoteAddress, lane: 0, transport, nextTx, nextRx },
      sending: (flags & FLAG_SENDING) !== 0,
      connecting: (flags & FLAG_CONNECTING) !== 0,
      connected: (flags & FLAG_CONNECTED) !== 0,
      npaths: null,
      peerGeneration: null,
    };
  });
}

function transportName(text: string): ConnectionInfo['transport'] {
  return text === 'tcp' || text === 'loopback' ? text : 'ib';
}

/** RDS_INFO_SEND_MESSAGES and RETRANS_MESSAGES. In those of RECV_MESSAGES, too, `local` is this side. */
export function decodeMessages(records: KernelRecords): MessageInfo[] {
  return decode('message', records, (fields) => {
    const sequence = fields.u64();
    const bytes = fields.u32();
    const localAddress = fields.address();
    const remoteAddress = fields.address();
    return {
      sequence,
      bytes,
      localAddress,
      localPort: fields.port(),
      remoteAddress,
      remotePort: fields.port(),
    };
  });
}

/** RDS_INFO_SOCKETS. */
export function decodeSockets(records: KernelRecords): SocketInfo[] {
  return decode('socket', records, (fields) => {
    const sendBufferBytes = fields.u32();
    const address = fields.address();
    const connected = fields.address();
    const port = fields.port();
    const peerPort = fields.port();
    const receiveBufferBytes = fields.u32();
    const inode = Number(fields.u64());
    const peerAddress = connected === '0.0.0.0' || connected === '::' ? '' : connected;
    return { address, port, peerAddress, peerPort, sendBufferBytes, receiveBufferBytes, inode };
  });
}

/** RDS_INFO_TCP_SOCKETS: every lane. */
export function decodeTcpSockets(records: KernelRecords): TcpSocketInfo[] {
  return decode('tcpSocket', records, (fields) => {
    const localAddress = fields.address();
    const localPort = fields.port();
    const remoteAddress = fields.address();
    const remotePort = fields.port();
    return {
      ...{ localAddress, localPort, remoteAddress, remotePort },
      headerBytesLeft: Number(fields.u64()),
      dataBytesLeft: Number(fields.u64()),
      lastSentNext: fields.u32(),
      lastExpectedUna: fields.u32(),
      lastSeenUna: fields.u32(),
    };
  });
}
