/**
 * TcpChannels on loopback for tests: a channel with its events, whose peer is a bare descriptor that reads only when the
 * test says so; lent memory with a pattern; and waits that listen to events and end.
 */
import assert from 'node:assert/strict';
import type { ZerotxError } from '../../src/core/errors.ts';
import { errnoOf } from '../../src/core/errors.ts';
import { releases } from '../../src/core/releases.ts';
import { type Outcome, Ubuf } from '../../src/core/ubuf.ts';
import { type ZerocopyCounters, zerocopyCounters } from '../../src/net/counters.ts';
import { TcpChannel, type TcpHandler, type TcpOptions } from '../../src/net/tcp.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import {
  EPOLLIN,
  EPOLLOUT,
  EPOLLRDHUP,
  SO_RCVBUF,
  SO_SNDBUF,
  SOCK_STREAM,
  SOL_SOCKET,
} from '../../src/sys/constants.ts';
import { closeWithReset, DEADLINE_MS, lendable, type PairOptions, waitFor } from './sockets.ts';

const EAGAIN = -errnoOf('EAGAIN');
// The real ones: a test may put the global timers on virtual time.
const { setTimeout: startTimer, clearTimeout: stopTimer } = globalThis;

/** Keeps the events of a channel, and lets tests wait for a state that they bring about. */
export class Watched implements TcpHandler {
  readonly events: string[] = [];
  error: ZerotxError | undefined;
  readonly #waiting = new Set<() => void>();

  connected(): void {
    this.#happened('connected');
  }

  readable(): void {
    this.#happened('readable');
  }

  writable(): void {
    this.#happened('writable');
  }

  released(): void {
    this.#happened('released');
  }

  failed(error: ZerotxError): void {
    this.error = error;
    this.#happened('failed');
  }

  /** Resolves when `done` says so; it is asked at once and after each event, when the releases have been told. */
  until(done: () => boolean): Promise<void> {
    return new Promise((resolve, reject) => {
      const ask = (): void => {
        try {
          if (!done()) return;
          resolve();
        } catch (error) {
          reject(error);
        }
        stopTimer(timer);
        this.#waiting.delete(ask);
      };
      const timer = startTimer(() => {
        this.#waiting.delete(ask);
        reject(new Error(`not within ${DEADLINE_MS} ms; events: ${this.events.slice(-20).join(' ')}`));
      }, DEADLINE_MS);
      this.#waiting.add(ask);
      ask();
    });
  }

  #happened(event: string): void {
    this.events.push(event);
    // Behind the releases that the same event caused: these are microtasks, too, and were queued earlier.
    for (const ask of this.#waiting) queueMicrotask(ask);
  }
}

export interface ChannelPair {
  readonly channel: TcpChannel;
  readonly watched: Watched;
  readonly counters: ZerocopyCounters;
  /** Descriptor of the other end. */
  readonly peer: number;
  /** close(2) of the other end, and one that sends RST. */
  closePeer(): void;
  resetPeer(): void;
}

export interface ChannelOptions extends PairOptions, Partial<TcpOptions> {
  /** 127.0.0.1 if left out. */
  readonly address?: string;
  /** Send buffer of the channel: small, so that calls take less than they were offered. */
  readonly sendBytes?: number;
}

/** A channel that lends (mode `force`) unless told otherwise, connected. */
export async function channelPair(options: ChannelOptions = {}): Promise<ChannelPair> {
  const { address = '127.0.0.1', counters = zerocopyCounters() } = options;
  const listening = listen(address, options);
  const client = calls.socketFor(address, SOCK_STREAM);
  if (options.sendBytes !== undefined) calls.setOption(client, SOL_SOCKET, SO_SNDBUF, options.sendBytes);
  calls.connect(client, address, listening.port);
  const peer = await acceptOne(listening.fd);
  await waitFor(client, EPOLLOUT, (events) => (events & EPOLLOUT) !== 0);
  calls.close(listening.fd);
  const watched = new Watched();
  const tcp: TcpOptions = { mode: 'force', ...options, counters };
  const channel = TcpChannel.adopt(client, { address, port: listening.port }, tcp, watched);
  const closePeer = (close: (fd: number) => void): void => {
    // Once: the number may belong to another socket by then.
    if (open.get(channel) === peer) close(peer);
    open.set(channel, undefined);
  };
  open.set(channel, peer);
  return {
    channel,
    watched,
    counters,
    peer,
    closePeer: () => closePeer(calls.close),
    resetPeer: () => closePeer(closeWithReset),
  };
}

/** Channels of the test that runs, and their peers' descriptors while these are open. */
const open = new Map<TcpChannel, number | undefined>();

/** For `afterEach`: ends all channels and peers, so that a failed test leaves nothing that keeps the process alive. */
export function closeChannels(): void {
  for (const [channel, peer] of open) {
    channel.reset();
    if (peer !== undefined) calls.close(peer);
  }
  open.clear();
}

