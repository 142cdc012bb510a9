/**
 * Connected loopback sockets for tests of the native layer, and waits that end: every wait listens to the reactor and
 * has a deadline.
 */
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import {
  AF_INET,
  EPOLLIN,
  EPOLLOUT,
  EPOLLRDHUP,
  MSG_ZEROCOPY,
  SO_LINGER,
  SO_RCVBUF,
  SO_ZEROCOPY,
  SOCK_DGRAM,
  SOCK_STREAM,
  SOL_SOCKET,
} from '../../src/sys/constants.ts';
import { reactor } from '../../src/sys/reactor.ts';
import { ERRQUEUE_WORDS } from '../../src/wire/errqueue.ts';

export const DEADLINE_MS = 10_000;

export interface Pair {
  readonly client: number;
  readonly server: number;
  close(): void;
}

export interface PairOptions {
  /** Sets SO_ZEROCOPY on the client. */
  readonly zerocopy?: boolean;
  /** Receive buffer of the server: small, so that a peer that does not read holds the sender's pages. */
  readonly receiveBytes?: number;
}

/** A listening socket on 127.0.0.1; the port is chosen by the kernel. */
export function listener(options: PairOptions = {}): { fd: number; port: number } {
  const fd = calls.socket(AF_INET, SOCK_STREAM);
  if (options.receiveBytes !== undefined) calls.setOption(fd, SOL_SOCKET, SO_RCVBUF, options.receiveBytes);
  calls.bind(fd, '127.0.0.1', 0);
  calls.listen(fd, 16);
  return { fd, port: calls.localAddress(fd).port };
}

export async function tcpPair(options: PairOptions = {}): Promise<Pair> {
  const { fd: listening, port } = listener(options);
  const client = calls.socket(AF_INET, SOCK_STREAM);
  if (options.zerocopy === true) calls.setOption(client, SOL_SOCKET, SO_ZEROCOPY, 1);
  calls.connect(client, '127.0.0.1', port);
  let accepted: calls.Accepted | undefined;
  await waitFor(listening, EPOLLIN, () => {
    accepted ??= calls.accept(listening);
    return accepted !== undefined;
  });
  await waitFor(client, EPOLLOUT, (events) => (events & EPOLLOUT) !== 0);
  calls.close(listening);
  const server = (accepted as unknown as calls.Accepted).fd;
  return {
    client,
    server,
    close(): void {
      // Either may be closed by the test already.
      native().close(client);
      native().close(server);
    },
  };
}

/** A UDP socket bound to 127.0.0.1. */
export function udpSocket(): { fd: number; port: number } {
  const fd = calls.socket(AF_INET, SOCK_DGRAM);
  calls.bind(fd, '127.0.0.1', 0);
  return { fd, port: calls.localAddress(fd).port };
}

/** Resolves when `done` says so; it is asked at once with 0, and then at each event. */
export function waitFor(fd: number, events: number, done: (events: number) => boolean): Promise<void> {
  return new Promise((resolve, reject) => {
    if (done(0)) {
      resolve();
      return;
    }
    const registration = reactor().add(fd, events, (seen) => {
      let finished = true;
      try {
        finished = done(seen);
        if (finished) resolve();
      } catch (error) {
        reject(error);
      }
      if (!finished) return;
      clearTimeout(timer);
      registration.remove();
    });
    const timer = setTimeout(() => {
      registration.remove();
      reject(new Error(`no event on descriptor ${fd} within ${DEADLINE_MS} ms`));
    }, DEADLINE_MS);
  });
}

/** Waits until all zero-copy calls of `fd` are confirmed; returns the records that said so. */
export async function released(fd: number): Promise<Uint32Array[]> {
  const records: Uint32Array[] = [];
  await waitFor(fd, EPOLLRDHUP, () => {
    records.push(...drain(fd));
    return native().outstanding(fd) === 0;
  });
  return records;
}

/** Empties the error queue. */
export function drain(fd: number): Uint32Array[] {
  const out = new Uint32Array(8 * ERRQUEUE_WORDS);
  const records: Uint32Array[] = [];
  let count: number;
  do {
    count = native().drainErrors(fd, out);
    for (let i = 0; i < count; i++) records.push(out.slice(i * ERRQUEUE_WORDS, (i + 1) * ERRQUEUE_WORDS));
  } while (count === 8);
  return records;
}

/** Reads and drops what arrives, until the function returned is called. */
export function discard(fd: number): () => void {
  const into = [Buffer.alloc(256 * 1024)];
  const registration = reactor().add(fd, EPOLLIN, () => {
    while (native().readv(fd, into, 1) > 0);
  });
  return () => registration.remove();
}

/** Sends `bytes` with MSG_ZEROCOPY until the socket takes no more or `callsMax` were made; returns the calls taken. */
export function fillZerocopy(fd: number, bytes: Uint8Array, callsMax: number): number {
  for (let taken = 0; taken < callsMax; taken++) {
    if (native().sendv(fd, [bytes], 1, MSG_ZEROCOPY) <= 0) return taken;
  }
  return callsMax;
}

/** close(2) that sends RST: SO_LINGER with a time of 0. */
export function closeWithReset(fd: number): void {
  native().setsockopt(fd, SOL_SOCKET, SO_LINGER, new Uint8Array(Int32Array.of(1, 0).buffer));
  calls.close(fd);
}

/** Page-aligned memory that may be lent. */
export function lendable(bytes: number): Buffer {
  const memory = native().slabCreate(bytes, false);
  if (typeof memory === 'number') throw new Error(`slabCreate: ${memory}`);
  return Buffer.from(memory, 0, bytes);
}
