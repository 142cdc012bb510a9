/**
 * Sockets of the public door on loopback, for tests of what goes wrong: pairs of them, and single ones whose peer is a bare
 * descriptor that reads, resets and closes when the test says so. Everything is gone after closeDoor().
 *
 * The stream that they carry has the number of each group of 8 bytes in that group: a byte that is lost, doubled, moved by any
 * amount or not yet written shows.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { errnoOf } from '../../src/core/errors.ts';
import {
  type ConnectOptions,
  connect,
  createServer,
  type ServerOptions,
  type TcpServer,
  type TcpSocket,
  type ZerocopyOptions,
} from '../../src/net/index.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { EPOLLIN, EPOLLRDHUP, SHUT_WR } from '../../src/sys/constants.ts';
import { acceptOne, listen } from './channels.ts';
import { closeWithReset, waitFor } from './sockets.ts';

export const KIB = 1024;
export const MIB: number = 1 << 20;
export const HOST = '127.0.0.1';
/** Lends everything, Buffers on every runtime included. */
export const FORCE: ZerocopyOptions = { mode: 'force', pin: true, thresholdBytes: 1 };

const EAGAIN = -errnoOf('EAGAIN');
const closers: (() => void)[] = [];

/** For `afterEach`. */
export function closeDoor(): void {
  for (const close of closers.splice(0)) close();
}

/** Destroys the socket after the test, whose own business its errors are. */
export function own(socket: TcpSocket): TcpSocket {
  socket.on('error', () => {});
  closers.push(() => socket.destroy());
  return socket;
}

export async function listening(
  options: ServerOptions = {},
  listener?: (socket: TcpSocket) => void,
): Promise<{ server: TcpServer; port: number }> {
  const server = createServer(options, listener);
  server.on('connection', own);
  closers.push(() => server.close());
  server.listen(0, HOST);
  await once(server, 'listening');
  return { server, port: (server.address() as { port: number }).port };
}

export interface DoorPair {
  readonly client: TcpSocket;
  readonly peer: TcpSocket;
  readonly server: TcpServer;
}

/** Both ends are sockets of the door. */
export async function doorPair(
  client: Partial<ConnectOptions> = {},
  peer: ServerOptions = {},
): Promise<DoorPair> {
  const { server, port } = await listening(peer);
  const accepted = once(server, 'connection');
  const socket = own(connect({ port, host: HOST, ...client }));
  await once(socket, 'connect');
  const [other] = (await accepted) as [TcpSocket];
  return { client: socket, peer: other, server };
}

export interface RawOptions extends Partial<ConnectOptions> {
  /** Receive buffer of the peer: small, so that what it does not read stays with the sender. */
  readonly receiveBytes?: number;
}

export interface RawPair {
  readonly client: TcpSocket;
  readonly peer: RawPeer;
}

/**
 * A socket of the door, and a peer that does nothing by itself. `early` has the socket before it is connected; one that is not
 * `kept` is forgotten here.
 */
export async function rawPair(
  { receiveBytes, ...options }: RawOptions = {},
  early: (client: TcpSocket) => void = () => {},
  kept = true,
): Promise<RawPair> {
  const { fd, port } = listen(HOST, receiveBytes === undefined ? {} : { receiveBytes });
  try {
    const client = connect({ port, host: HOST, ...options });
    if (kept) own(client);
    early(client);
    const [peer] = await Promise.all([acceptOne(fd), once(client, 'connect')]);
    const raw = new RawPeer(peer);
    closers.push(() => raw.close());
    return { client, peer: raw };
  } finally {
    calls.close(fd);
  }
}

/** A descriptor whose stream is checked as it is read. */
export class RawPeer {
  readonly fd: number;
  /** Bytes read so far. */
  total = 0;
  /** 0 at the end of the stream, -errno of what ended it. */
  end: number | undefined;
  #isOpen = true;
  readonly #into: Buffer = Buffer.allocUnsafeSlow(256 * KIB);

