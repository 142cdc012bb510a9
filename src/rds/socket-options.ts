/**
 * setsockopt() and getsockopt() of RDS sockets, by the kernel's names (SOL_SOCKET and SOL_RDS; include/uapi/linux/rds.h), with
 * values as a program would write them: booleans, milliseconds, addresses.
 *
 * As in the kernel, the send and the receive buffer may be set as it pleases the program and are raised to a least size, and
 * what is read back is twice what was set. Unlike there, no sysctl is their upper limit, and they begin at 8 MiB.
 */
import { checkInteger, checkObject, wrongType } from '../core/arguments.ts';
import { ZerotxError } from '../core/errors.ts';
import { checkTarget, type RdsAddress } from './options.ts';

/** A point of SO_RDS_MSG_RXPATH_LATENCY: 0 header to first data, 1 first data to whole, 2 whole to recvmsg(). */
export type LatencyPoint = 0 | 1 | 2;

/** What getsockopt() reads, and setsockopt() sets. */
export interface RdsSocketOptions {
  /** Bytes; read back doubled. At least 2304. */
  SO_SNDBUF: number;
  /** Bytes; read back doubled. At least 1152. */
  SO_RCVBUF: number;
  /** How long send() waits for room, in milliseconds; 0: for ever. */
  SO_SNDTIMEO: number;
  /** How long receive() waits, in milliseconds; 0: for ever. */
  SO_RCVTIMEO: number;
  /** This socket may lend. */
  SO_ZEROCOPY: boolean;
  /** Messages that come from now on have a `timestamp`. */
  SO_TIMESTAMP: boolean;
  /** Errors of RDMA operations, which TCP does not have: kept, without effect. */
  RDS_RECVERR: boolean;
  /** 2, for TCP: attached by bind(), so it can be read and not set any more (EOPNOTSUPP). */
  SO_RDS_TRANSPORT: number;
}

/** What can only be set. */
export interface RdsSocketCommands {
  /** Withdraws what is queued for this address and port. */
  RDS_CANCEL_SENT_TO: RdsAddress;
  /** News of congested ports come through recvmsg(). Turning it off forgets what is watched. */
  RDS_CONG_MONITOR: boolean;
  /** Points that messages shall carry as `latency`, at most three. EFAULT for any other. */
  SO_RDS_MSG_RXPATH_LATENCY: readonly number[];
}

export type RdsOptionValues = RdsSocketOptions & RdsSocketCommands;

/** What one socket has set and its parts look up. */
export class SocketSettings {
  sendTimeoutMs = 0;
  receiveTimeoutMs = 0;
  timestamp = false;
  receiveErrors = false;
  latency: readonly LatencyPoint[] = [];
}

/** What setting an option reaches of a socket. */
export interface OptionTarget {
  readonly settings: SocketSettings;
  zerocopy: boolean;
  sendBufferBytes: number;
  receiveBufferBytes: number;
  congestionMonitor: boolean;
  cancelSentTo(to: RdsAddress): void;
  /** `timestamp` or `latency` changed. */
  tracingChanged(): void;
}

/** SOCK_MIN_SNDBUF and SOCK_MIN_RCVBUF, halved as RDS does (rds_sk_sndbuf, rds_sk_rcvbuf). */
const SNDBUF_MIN = 2304;
const RCVBUF_MIN = 1152;
const BUFFER_MAX = 2 ** 30 - 1;
const TIMEOUT_MAX_MS = 2 ** 31 - 1;
/** RDS_TRANS_TCP. */
const TRANSPORT_TCP = 2;
/** RDS_MSG_RX_DGRAM_TRACE_MAX. */
const LATENCY_POINTS = 3;

