/**
 * What one socket has received and not read: messages by arrival, and news of congestion. It tells the address's
 * congestion map when the port fills up and when it is free again.
 */
import { Deque } from '../core/deque.ts';
import type { LocalMap } from './congestion.ts';
import type { RdsMessage } from './received.ts';

const BYTES_PER_MESSAGE = 64;

export class ReceiveQueue {
  readonly #messages = new Deque<RdsMessage>();
  readonly #port: number;
  #limitBytes: number;
  readonly #map: LocalMap;
  #monitors: boolean;
  #queuedBytes = 0;
  /** Ports that were congested when we tried to send to them, and news of them: bit (port % 64). */
  #watched = 0n;
  #news = 0n;

  constructor(port: number, limitBytes: number, map: LocalMap, monitors: boolean) {
    this.#port = port;
    this.#limitBytes = limitBytes;
    this.#map = map;
    this.#monitors = monitors;
  }

  get readable(): boolean {
    return this.#messages.length > 0 || this.#news !== 0n;
  }

  get queuedBytes(): number {
    return this.#queuedBytes;
  }

  get limitBytes(): number {
    return this.#limitBytes;
  }

  /** What waits already is measured against the new limit at once. */
  set limitBytes(bytes: number) {
    this.#limitBytes = bytes;
    this.#map.update(this.#port, this.#load(), bytes);
  }

  get monitors(): boolean {
    return this.#monitors;
  }

  /** RDS_CONG_MONITOR. Without it nothing is watched, and what was is forgotten. */
  set monitors(on: boolean) {
    this.#monitors = on;
    if (on) return;
    this.#watched = 0n;
    this.#news = 0n;
  }

  /** For observers: what waits to be read, by arrival. */
  messages(): Iterable<RdsMessage> {
    return this.#messages;
  }

  push(message: RdsMessage): void {
    this.#messages.push(message);
    this.#queuedBytes += message.fullLength;
    message.entered();
    const load = this.#load();
    if (load > this.#limitBytes) this.#map.update(this.#port, load, this.#limitBytes);
  }

  shift(): RdsMessage | null {
    const message = this.#messages.shift();
    if (message === undefined) return null;
    this.#queuedBytes -= message.fullLength;
    message.left();
    this.#map.update(this.#port, this.#load(), this.#limitBytes);
    return message;
  }

  peek(): RdsMessage | null {
    return this.#messages.first ?? null;
  }

  /** A send to `port` met ENOBUFS. */
  watch(port: number): void {
    if (this.#monitors) this.#watched |= 1n << BigInt(port % 64);
  }

  /** A map came from some peer: all watched ports are worth a try. True if there is news. */
  congestionNews(): boolean {
    if (this.#watched === 0n) return false;
    this.#news |= this.#watched;
    this.#watched = 0n;
    return true;
  }

  takeNews(): bigint {
    const news = this.#news;
    this.#news = 0n;
    return news;
  }

  /** What counts against the limit: payload, and no less than 64 bytes a message, so that empty ones congest, too. */
  #load(): number {
    return Math.max(this.#queuedBytes, this.#messages.length * BYTES_PER_MESSAGE);
  }

  /** Discards everything and clears the port's bit. */
  close(): void {
    // Not recycled: the program may have peeked at one, and keeps what it has.
    while (this.shift() !== null);
    this.#news = 0n;
    this.#watched = 0n;
    this.#map.clear(this.#port);
  }
}
