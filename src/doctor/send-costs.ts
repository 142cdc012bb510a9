/**
 * What a send costs its process on this machine when it copies and when it lends: measured, on loopback, in a tenth of a
 * second.
 *
 * A copy has no one price. The cheapest is of memory in a cache into pages that the kernel has just had back, the dearest of
 * memory in no cache into pages that are in none either, with megabytes on their way; a program's sends lie between. Lending has
 * nearly one price, whatever is where.
 *
 *   cheap copy   send, read it away at the other end, send the same memory again
 *   dear copy    send until the receiver's window and the sender's queue are full; then a reset takes everything back
 *   lending      the same with the flag, and with the completions: lent pages are copied at delivery, so nothing may be delivered
 *
 * What a device does with the pages later is the same for both and not measured.
 */
import { errnoError, errnoOf } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import { MSG_ZEROCOPY, SO_ZEROCOPY, SOL_SOCKET } from '../sys/constants.ts';
import { ERRQUEUE_WORDS } from '../wire/errqueue.ts';
import { pages, tcpPair, withSockets } from './loopback.ts';

/** Milliseconds for 10^9 bytes. */
export interface SendCosts {
  readonly cheapCopyMs: number;
  readonly dearCopyMs: number;
  /** Undefined where lending was refused. */
  readonly lendMs: number | undefined;
  /** Bytes of each call. */
  readonly pieceBytes: number;
}

const PIECE_BYTES = 64 * 1024;
/** More than most caches hold; every byte of it is sent once or twice. */
const MEMORY_BYTES = 64 * 1024 * 1024;
const ROUNDS = 9;
const CHEAP_CALLS = 64;
/** A queue takes about 4 MiB; more than this would be another situation than the one meant. */
const CALLS_MAX = 256;
/** A very small window would make the kernel cut very small packets. */
const RECEIVE_BYTES = 128 * 1024;
const LIMIT_MS = 3000;
const EAGAIN = -errnoOf('EAGAIN');
const ENOBUFS = -errnoOf('ENOBUFS');

/** Throws what the system refuses: EAFNOSUPPORT without loopback, ENOMEM, ETIMEDOUT. */
export async function measureSendCosts(): Promise<SendCosts> {
  const signal = AbortSignal.timeout(LIMIT_MS);
  const memory = pages(MEMORY_BYTES).fill(1);
  const dear: number[] = [];
  const lent: number[] = [];
  let offset = 0;
  const next = (): Uint8Array => {
    offset = (offset + PIECE_BYTES) % MEMORY_BYTES;
    return memory.subarray(offset, offset + PIECE_BYTES);
  };
  // In turns, so that whatever else the machine does meanwhile meets both.
  for (let i = 0; i < ROUNDS; i++) {
    for (const [flags, costs] of [
      [0, dear],
      [MSG_ZEROCOPY, lent],
    ] as const) {
      const costMs = await fillQueue(next, flags, signal);
      if (costMs !== undefined) costs.push(costMs);
    }
  }
  return {
    cheapCopyMs: await sendAndRead(memory.subarray(0, PIECE_BYTES), signal),
    dearCopyMs: median(dear),
    lendMs: lent.length === 0 ? undefined : median(lent),
    pieceBytes: PIECE_BYTES,
  };
}

/** Undefined if no call was taken. */
function fillQueue(next: () => Uint8Array, flags: number, signal: AbortSignal): Promise<number | undefined> {
  return withSockets(async (keep) => {
    const sys = native();
    const { sender } = await tcpPair(keep, '127.0.0.1', signal, RECEIVE_BYTES);
    if (flags !== 0) calls.setOption(sender, SOL_SOCKET, SO_ZEROCOPY, 1);
    for (let i = 0; i < CALLS_MAX && sys.outq(sender) < PIECE_BYTES; i++) send(sender, next(), 0);
    const records = new Uint32Array(CALLS_MAX * ERRQUEUE_WORDS);
    const startMs = performance.now();
    let bytes = 0;
    for (let i = 0; i < CALLS_MAX; i++) {
      const n = send(sender, next(), flags);
      if (n <= 0) break;
      bytes += n;
    }
    sys.abort(sender);
    while (sys.drainErrors(sender, records) > 0);
    const tookMs = performance.now() - startMs;
    return bytes === 0 ? undefined : (tookMs / bytes) * 1e9;
  });
}

function sendAndRead(piece: Uint8Array, signal: AbortSignal): Promise<number> {
  return withSockets(async (keep) => {
    const { sender, receiver } = await tcpPair(keep, '127.0.0.1', signal);
    const into = [new Uint8Array(2 * PIECE_BYTES)];
    const costs: number[] = [];
    for (let i = 0; i < CHEAP_CALLS; i++) {
      const startMs = performance.now();
      const n = send(sender, piece, 0);
      if (n > 0) costs.push(((performance.now() - startMs) / n) * 1e9);
      while (native().readv(receiver, into, 1) > 0);
    }
    return median(costs);
  });
}

/** Bytes taken; 0 when the queue is full or a limit on lent memory is reached. */
function send(fd: number, bytes: Uint8Array, flags: number): number {
  const n = native().sendv(fd, [bytes], 1, flags);
  if (n >= 0) return n;
  if (n === EAGAIN || n === ENOBUFS) return 0;
  throw errnoError(n, 'sendmsg');
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[sorted.length >> 1] as number;
}
