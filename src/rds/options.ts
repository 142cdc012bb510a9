/** What programs may say when they open, bind, send, receive and close, with the defaults and the checks. */
import {
  checkInteger,
  checkNames,
  checkObject,
  checkOptionalBoolean,
  checkOptionalInteger,
  checkSignal,
  wrongRange,
  wrongType,
} from '../core/arguments.ts';
import type { MemlockBudget } from '../core/budget.ts';
import { ZerotxError } from '../core/errors.ts';
import type { ZerocopyMode } from '../net/policy.ts';
import { ownHost } from './address.ts';
import { LANES_MAX } from './handshake.ts';
import type { NodeKey } from './keys.ts';

export interface NodeLimits {
  /** Peers that may have a lane. Default 1024. */
  readonly peers: number;
  /**
   * Connections in all: lanes, inbound ones that wait for theirs, attempts. Beyond it inbound ones are refused; and there are no
   * more peers than find room in it with all their lanes. Default 8192.
   */
  readonly connections: number;
  /**
   * Received bytes that may wait to be read, per peer and in all, before TCP holds peers back. Over the limit in all each peer still
   * has its share of it, so that none keeps others out: twice of it at most. Default 64 and 512 MiB.
   */
  readonly heldBytesPerPeer: number;
  readonly heldBytes: number;
  /** Free buffers kept for reuse. Default 64 MiB. */
  readonly idlePoolBytes: number;
}

const MIB = 1024 * 1024;

export const defaultLimits: NodeLimits = {
  peers: 1024,
  connections: 8192,
  heldBytesPerPeer: 64 * MIB,
  heldBytes: 512 * MIB,
  idlePoolBytes: 64 * MIB,
};

export interface NodeOptions {
  /** Default 'tcp': RDS in this process, over TCP. 'kernel' has other options: KernelNodeOptions (api.ts). */
  readonly transport?: 'tcp';
  /** The IP address to own, as text; a link-local one with its zone, the name or number of an interface: `fe80::1%eth0`. */
  readonly address: string;
  /**
   * Who may connect: addresses and blocks (`192.0.2.0/24`, `2001:db8::/32`). To others this node does not dial either: sends to
   * them fail with EACCES. Nodes of this process always reach each other. Default: everybody; with `keys`, whom they are for.
   */
  readonly allow?: readonly string[];
  /**
   * What the kernel signs TCP segments with: TCP-MD5 or TCP-AO. It drops what comes unsigned, or signed with another key, from the
   * peers that a key is for. Both sides need the same ones.
   */
  readonly keys?: readonly NodeKey[];
  /**
   * TCP connections that are offered to each peer, 1 to 8; peers that encode the lane in their source port (Linux 7.x, zerotx) take
   * them, others get one. A power of two: others count as the next below. Default 8.
   */
  readonly lanes?: number;
  /** When lent messages go to the kernel by MSG_ZEROCOPY: see net/policy.ts. Default 'auto'. */
  readonly mode?: ZerocopyMode;
  /** Pieces below this are copied by the kernel. Default 32 KiB. */
  readonly thresholdBytes?: number;
  /** The account that lent pages are charged to. Default: the process's, limited by RLIMIT_MEMLOCK. */
  readonly budget?: MemlockBudget;
  readonly limits?: Partial<NodeLimits>;
}

export interface RdsAddress {
  /** IP address as text. */
  readonly address: string;
  /** RDS port, 0 to 65535; 0 is a ping. */
  readonly port: number;
}

export interface SendOptions {
  /** MSG_ZEROCOPY: lend the buffer instead of copying it. Needs `cookie`, and SO_ZEROCOPY on the socket. */
  readonly zerocopy?: boolean;
  /** RDS_CMSG_ZCOPY_COOKIE: 32 bits, chosen by the program, returned on completion. */
  readonly cookie?: number;
}

export interface AwaitSendOptions {
  readonly signal?: AbortSignal;
  /** For all of it: until the buffer is the caller's again. Without it SO_SNDTIMEO bounds the wait for room. */
  readonly timeoutMs?: number;
}

export interface ReceiveOptions {
  /** MSG_PEEK: leave the message, and the cookies, where they are. */
  readonly peek?: boolean;
  /** False: no control messages; cookies stay for recvErrqueue() or a later call. */
  readonly control?: boolean;
  /** Room for the payload: what is over it is discarded, and the message says `truncated`. Default: all. */
  readonly maxBytes?: number;
  /** MSG_TRUNC: `length` is that of the whole message, though `data` may hold less. */
  readonly trunc?: boolean;
}

export interface AwaitReceiveOptions extends ReceiveOptions {
  readonly signal?: AbortSignal;
  /** Default: SO_RCVTIMEO. */
  readonly timeoutMs?: number;
}

export interface SocketOptions {
  /** SO_ZEROCOPY. */
  readonly zerocopy?: boolean;
  /**
   * The program promises not to transfer a lent ArrayBuffer, so that ordinary Buffers are lent on Node 22, too, which
   * cannot keep them in place (docs/ownership.md). Default false: they are copied there.
   */
  readonly pin?: boolean;
  /** Bytes that may be queued or unacknowledged before EAGAIN. Default 8 MiB. At most one in 64 bytes messages. */
  readonly sendBufferBytes?: number;
  /** Bytes that may be queued for reading before peers are told that the port is congested. Default 8 MiB. */
  readonly receiveBufferBytes?: number;
  /** RDS_CONG_MONITOR: news of ports that may be free again come through recvmsg(). */
  readonly congestionMonitor?: boolean;
  /** SO_TIMESTAMP: messages have a `timestamp`. */
  readonly timestamp?: boolean;
  /** RDS_RECVERR: kept, without effect, as there is no RDMA over TCP. */
  readonly receiveErrors?: boolean;
  /** SO_SNDTIMEO: how long send() waits for room. Default 0: for ever. */
  readonly sendTimeoutMs?: number;
  /** SO_RCVTIMEO: how long receive() waits. Default 0: for ever. */
  readonly receiveTimeoutMs?: number;
  /** SO_RDS_MSG_RXPATH_LATENCY: points that messages carry as `latency`; 0 header to data, 1 to whole, 2 to recvmsg(). */
  readonly receiveLatency?: readonly number[];
}

