/**
 * What the cells over TCP sockets share: a listening sender, a receiver that dials, and a target to wait for.
 *
 * All of it runs over `node:net` or over `zerotx/net`, whichever module it is given: the two have the same calls, and
 * the program around them is to be the same.
 *
 * The receiver dials because `onread`, which makes node read into one reused buffer instead of allocating, exists only
 * for sockets a program creates itself. Nagle's algorithm is off on both ends. The sender's high-water mark lets several
 * messages wait: at node's default, 16 KiB, each of them would be over it alone, and be followed by a wait for 'drain'.
 */
import { once } from 'node:events';
import type { Server, Socket } from 'node:net';
import * as nodeNet from 'node:net';
import { numberOption, type Options, textOption } from './cell.ts';

export type Net = Pick<typeof nodeNet, 'connect' | 'createServer'>;

/** Options of a socket besides its address. */
export interface SocketOptions {
  noDelay: boolean;
  highWaterMark: number;
  /** Known to zerotx/net; node:net looks past it. */
  zerocopy?: { mode: 'auto' | 'force' | 'off'; thresholdBytes: number };
}

const HIGH_WATER_MARK_BYTES = 256 << 10;

/** The module that the option `transport` names, `node:net` or `zerotx/net`. */
export async function netModule(options: Options): Promise<Net> {
  const transport = textOption(options, 'transport');
  return transport === 'node:net' ? nodeNet : ((await import('zerotx/net')) as unknown as Net);
}

/** From the options `mode` and `thresholdBytes`, if there are any. */
export function socketOptions(options: Options): SocketOptions {
  return {
    noDelay: true,
    highWaterMark: HIGH_WATER_MARK_BYTES,
    ...('mode' in options && {
      zerocopy: {
        mode: textOption(options, 'mode') as 'auto' | 'force' | 'off',
        thresholdBytes: numberOption(options, 'thresholdBytes'),
      },
    }),
  };
}

export interface NetSender {
  port: number;
  /** Resolves with the receiver's connection. */
  socket: Promise<Socket>;
  close(): void;
}

export async function listenForOne(
  net: Net = nodeNet,
  options: SocketOptions = socketOptions({}),
): Promise<NetSender> {
  const server: Server = net.createServer(options);
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
  net: Net = nodeNet,
  options: SocketOptions = socketOptions({}),
): Promise<Socket> {
  const buffer = Buffer.alloc(bufferBytes);
  const onread = {
    buffer,
    callback: (bytes: number): boolean => {
      read(buffer, bytes);
      return true;
    },
  };
  const socket = net.connect({ port, host: '127.0.0.1', ...options, onread });
  await once(socket, 'connect');
  return socket;
}

/** Dials and reads as most programs do, by 'data' events; `read` gets each chunk. */
export async function dialAndListen(
  port: number,
  read: (chunk: Buffer) => void,
  net: Net = nodeNet,
  options: SocketOptions = socketOptions({}),
): Promise<Socket> {
  const socket = net.connect({ port, host: '127.0.0.1', ...options });
  socket.on('data', read);
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
