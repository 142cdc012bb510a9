/**
 * What the RDS cells share: an open node with one socket, source buffers that are lent and come back by their cookies,
 * and a way to wait for room.
 *
 * Both variants, `copy` and `zerocopy`, run on the same socket and out of the same buffers in the same order, so that
 * they differ in one flag only. Copying, a buffer is free again when sendmsg() returns; lent, when its cookie is back.
 */
import { type RdsAddress, type RdsMessage, RdsNode, type RdsSocket, ZerotxError } from 'zerotx/rds';
import type { Options } from './cell.ts';
import { numberOption, textOption } from './cell.ts';

const PORT = 4000;

export interface Endpoint {
  node: RdsNode;
  socket: RdsSocket;
  peer: RdsAddress;
  close(): Promise<void>;
}

/** Options: `<side>Address` of this side and `<peer side>Address`, `bufferBytes` for both directions. */
export async function openEndpoint(options: Options, side: string, peerSide: string): Promise<Endpoint> {
  const bufferBytes = numberOption(options, 'bufferBytes');
  const node = await RdsNode.open({ address: textOption(options, `${side}Address`) });
  const socket = node.bind(PORT, {
    zerocopy: true,
    sendBufferBytes: bufferBytes,
    receiveBufferBytes: bufferBytes,
  });
  const peer = { address: textOption(options, `${peerSide}Address`), port: PORT };
  return { node, socket, peer, close: () => node.close() };
}

/** Source buffers of one kind of message. */
export class Sources {
  /** Microseconds spent in sendmsg() calls that were accepted, and their number. */
  callUs = 0;
  calls = 0;
  readonly #endpoint: Endpoint;
  readonly #buffers: Buffer[];
  readonly #firstCookie: number;
  readonly #free: number[];

  constructor(endpoint: Endpoint, count: number, messageBytes: number, firstCookie = 0) {
    this.#endpoint = endpoint;
    this.#buffers = Array.from({ length: count }, (_, i) => Buffer.alloc(messageBytes, i + 1));
    this.#firstCookie = firstCookie;
    this.#free = this.#buffers.map((_, i) => i);
  }

  /** Buffers that are lent now. */
  get lent(): number {
    return this.#buffers.length - this.#free.length;
  }

  /**
   * Sends the next free buffer after `prepare` has seen it; false if none is free or there is no room: then a cookie
   * or 'writable' comes.
   */
  trySend(variant: string, prepare?: (buffer: Buffer) => void): boolean {
    const index = this.#free[0];
    if (index === undefined) return false;
    const { socket, peer } = this.#endpoint;
    const buffer = this.#buffers[index]!;
    prepare?.(buffer);
    const lend = variant === 'zerocopy';
    const start = performance.now();
    try {
      if (lend) socket.sendmsg(buffer, peer, { zerocopy: true, cookie: this.#firstCookie + index });
      else socket.sendmsg(buffer, peer);
    } catch (error) {
      if (error instanceof ZerotxError && error.next === 'retry') return false;
      throw error;
    }
    this.callUs += (performance.now() - start) * 1e3;
    this.calls++;
    // First in, first out: every buffer is used in turn, so lending and copying read the same memory.
    this.#free.shift();
    if (!lend) this.#free.push(index);
    return true;
  }

  /** Takes back what these cookies stand for; those of other sources are left alone. */
  giveBack(cookies: readonly number[]): void {
    for (const cookie of cookies) {
      const index = cookie - this.#firstCookie;
      if (index >= 0 && index < this.#buffers.length) this.#free.push(index);
    }
  }
}

/** Receives all there is: messages go to `take`, which must be done with them, cookies to `completed`. */
export function receiveAll(
  socket: RdsSocket,
  take: (message: RdsMessage) => void,
  completed: (cookies: readonly number[]) => void,
): void {
  for (let received = socket.recvmsg(); received !== null; received = socket.recvmsg()) {
    if (received.kind === 'congestion') continue;
    if (received.kind === 'data') {
      take(received);
      if (received.cookies.length > 0) completed(received.cookies);
      received.recycle();
    } else completed(received.cookies);
  }
}

/** Calls `step` now and at every event of the socket, until it says that all is done. */
export function untilDone(socket: RdsSocket, step: () => boolean): Promise<void> {
  return new Promise((resolve, reject) => {
    const turn = (): void => {
      try {
        if (!step()) return;
        stop();
        resolve();
      } catch (error) {
        stop();
        reject(error);
      }
    };
    const stop = (): void => {
      socket.off('readable', turn);
      socket.off('writable', turn);
    };
    socket.on('readable', turn);
    socket.on('writable', turn);
    turn();
  });
}
