/**
 * One flagged send, for real: over a pair of sockets of this process on the loopback device, until the kernel says that
 * it is done with the memory.
 */
import { errnoError, ZerotxError } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import {
  EPOLLIN,
  EPOLLOUT,
  EPOLLRDHUP,
  MSG_ZEROCOPY,
  SO_RCVBUF,
  SO_ZEROCOPY,
  SOCK_DGRAM,
  SOCK_STREAM,
  SOL_SOCKET,
} from '../sys/constants.ts';
import { reactor } from '../sys/reactor.ts';
import { ERRQUEUE_WORDS, isCopied, isZerocopyCompletion } from '../wire/errqueue.ts';

export interface Pair {
  readonly sender: number;
  readonly receiver: number;
}

export interface Trial {
  /** What the kernel took of the buffers. */
  readonly bytes: number;
  /** Whether the kernel copied after all. */
  readonly copied: boolean;
}

/** There is nothing to try: the family is not there, or has no loopback. */
export class Absent extends ZerotxError {
  constructor(why: string, cause?: unknown) {
    super('EAFNOSUPPORT', why, { cause });
  }
}

/** Codes by which a system without IPv6, or with its loopback device down, says so. */
const absentCodes = new Set(['EAFNOSUPPORT', 'EADDRNOTAVAIL', 'ENETUNREACH', 'ENODEV', 'EPROTONOSUPPORT']);

/** Runs `make`, whose first calls show whether there is a loopback at all. */
export async function orAbsent<T>(make: () => Promise<T> | T): Promise<T> {
  try {
    return await make();
  } catch (error) {
    if (error instanceof Absent || !(error instanceof ZerotxError) || !absentCodes.has(error.code))
      throw error;
    throw new Absent(`no loopback for it here (${error.message})`, error);
  }
}

/** Takes descriptors to be closed when the work is over. */
export type Keep = (fd: number) => number;

/** Runs `work`, then closes what it kept, whatever happened; lent pages are taken off the wire first. */
export async function withSockets<T>(work: (keep: Keep) => Promise<T> | T): Promise<T> {
  const open: number[] = [];
  try {
    return await work((fd) => {
      open.push(fd);
      return fd;
    });
  } finally {
    const sys = native();
    for (const fd of open) {
      if (sys.outstanding(fd) > 0) sys.abort(fd);
      sys.close(fd);
    }
  }
}

/** Two connected TCP sockets on `address`; the receiver's buffer, and with it its window, has `receiveBytes`. */
export function tcpPair(
  keep: Keep,
  address: string,
  signal: AbortSignal,
  receiveBytes?: number,
): Promise<Pair> {
  return orAbsent(() => connectPair(keep, address, signal, receiveBytes));
}

async function connectPair(
  keep: Keep,
  address: string,
  signal: AbortSignal,
  receiveBytes: number | undefined,
): Promise<Pair> {
  const listening = keep(calls.socketFor(address, SOCK_STREAM));
  if (receiveBytes !== undefined) calls.setOption(listening, SOL_SOCKET, SO_RCVBUF, receiveBytes);
  calls.bind(listening, address, 0);
  calls.listen(listening, 1);
  const sender = keep(calls.socketFor(address, SOCK_STREAM));
  calls.connect(sender, address, calls.localAddress(listening).port);
  let receiver = -1;
  await ready(listening, EPOLLIN, signal, () => {
    const accepted = calls.accept(listening);
    if (accepted !== undefined) receiver = keep(accepted.fd);
    return receiver >= 0;
  });
  await ready(sender, EPOLLOUT, signal, (events) => (events & EPOLLOUT) !== 0);
  return { sender, receiver };
}

/** Two UDP sockets on `address`, the sender connected to the receiver. */
export function udpPair(keep: Keep, address: string): Promise<Pair> {
  return orAbsent(() => {
    const receiver = keep(calls.socketFor(address, SOCK_DGRAM));
    calls.bind(receiver, address, 0);
    const sender = keep(calls.socketFor(address, SOCK_DGRAM));
    calls.connect(sender, address, calls.localAddress(receiver).port);
    return { sender, receiver };
  });
}

/** Memory of the kernel's kind: whole pages, not huge. */
export function pages(bytes: number): Uint8Array {
  const memory = native().slabCreate(bytes, false);
  if (typeof memory === 'number') throw errnoError(memory, 'mmap');
  return new Uint8Array(memory, 0, bytes);
}

/** Sends `views` from where they are and waits for the release; throws the kernel's refusal. */
export async function lendOnce(
  fd: number,
  views: readonly Uint8Array[],
  signal: AbortSignal,
): Promise<Trial> {
  calls.setOption(fd, SOL_SOCKET, SO_ZEROCOPY, 1);
  const sys = native();
  const bytes = sys.sendv(fd, views, views.length, MSG_ZEROCOPY);
  const records = new Uint32Array(4 * ERRQUEUE_WORDS);
  if (bytes < 0) {
    // It may have used up a number: the queue tells, before the next call is made.
    sys.drainErrors(fd, records);
    throw errnoError(bytes, 'sendmsg');
  }
  let copied = false;
  await ready(fd, EPOLLRDHUP, signal, () => {
    const count = sys.drainErrors(fd, records);
    for (let i = 0; i < count; i++) {
      if (isZerocopyCompletion(records, i) && isCopied(records, i)) copied = true;
    }
    return sys.outstanding(fd) === 0;
  });
  return { bytes, copied };
}

/** Reads and drops what arrives, until the function returned is called: a sender waits for a reader. */
export function discard(fd: number): () => void {
  const into = [new Uint8Array(64 * 1024)];
  const registration = reactor().add(fd, EPOLLIN, () => {
    while (native().readv(fd, into, 1) > 0);
  });
  return () => registration.remove();
}

/** Resolves when `done` says so: it is asked at once, and at every event. */
export function ready(
  fd: number,
  events: number,
  signal: AbortSignal,
  done: (events: number) => boolean,
): Promise<void> {
  return new Promise((resolve, reject) => {
    if (done(0)) {
      resolve();
      return;
    }
    const finish = (error?: unknown): void => {
      registration.remove();
      signal.removeEventListener('abort', expired);
      if (error === undefined) resolve();
      else reject(error);
    };
    const expired = (): void => finish(new ZerotxError('ETIMEDOUT', 'nothing happened in time'));
    const registration = reactor().add(fd, events, (seen) => {
      try {
        if (done(seen)) finish();
      } catch (error) {
        finish(error);
      }
    });
    signal.addEventListener('abort', expired);
    if (signal.aborted) expired();
  });
}