const setters: { readonly [N in keyof RdsOptionValues]: (target: OptionTarget, value: unknown) => void } = {
  SO_SNDBUF: (target, value) => {
    target.sendBufferBytes = bufferBytes(value, SNDBUF_MIN);
  },
  SO_RCVBUF: (target, value) => {
    target.receiveBufferBytes = bufferBytes(value, RCVBUF_MIN);
  },
  SO_SNDTIMEO: (target, value) => {
    checkInteger('value', value, 0, TIMEOUT_MAX_MS);
    target.settings.sendTimeoutMs = value;
  },
  SO_RCVTIMEO: (target, value) => {
    checkInteger('value', value, 0, TIMEOUT_MAX_MS);
    target.settings.receiveTimeoutMs = value;
  },
  SO_ZEROCOPY: (target, value) => {
    target.zerocopy = flag(value);
  },
  SO_TIMESTAMP: (target, value) => {
    target.settings.timestamp = flag(value);
    target.tracingChanged();
  },
  RDS_RECVERR: (target, value) => {
    target.settings.receiveErrors = flag(value);
  },
  RDS_CONG_MONITOR: (target, value) => {
    target.congestionMonitor = flag(value);
  },
  RDS_CANCEL_SENT_TO: (target, value) => {
    checkObject('value', value);
    checkTarget(value as unknown as RdsAddress, 'setsockopt');
    target.cancelSentTo(value as unknown as RdsAddress);
  },
  SO_RDS_TRANSPORT: () => {
    throw optionError('EOPNOTSUPP', 'setsockopt', 'SO_RDS_TRANSPORT: a bound socket has its transport');
  },
  SO_RDS_MSG_RXPATH_LATENCY: (target, value) => {
    target.settings.latency = latencyPoints(target, value);
    target.tracingChanged();
  },
};

const getters: { readonly [N in keyof RdsSocketOptions]: (target: OptionTarget) => RdsSocketOptions[N] } = {
  SO_SNDBUF: (target) => target.sendBufferBytes * 2,
  SO_RCVBUF: (target) => target.receiveBufferBytes * 2,
  SO_SNDTIMEO: (target) => target.settings.sendTimeoutMs,
  SO_RCVTIMEO: (target) => target.settings.receiveTimeoutMs,
  SO_ZEROCOPY: (target) => target.zerocopy,
  SO_TIMESTAMP: (target) => target.settings.timestamp,
  RDS_RECVERR: (target) => target.settings.receiveErrors,
  SO_RDS_TRANSPORT: () => TRANSPORT_TCP,
};

export function setOption(target: OptionTarget, name: string, value: unknown): void {
  if (!Object.hasOwn(setters, name)) throw unknownOption('setsockopt', name);
  setters[name as keyof RdsOptionValues](target, value);
}

export function getOption(target: OptionTarget, name: string): unknown {
  if (!Object.hasOwn(getters, name)) throw unknownOption('getsockopt', name);
  return getters[name as keyof RdsSocketOptions](target);
}

/** The points, checked as rds_recv_track_latency does. */
function latencyPoints(target: OptionTarget, value: unknown): readonly LatencyPoint[] {
  if (!Array.isArray(value)) throw wrongType('value', 'an array of numbers', value);
  const name = 'SO_RDS_MSG_RXPATH_LATENCY';
  if (value.length > LATENCY_POINTS)
    throw optionError('EFAULT', 'setsockopt', `${name}: at most ${LATENCY_POINTS} points`);
  const points: readonly unknown[] = [...value];
  if (points.every((point) => point === 0 || point === 1 || point === 2))
    return points as readonly LatencyPoint[];
  // As in the kernel, a wrong point leaves nothing of what was set before.
  target.settings.latency = [];
  target.tracingChanged();
  throw optionError('EFAULT', 'setsockopt', `${name}: points are 0, 1 and 2`);
}

function bufferBytes(value: unknown, least: number): number {
  checkInteger('value', value, 0, BUFFER_MAX);
  return Math.max(least, value);
}

function flag(value: unknown): boolean {
  if (typeof value !== 'boolean') throw wrongType('value', 'of type boolean', value);
  return value;
}

function unknownOption(syscall: string, name: string): ZerotxError {
  return optionError('ENOPROTOOPT', syscall, `no option ${String(name)}`);
}

function optionError(code: string, syscall: string, text: string): ZerotxError {
  return new ZerotxError(code, `${syscall} ${code}: ${text}`, { syscall });
}
