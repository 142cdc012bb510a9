/**
 * What the two `node:net` baselines share: a listening sender, a receiver that dials, and a target to wait for.
 *
 * The receiver dials because `onread`, which makes node read into one reused buffer instead of allocating, exists only
 * for sockets a program creates itself. Nagle's algorithm is off on both ends. The sender's high-water mark lets several
 * batches wait: with node's default a 28 KiB batch would be over it alone.
 */
import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';

const HIGH_WATER_MARK_BYTES = 256 << 10;

export interface NetSender {
  port: number;
  /** Resolves with the receiver's connection. */
  socket: Promise<Socket>;
  close(): void;
}

export async function listenForOne(): Promise<NetSender> {
  const server: Server = createServer({ noDelay: true, highWaterMark: HIGH_WATER_MARK_BYTES });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const socket = once(server, 'connection').then(([accepted]) => accepted as Socket);
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('no TCP port');
  return {
    port: address.port,
    socket,
    close() {
      server.close();
      void socket.then((accepted) => accepted.destroy());
    },
  };
}

/** Dials and reads everything into one buffer; `read` gets the bytes that are new, and must be done with them. */
export async function dialAndRead(
  port: number,
  bufferBytes: number,
  read: (buffer: Buffer, bytes: number) => void,
): Promise<Socket> {
  const buffer = Buffer.alloc(bufferBytes);
  const onread = {
    buffer,
    callback: (bytes: number): boolean => {
      read(buffer, bytes);
      return true;
    },
  };
  const socket = connect({ port, host: '127.0.0.1', noDelay: true, onread });
  await once(socket, 'connect');
  return socket;
}

/** Counts towards a moving target; the target is the total since the start, so early arrivals count too. */
export class Progress {
  #done = 0;
  #target = 0;
  #reached: (() => void) | undefined;

  add(amount: number): void {
    this.#done += amount;
    if (this.#done >= this.#target) {
      this.#reached?.();
      this.#reached = undefined;
    }
  }

  /** Resolves when `amount` more than all targets before have been added. */
  more(amount: number): Promise<void> {
    this.#target += amount;
    if (this.#done >= this.#target) return Promise.resolve();
    return new Promise((resolve) => {
      this.#reached = resolve;
    });
  }
}
