/**
 * The records of RdsInfo on their way through a control socket, as JSON: sequence numbers, which JSON has no numbers for, travel as
 * decimal text. A list has 8,192 records at most, so that an answer stays below the limit of a line (net/control-client.ts). Whoever asks may be root and who answers anybody, so each field that comes must be of its kind.
 */
import { ZerotxError } from '../core/errors.ts';
import type { MessageInfo, RdsInfo } from './info.ts';

/** The lists of RdsInfo that can be asked for. */
export type InfoLists = Omit<RdsInfo, 'counters' | 'leftOut'>;

type Kind = 'text' | 'number' | 'number or null' | 'flag' | 'sequence';
type Shape<T> = Readonly<Record<keyof T, Kind>>;

const message: Shape<MessageInfo> = {
  sequence: 'sequence',
  bytes: 'number',
  localAddress: 'text',
  localPort: 'number',
  remoteAddress: 'text',
  remotePort: 'number',
};

const shapes: { readonly [L in keyof InfoLists]: Shape<InfoLists[L][number]> } = {
  sockets: {
    address: 'text',
    port: 'number',
    peerAddress: 'text',
    peerPort: 'number',
    sendBufferBytes: 'number',
    receiveBufferBytes: 'number',
    inode: 'number',
  },
  connections: {
    localAddress: 'text',
    remoteAddress: 'text',
    lane: 'number',
    transport: 'text',
    nextTx: 'sequence',
    nextRx: 'sequence',
    sending: 'flag',
    connecting: 'flag',
    connected: 'flag',
    npaths: 'number or null',
    peerGeneration: 'number or null',
  },
  sendQueue: message,
  retransmitQueue: message,
  receiveQueue: message,
  tcpSockets: {
    localAddress: 'text',
    localPort: 'number',
    remoteAddress: 'text',
    remotePort: 'number',
    headerBytesLeft: 'number',
    dataBytesLeft: 'number',
    lastSentNext: 'number',
    lastExpectedUna: 'number',
    lastSeenUna: 'number',
  },
};

export const INFO_LISTS: readonly (keyof InfoLists)[] = Object.freeze(
  Object.keys(shapes) as (keyof InfoLists)[],
);

/** Records of a list. */
export const LISTED_MAX = 8192;
const COUNTERS_MAX = 1024;
const TEXT_MAX = 256;
const U64_MAX = 2n ** 64n - 1n;

/** Records as JSON can carry them. */
export function toJson(records: readonly object[]): object[] {
  return records.map((record) =>
    Object.fromEntries(
      Object.entries(record).map(([name, value]) => [name, typeof value === 'bigint' ? `${value}` : value]),
    ),
  );
}

/** Records of `list` out of JSON; throws EPROTO if one of them is not what it should be. */
export function fromJson<L extends keyof InfoLists>(list: L, records: unknown): InfoLists[L] {
  if (!Array.isArray(records) || records.length > LISTED_MAX) throw broken(list);
  const shape = Object.entries(shapes[list]) as [string, Kind][];
  return records.map((record: unknown) => {
    if (typeof record !== 'object' || record === null) throw broken(list);
    const found = record as Readonly<Record<string, unknown>>;
    return Object.fromEntries(shape.map(([name, kind]) => [name, field(found[name], kind, name)]));
  }) as unknown as InfoLists[L];
}

/** Counters by name. Throws EPROTO. */
export function countersFromJson(value: unknown): Record<string, number> {
  if (typeof value !== 'object' || value === null) throw broken('counters');
  const entries = Object.entries(value);
  if (entries.length > COUNTERS_MAX) throw broken('counters');
  return Object.fromEntries(
    entries.map(([name, count]) => [name.slice(0, TEXT_MAX), field(count, 'number', 'counters') as number]),
  );
}

/** A value of this kind. Throws EPROTO. */
export function field(value: unknown, kind: Kind, name: string): unknown {
  switch (kind) {
    case 'text':
      if (typeof value === 'string') return value.slice(0, TEXT_MAX);
      break;
    case 'number or null':
      if (value === null) return null;
      if (typeof value === 'number') return value;
      break;
    case 'number':
      if (typeof value === 'number') return value;
      break;
    case 'flag':
      if (typeof value === 'boolean') return value;
      break;
    case 'sequence':
      if (typeof value === 'string' && /^\d{1,20}$/.test(value) && BigInt(value) <= U64_MAX)
        return BigInt(value);
  }
  throw broken(name);
}

export function broken(what: string): ZerotxError {
  return new ZerotxError('EPROTO', `the program's answer has no ${what} that can be read`);
}
