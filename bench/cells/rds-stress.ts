/**
 * The request and acknowledgement pattern of `rds-stress -q 1M -a 1M -t 1 -d 1`, with two processes that stay alive.
 *
 * Both sides send requests and answer the other's with an acknowledgement of the same size; each has one request
 * outstanding. A message starts with the sequence number and the operation, at rds-stress's offsets; the receiver
 * checks both. `rttUs` sums up the times from a request's sendmsg() to its acknowledgement, `callUs` those of the
 * requests' sendmsg() calls (rds-stress: rtt us, tx us/c).
 *
 * A slice is over on a side when all its requests are acknowledged, all the other's are answered, and every buffer it
 * lent is back. Variant `copyBesideMemcpy` sends as `copy` does and makes, before or after every request, a plain copy
 * of memory that was last used as long ago, into a buffer that is reused as the library reuses its own: `memcpyUs`.
 *
 * The passive side begins with the first request it receives, as it has no other way to know.
 */
import type { RdsMessage } from 'zerotx/rds';
import { type CellSide, numberOption, type Options, type Slice } from './cell.ts';
import { type Endpoint, openEndpoint, receiveAll, Sources, untilDone } from './rds-kit.ts';

const REQUEST = 1;
const ACK = 2;
const SEQUENCE_OFFSET = 0;
const OPERATION_OFFSET = 18;
/** Two of each kind: a lent buffer comes back about when the acknowledgement does, or a little later. */
const BUFFERS = 2;
const ACK_COOKIES = 1000;

class StressSide implements CellSide {
  readonly #active: boolean;
  #endpoint!: Endpoint;
  #requests!: Sources;
  #acks!: Sources;
  #messageBytes = 0;
  /** Sequence numbers run on from slice to slice. */
  #requestsSent = 0;
  #acksReceived = 0;
  #requestsReceived = 0;
  #acksSent = 0;
  #sentAtMs = 0;
  #rttUs = 0;
  #memcpy!: Memcpy;

  constructor(active: boolean) {
    this.#active = active;
  }

  async open(options: Options): Promise<Options> {
    this.#messageBytes = numberOption(options, 'messageBytes');
    this.#endpoint = await openEndpoint(
      options,
      this.#active ? 'active' : 'passive',
      this.#active ? 'passive' : 'active',
    );
    this.#requests = new Sources(this.#endpoint, BUFFERS, this.#messageBytes);
    this.#acks = new Sources(this.#endpoint, BUFFERS, this.#messageBytes, ACK_COOKIES);
    this.#memcpy = new Memcpy(this.#messageBytes);
    return {};
  }

  async run({ count, variant }: Slice): Promise<Record<string, number>> {
    const { socket } = this.#endpoint;
    const target = this.#acksReceived + count;
    const firstReceived = this.#requestsReceived;
    this.#rttUs = 0;
    this.#requests.callUs = 0;
    this.#requests.calls = 0;
    this.#memcpy.us = 0;
    await untilDone(socket, () => {
      receiveAll(
        socket,
        (message) => this.#take(message),
        (cookies) => {
          this.#requests.giveBack(cookies);
          this.#acks.giveBack(cookies);
        },
      );
      this.#sendAcks(variant);
      const started = this.#active || this.#requestsReceived > firstReceived;
      if (started && this.#requestsSent < target) this.#sendRequest(variant);
      return (
        this.#acksReceived === target &&
        this.#acksSent === target &&
        this.#requests.lent === 0 &&
        this.#acks.lent === 0
      );
    });
    const { callUs, calls } = this.#requests;
    return { rttUs: this.#rttUs / count, callUs: callUs / calls, memcpyUs: this.#memcpy.us / calls };
  }

  close(): Promise<void> {
    return this.#endpoint.close();
  }

  #take(message: RdsMessage): void {
    const { data } = message;
    const sequence = data.readUInt32BE(SEQUENCE_OFFSET);
    const isRequest = data[OPERATION_OFFSET] === REQUEST;
    const expected = isRequest ? this.#requestsReceived++ : this.#acksReceived++;
    if (message.length !== this.#messageBytes || sequence !== expected >>> 0) {
      throw new Error(`${message.length} bytes, sequence ${sequence}, expected ${expected}`);
    }
    if (!isRequest) this.#rttUs += (performance.now() - this.#sentAtMs) * 1e3;
  }

  #sendAcks(variant: string): void {
    while (this.#acksSent < this.#requestsReceived) {
      if (!this.#acks.trySend(variant, (buffer) => label(buffer, this.#acksSent, ACK))) return;
      this.#acksSent++;
    }
  }

  /** Depth 1: the next request goes when the last one was acknowledged. */
  #sendRequest(variant: string): void {
    if (this.#requestsSent > this.#acksReceived) return;
    const beside = variant === 'copyBesideMemcpy';
    if (beside && this.#requestsSent % 2 === 0) this.#memcpy.copy();
    const startMs = performance.now();
    if (!this.#requests.trySend(variant, (buffer) => label(buffer, this.#requestsSent, REQUEST))) return;
    this.#sentAtMs = startMs;
    if (beside && this.#requestsSent % 2 !== 0) this.#memcpy.copy();
    this.#requestsSent++;
  }
}

/** Plain copies between as many buffers as the traffic has. */
class Memcpy {
  us = 0;
  readonly #from: Buffer[];
  readonly #to: Buffer[];
  #next = 0;

  constructor(bytes: number) {
    this.#from = Array.from({ length: BUFFERS }, (_, i) => Buffer.alloc(bytes, i + 1));
    this.#to = Array.from({ length: BUFFERS }, () => Buffer.alloc(bytes, 0xff));
  }

  copy(): void {
    const i = this.#next++ % BUFFERS;
    const start = performance.now();
    this.#to[i]!.set(this.#from[i]!);
    this.us += (performance.now() - start) * 1e3;
  }
}

function label(buffer: Buffer, sequence: number, operation: number): void {
  buffer.writeUInt32BE(sequence >>> 0, SEQUENCE_OFFSET);
  buffer[OPERATION_OFFSET] = operation;
}

export const sides: Record<string, () => CellSide> = {
  active: () => new StressSide(true),
  passive: () => new StressSide(false),
};
