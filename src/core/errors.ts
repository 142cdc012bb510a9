/**
 * Errors that say what the caller should do next.
 *
 * `code` is Node's name of the errno (`EAGAIN`) or one of ours (`ZTX_...`); `errno` is negative as in Node;
 * `next` answers the only question a caller has: try the same call again, open a new connection, or give up.
 */
import { constants } from 'node:os';

export type Next = 'retry' | 'reconnect' | 'fatal';

export interface ErrorDetails {
  /** System call or API call that failed, e.g. `bind` or `sendmsg`. */
  syscall?: string;
  next?: Next;
  cause?: unknown;
  address?: string;
  port?: number;
}

export class ZerotxError extends Error {
  override readonly name: string = 'ZerotxError';
  readonly code: string;
  /** Negative errno, or 0 for a `ZTX_...` code. */
  readonly errno: number;
  readonly syscall: string | undefined;
  readonly next: Next;
  readonly address: string | undefined;
  readonly port: number | undefined;

  constructor(code: string, message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.code = code;
    // Not a minus sign, which would make -0 of 0.
    this.errno = 0 - (errnoByName.get(code) ?? 0);
    this.syscall = details.syscall;
    this.next = details.next ?? defaultNext(code);
    this.address = details.address;
    this.port = details.port;
  }
}

/** An error for `-errno` as a native call returned it. */
export function errnoError(
  errno: number,
  syscall: string,
  details: ErrorDetails & { hint?: string } = {},
): ZerotxError {
  const code = errnoName(errno);
  const where =
    details.address === undefined
      ? ''
      : ` ${details.address}${details.port === undefined ? '' : `:${details.port}`}`;
  const hint = details.hint === undefined ? '' : `: ${details.hint}`;
  return new ZerotxError(code, `${syscall} ${code}${where}${hint}`, { ...details, syscall });
}

/** `EAGAIN` for 11 or -11; `E524`-like names for errnos that libc does not know (524 is the kernel's own ENOTSUPP). */
export function errnoName(errno: number): string {
  return nameByErrno.get(Math.abs(errno)) ?? `E${Math.abs(errno)}`;
}

/** 11 for `EAGAIN`; throws on a name this platform does not have, which is a bug of the caller. */
export function errnoOf(name: string): number {
  const value = errnoByName.get(name);
  if (value === undefined) throw new RangeError(`unknown errno name ${name}`);
  return value;
}

const errnoByName = new Map<string, number>(Object.entries(constants.errno));
// EWOULDBLOCK and EDEADLOCK share a number with EAGAIN and EDEADLK, EOPNOTSUPP with ENOTSUP: the field says the former.
const nameByErrno = new Map<number, string>();
for (const [name, value] of errnoByName) if (!nameByErrno.has(value)) nameByErrno.set(value, name);
nameByErrno.set(constants.errno.EAGAIN, 'EAGAIN');
nameByErrno.set(constants.errno.EOPNOTSUPP, 'EOPNOTSUPP');

const retryCodes = new Set([
  'EAGAIN',
  'EINTR',
  'ENOBUFS',
  'ENOMEM',
  'EMFILE',
  'ENFILE',
  'ETIMEDOUT',
  'ABORT_ERR',
  'EADDRINUSE',
]);
const reconnectCodes = new Set([
  'ECONNRESET',
  'ECONNREFUSED',
  'EPIPE',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ENOTCONN',
]);

function defaultNext(code: string): Next {
  if (retryCodes.has(code)) return 'retry';
  return reconnectCodes.has(code) ? 'reconnect' : 'fatal';
}