export const DEFAULT_BUFFER_BYTES: number = 8 * 1024 * 1024;

export interface CloseOptions {
  /** Wait until everything sent is acknowledged. */
  readonly drain?: boolean;
  /** How long to wait for that, and for lent memory. Default 30 s each. */
  readonly timeoutMs?: number;
}

/** What is wrong with the options of close(), which rejects and does not throw. */
export function closeOptionsError(options: CloseOptions): unknown {
  try {
    checkObject('options', options);
    checkOptionalBoolean('options.drain', options.drain);
    checkOptionalInteger('options.timeoutMs', options.timeoutMs, 0, 2 ** 31 - 1);
    return null;
  } catch (error) {
    return error;
  }
}

const NODE_OPTIONS: Readonly<Record<keyof NodeOptions, true>> = {
  transport: true,
  address: true,
  allow: true,
  keys: true,
  lanes: true,
  mode: true,
  thresholdBytes: true,
  budget: true,
  limits: true,
};
const SOCKET_OPTIONS: Readonly<Record<keyof SocketOptions, true>> = {
  zerocopy: true,
  pin: true,
  sendBufferBytes: true,
  receiveBufferBytes: true,
  congestionMonitor: true,
  timestamp: true,
  receiveErrors: true,
  sendTimeoutMs: true,
  receiveTimeoutMs: true,
  receiveLatency: true,
};

export function checkNodeOptions(options: NodeOptions): void {
  checkObject('options', options);
  checkNames('options', options, Object.keys(NODE_OPTIONS));
  if (options.transport !== undefined && options.transport !== 'tcp')
    throw wrongRange('options.transport', "'tcp' or 'kernel'", options.transport);
  ownHost(options.address);
  const { mode, thresholdBytes } = options;
  if (mode !== undefined && !['auto', 'force', 'off'].includes(mode))
    throw wrongRange('options.mode', "'auto', 'force' or 'off'", mode);
  checkOptionalInteger('options.thresholdBytes', thresholdBytes, 1, 2 ** 31 - 1);
  checkOptionalInteger('options.lanes', options.lanes, 1, LANES_MAX);
  if (options.budget !== undefined) checkObject('options.budget', options.budget);
  if (options.limits !== undefined) {
    checkObject('options.limits', options.limits);
    checkNames('options.limits', options.limits, Object.keys(defaultLimits));
  }
  for (const [name, value] of Object.entries(options.limits ?? {})) {
    checkInteger(`options.limits.${name}`, value, 1, Number.MAX_SAFE_INTEGER);
  }
}

export function checkSocketOptions(port: number, options: SocketOptions): void {
  checkInteger('port', port, 0, 65535);
  checkObject('options', options);
  checkNames('options', options, Object.keys(SOCKET_OPTIONS));
  checkOptionalBoolean('options.zerocopy', options.zerocopy);
  checkOptionalBoolean('options.pin', options.pin);
  checkOptionalBoolean('options.congestionMonitor', options.congestionMonitor);
  checkOptionalInteger('options.sendBufferBytes', options.sendBufferBytes, 2304, 2 ** 31 - 1);
  checkOptionalInteger('options.receiveBufferBytes', options.receiveBufferBytes, 2304, 2 ** 31 - 1);
  checkOptionalBoolean('options.timestamp', options.timestamp);
  checkOptionalBoolean('options.receiveErrors', options.receiveErrors);
  checkOptionalInteger('options.sendTimeoutMs', options.sendTimeoutMs, 0, 2 ** 31 - 1);
  checkOptionalInteger('options.receiveTimeoutMs', options.receiveTimeoutMs, 0, 2 ** 31 - 1);
  const { receiveLatency } = options;
  if (receiveLatency !== undefined && !Array.isArray(receiveLatency))
    throw wrongType('options.receiveLatency', 'an array of numbers', receiveLatency);
}

/** Of a call that waits. */
export function checkWaitOptions(options: AwaitSendOptions): void {
  checkObject('options', options);
  checkSignal('options.signal', options.signal);
  checkOptionalInteger('options.timeoutMs', options.timeoutMs, 0, 2 ** 31 - 1);
}

export function checkReceiveOptions(options: ReceiveOptions): void {
  checkObject('options', options);
  checkOptionalInteger('options.maxBytes', options.maxBytes, 0, 2 ** 31 - 1);
}

/** What cancelSentTo() is about: an address and a port, or an address with all its ports. */
export function cancelTarget(to: RdsAddress | string): {
  readonly address: string;
  readonly port: number | null;
} {
  if (typeof to === 'string') return { address: to, port: null };
  checkTarget(to, 'cancelSentTo');
  return to;
}

export function checkTarget(to: RdsAddress, syscall: string): void {
  if (typeof to !== 'object' || to === null) throw wrongType('to', 'an object { address, port }', to);
  const { port } = to;
  if (typeof port !== 'number') throw wrongType('to.port', 'of type number', port);
  if (Number.isInteger(port) && port >= 0 && port <= 65535) return;
  const text = `${syscall} EINVAL: to.port must be an integer from 0 to 65535, got ${port}`;
  throw new ZerotxError('EINVAL', text, { syscall });
}