export function listen(address: string, options: PairOptions = {}): { fd: number; port: number } {
  const fd = calls.socketFor(address, SOCK_STREAM);
  if (options.receiveBytes !== undefined) calls.setOption(fd, SOL_SOCKET, SO_RCVBUF, options.receiveBytes);
  calls.bind(fd, address, 0);
  calls.listen(fd, 16);
  return { fd, port: calls.localAddress(fd).port };
}

export async function acceptOne(listening: number): Promise<number> {
  let accepted: calls.Accepted | undefined;
  await waitFor(listening, EPOLLIN, () => {
    accepted ??= calls.accept(listening);
    return accepted !== undefined;
  });
  return (accepted as unknown as calls.Accepted).fd;
}

/** A prime, so that no boundary of pages, segments or buffers falls together with the pattern's. */
const PATTERN_BYTES = 65_521;
const CHUNK_BYTES = 256 * 1024;
const pattern = Buffer.alloc(PATTERN_BYTES + CHUNK_BYTES);
for (let i = 0; i < pattern.length; i++) {
  const at = i % PATTERN_BYTES;
  pattern[i] = (at * 31 + (at >> 8) * 7) & 0xff;
}

/** Fills `bytes` as the part of a stream that begins at `from`. */
export function fillPattern(bytes: Uint8Array, from = 0): void {
  for (let at = 0; at < bytes.length; at += CHUNK_BYTES) {
    const start = (from + at) % PATTERN_BYTES;
    bytes.set(pattern.subarray(start, start + Math.min(CHUNK_BYTES, bytes.length - at)), at);
  }
}

export interface Lent {
  readonly ubuf: Ubuf;
  readonly bytes: Buffer;
  /** One entry for each time the owner was told. */
  readonly outcomes: Outcome[];
}

/** Lends `bytes`, or new memory of that size with the pattern of the stream from `from`. */
export function lend(what: number | Buffer, from = 0): Lent {
  const bytes = typeof what === 'number' ? lendable(what) : what;
  if (typeof what === 'number') fillPattern(bytes, from);
  const outcomes: Outcome[] = [];
  return { ubuf: new Ubuf([bytes], (outcome) => outcomes.push(outcome), releases), bytes, outcomes };
}

/**
 * Offers one piece as protocols do: lent if the policy says so, else copied. Returns what the channel took, 0 when its
 * buffer is full, -errno when the connection is gone.
 */
export function offer(channel: TcpChannel, ubuf: Ubuf, piece: Uint8Array): number {
  if (channel.lends(piece.length)) return channel.sendLent(ubuf, [piece], 1);
  const n = channel.send([piece], 1, false);
  if (n > 0) channel.copied(ubuf, n);
  return n;
}

/** Writes all of it, in pieces, and drops the owner's reference; resolves when it is accepted. */
export async function write(
  pair: Pick<ChannelPair, 'channel' | 'watched'>,
  { ubuf, bytes }: Lent,
  pieceBytes: number = 1 << 20,
): Promise<void> {
  let at = 0;
  await pair.watched.until(() => {
    while (at < bytes.length) {
      const n = offer(pair.channel, ubuf, bytes.subarray(at, at + pieceBytes));
      assert.ok(n >= 0, `errno ${n}`);
      if (n === 0) return false;
      at += n;
    }
    return true;
  });
  ubuf.unref();
}

/** Lends and offers pieces of `pieceBytes` until the channel takes no more, or `count` of them were taken. */
export function fill(pair: ChannelPair, pieceBytes: number, count: number): Lent[] {
  const taken: Lent[] = [];
  for (let from = 0; taken.length < count; from += pieceBytes) {
    const lent = lend(pieceBytes, from);
    const n = pair.channel.sendLent(lent.ubuf, [lent.bytes], 1);
    lent.ubuf.unref();
    if (n > 0) taken.push(lent);
    // A part of a piece ends the pattern of the stream.
    if (n < pieceBytes) break;
  }
  return taken;
}

export interface Received {
  readonly total: number;
  /** 0 at the end of the stream, -errno of the last read; undefined if `total` was reached before. */
  readonly end: number | undefined;
}

/** Reads to the end, or until `wanted` bytes are there, and checks that they follow the pattern from `from` on. */
export async function receive(
  fd: number,
  wanted: number = Number.POSITIVE_INFINITY,
  from = 0,
): Promise<Received> {
  const into = Buffer.alloc(CHUNK_BYTES);
  let total = 0;
  let end: number | undefined;
  await waitFor(fd, EPOLLIN | EPOLLRDHUP, () => {
    while (total < wanted) {
      const n = native().readv(fd, [into], 1);
      if (n === EAGAIN) return false;
      if (n <= 0) {
        end = n;
        return true;
      }
      const start = (from + total) % PATTERN_BYTES;
      const same = into.subarray(0, n).equals(pattern.subarray(start, start + n));
      assert.ok(same, `other bytes within ${n} at ${from + total}`);
      total += n;
    }
    return true;
  });
  return { total, end };
}
