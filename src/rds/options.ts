/** What programs may say when they open, bind, send, receive and close, with the defaults and the checks. */
import {
  checkInteger,
  checkObject,
  checkOptionalBoolean,
  checkOptionalInteger,
  checkString,
  wrongRange,
  wrongType,
} from '../core/arguments.ts';
import type { MemlockBudget } from '../core/budget.ts';
import { ZerotxError } from '../core/errors.ts';
import type { ZerocopyMode } from '../net/policy.ts';
import { isUnicast, parseIp } from '../wire/sockaddr.ts';

export interface NodeLimits {
  /** Peers that may have a lane. Default 1024. */
  readonly peers: number;
  /** Received bytes that may wait to be read, per peer and in all, before TCP holds peers back. Default 64 and 512 MiB. */
  readonly heldBytesPerPeer: number;
  readonly heldBytes: number;
  /** Free buffers kept for reuse. Default 64 MiB. */
  readonly idlePoolBytes: number;
}

const MIB = 1024 * 1024;

export const defaultLimits: NodeLimits = {
  peers: 1024,
  heldBytesPerPeer: 64 * MIB,
  heldBytes: 512 * MIB,
  idlePoolBytes: 64 * MIB,
};

export interface NodeOptions {
  /** The IP address to own, as text. */
  readonly address: string;
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
  readonly timeoutMs?: number;
}

export interface ReceiveOptions {
  /** MSG_PEEK: leave the message, and the cookies, where they are. */
  readonly peek?: boolean;
  /** False: no control messages; cookies stay for recvErrqueue() or a later call. */
  readonly control?: boolean;
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

export function checkNodeOptions(options: NodeOptions): void {
  checkObject('options', options);
  checkNodeAddress(options.address);
  const { mode, thresholdBytes } = options;
  if (mode !== undefined && !['auto', 'force', 'off'].includes(mode))
    throw wrongRange('options.mode', "'auto', 'force' or 'off'", mode);
  checkOptionalInteger('options.thresholdBytes', thresholdBytes, 1, 2 ** 31 - 1);
  if (options.budget !== undefined) checkObject('options.budget', options.budget);
  if (options.limits !== undefined) checkObject('options.limits', options.limits);
  for (const [name, value] of Object.entries(options.limits ?? {})) {
    checkInteger(`options.limits.${name}`, value, 1, Number.MAX_SAFE_INTEGER);
  }
}

export function checkSocketOptions(port: number, options: SocketOptions): void {
  checkInteger('port', port, 0, 65535);
  checkObject('options', options);
  checkOptionalBoolean('options.zerocopy', options.zerocopy);
  checkOptionalBoolean('options.pin', options.pin);
  checkOptionalBoolean('options.congestionMonitor', options.congestionMonitor);
  checkOptionalInteger('options.sendBufferBytes', options.sendBufferBytes, 2304, 2 ** 31 - 1);
  checkOptionalInteger('options.receiveBufferBytes', options.receiveBufferBytes, 2304, 2 ** 31 - 1);
}

function checkNodeAddress(address: unknown): void {
  checkString('options.address', address);
  let ip: Uint8Array | null = null;
  try {
    ip = parseIp(address);
  } catch {
    // Said below, with the name of the argument.
  }
  if (ip !== null && isUnicast(ip)) return;
  const text = `open EINVAL: options.address "${address}" is not the IP address of one host`;
  throw new ZerotxError('EINVAL', text, { syscall: 'open' });
}

export function checkTarget(to: RdsAddress, syscall: string): void {
  if (typeof to !== 'object' || to === null) throw wrongType('to', 'an object { address, port }', to);
  const { port } = to;
  if (typeof port !== 'number') throw wrongType('to.port', 'of type number', port);
  if (Number.isInteger(port) && port >= 0 && port <= 65535) return;
  const text = `${syscall} EINVAL: to.port must be an integer from 0 to 65535, got ${port}`;
  throw new ZerotxError('EINVAL', text, { syscall });
}
