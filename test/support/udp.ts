/** UDP sockets for tests: bound pairs, and waits for what arrives that end. */
import { once } from 'node:events';
import { networkInterfaces } from 'node:os';
import { UdpSocket } from '../../src/net/udp.ts';
import type { UdpSocketOptions } from '../../src/net/udp-options.ts';
import type { RemoteInfo } from '../../src/net/udp-receiver.ts';
import { DEADLINE_MS } from './sockets.ts';

export type UdpType = 'udp4' | 'udp6';

export const LOCALHOST: Record<UdpType, string> = { udp4: '127.0.0.1', udp6: '::1' };

const hasIpv6 = Object.values(networkInterfaces()).some((list) =>
  list?.some(({ address }) => address === '::1'),
);

/** Why tests of this family are skipped. */
export function skipFamily(type: UdpType): string | false {
  return type === 'udp6' && !hasIpv6 ? 'this host has no ::1' : false;
}

const open = new Set<UdpSocket>();

/** A socket that closeSockets() closes if nobody did. */
export function make(options: UdpSocketOptions): UdpSocket {
  const socket = new UdpSocket(options);
  open.add(socket);
  socket.once('close', () => open.delete(socket));
  return socket;
}

export async function closeSockets(): Promise<void> {
  await Promise.all([...open].map((socket) => socket[Symbol.asyncDispose]()));
}

/** A socket on the loopback address; the port is chosen by the kernel. */
export async function bound(options: UdpSocketOptions): Promise<{ socket: UdpSocket; port: number }> {
  const socket = make(options);
  socket.bind(0, LOCALHOST[options.type]);
  await once(socket, 'listening');
  return { socket, port: socket.address().port };
}

export interface Message {
  readonly data: Buffer;
  readonly from: RemoteInfo;
}

interface Receiver {
  on(event: 'message', listener: (data: Buffer, from: RemoteInfo) => void): unknown;
}

/** Collects messages of a socket, of node:dgram or ours. */
export class Inbox {
  readonly messages: Message[] = [];
  #wanted = Number.POSITIVE_INFINITY;
  #wake: () => void = () => {};

  constructor(socket: Receiver) {
    socket.on('message', (data, from) => {
      this.messages.push({ data, from });
      if (this.messages.length >= this.#wanted) this.#wake();
    });
  }

  /** Resolves with the first `count` messages; rejects when they do not come in time. */
  async take(count: number): Promise<Message[]> {
    if (this.messages.length < count) {
      await new Promise<void>((resolve, reject) => {
        const timer = setTimeout(
          () => reject(new Error(`${this.messages.length} of ${count} messages came`)),
          DEADLINE_MS,
        );
        this.#wanted = count;
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    this.#wanted = Number.POSITIVE_INFINITY;
    return this.messages.splice(0, count);
  }
}

/** `length` bytes that tell where in a payload they stand. */
export function pattern(length: number): Buffer {
  const bytes = Buffer.allocUnsafe(length);
  for (let i = 0; i < length; i++) bytes[i] = (i * 31 + (i >> 8)) & 0xff;
  return bytes;
}
