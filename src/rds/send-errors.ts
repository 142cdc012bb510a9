/** What sendmsg() and send() say on either transport, where the kernel does not say it. */
import { ZerotxError } from '../core/errors.ts';
import type { RdsAddress } from './options.ts';
import type { Refusal } from './pending.ts';

const reasons: Readonly<Record<Refusal, string>> = {
  EAGAIN: 'the send buffer is full',
  ENOBUFS: 'the destination port is congested',
  ENOMEM: 'the memlock budget is used up',
};

export function refused(code: Refusal, { address, port }: RdsAddress): ZerotxError {
  return new ZerotxError(code, `sendmsg ${code}: ${reasons[code]}`, { syscall: 'sendmsg', address, port });
}

export function notConnected(syscall: string): ZerotxError {
  const text = `${syscall} ENOTCONN: no destination given, and the socket is not connected`;
  return new ZerotxError('ENOTCONN', text, { syscall });
}

/** Withdrawn: `before` what had not happened to the message, as far as this side can tell. */
export function cancelled(why: string, before: string): ZerotxError {
  const text = `send ECANCELED: ${why} before the message was ${before}`;
  return new ZerotxError('ECANCELED', text, { syscall: 'send' });
}

export function resized(): ZerotxError {
  const text = 'send EINVAL: the buffer was detached or resized while the message waited';
  return new ZerotxError('EINVAL', text, { syscall: 'send' });
}

export function taken(): ZerotxError {
  const text = 'the lent buffer was detached or resized before the message was acknowledged';
  return new ZerotxError('ZTX_MEMORY_TAKEN', text, { syscall: 'send' });
}