  constructor(fd: number) {
    this.fd = fd;
  }

  /** Reads until it has `total` bytes in all, or until the stream ends. */
  async read(total: number = Number.POSITIVE_INFINITY): Promise<this> {
    if (this.total < total && this.end === undefined) {
      await waitFor(this.fd, EPOLLIN | EPOLLRDHUP, () => this.#readSome(total));
    }
    return this;
  }

  /** Reads no more than is there. */
  readNow(): void {
    this.#readSome(Number.POSITIVE_INFINITY);
  }

  send(bytes: Uint8Array): number {
    return native().sendv(this.fd, [bytes], 1, 0);
  }

  shutdownWrite(): void {
    native().shutdown(this.fd, SHUT_WR);
  }

  close(): void {
    if (this.#isOpen) calls.close(this.fd);
    this.#isOpen = false;
  }

  reset(): void {
    if (this.#isOpen) closeWithReset(this.fd);
    this.#isOpen = false;
  }

  /** True when there is nothing more to wait for. */
  #readSome(total: number): boolean {
    while (this.total < total) {
      const room = Math.min(this.#into.length, total - this.total);
      const n = native().readv(this.fd, [this.#into.subarray(0, room)], 1);
      if (n === EAGAIN) return false;
      if (n <= 0) {
        this.end = n;
        return true;
      }
      checkNumbers(this.#into.subarray(0, n), this.total);
      this.total += n;
    }
    return true;
  }
}

const GROUP = 8;
/** In the upper half of a group, so that small numbers do not look like empty memory. */
const MARK = 0xa5c3_96f0;

/** Fills `bytes` as the part of the stream that begins at `from`. */
export function fillNumbers(bytes: Uint8Array, from = 0): void {
  const first = Math.floor(from / GROUP);
  const groups = Math.ceil((from + bytes.length) / GROUP) - first;
  if (from % GROUP === 0 && bytes.length % GROUP === 0 && bytes.byteOffset % 4 === 0) {
    writeNumbers(new Uint32Array(bytes.buffer, bytes.byteOffset, 2 * groups), first);
    return;
  }
  const whole = new Uint32Array(2 * groups);
  writeNumbers(whole, first);
  const start = from - first * GROUP;
  bytes.set(new Uint8Array(whole.buffer, start, bytes.length));
}

/** A Buffer of its own memory with that part of the stream. */
export function numbers(bytes: number, from = 0): Buffer {
  const out = Buffer.allocUnsafeSlow(bytes);
  fillNumbers(out, from);
  return out;
}

export function checkNumbers(bytes: Uint8Array, from: number): void {
  const expected = numbers(bytes.length, from);
  if (expected.equals(bytes)) return;
  let at = 0;
  while (bytes[at] === expected[at]) at += 1;
  const seen = Buffer.from(bytes.subarray(at, at + 16)).toString('hex');
  assert.fail(`other bytes at ${from + at} of the stream: ${seen}`);
}

function writeNumbers(words: Uint32Array, first: number): void {
  for (let i = 0; i < words.length; i += 2) {
    words[i] = first + i / 2;
    words[i + 1] = MARK;
  }
}

/** How the socket closes, and all its errors. */
export async function closing(socket: TcpSocket): Promise<{ hadError: boolean; codes: string[] }> {
  const codes: string[] = [];
  socket.on('error', (error: NodeJS.ErrnoException) => codes.push(error.code ?? error.message));
  const hadError = await new Promise<boolean>((resolve) => socket.on('close', resolve));
  return { hadError, codes };
}

/** Another turn of the event loop. */
export function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/** Turns, each with all its events, until `done`; for what no event tells. */
export async function turnsUntil(what: string, done: () => boolean, turns = 100_000): Promise<void> {
  for (let i = 0; !done(); i++) {
    assert.ok(i < turns, `did not come: ${what}`);
    await turn();
  }
}
