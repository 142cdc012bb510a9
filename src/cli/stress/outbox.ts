/**
 * Builds one socket's messages and hands them over: the header is written, the message copied or lent, the call timed,
 * and in a lending run the buffer kept until its cookie comes back.
 *
 * Cookies are a running counter. RDS would allow any number, even the same one twice; a counter makes a completion that
 * comes twice, or for something never lent, show.
 */
import { ZerotxError } from '../../index.ts';
import { encodeStressHeader, OP_ACK } from '../../wire/rds-stress.ts';
import { SendBuffers } from './buffers.ts';
import type { Peer } from './peer.ts';

export type SendResult = 'sent' | 'full' | 'congested' | 'memory';

/** How the engine reaches its socket. */
export interface TaskLink {
  /** With a cookie the message is lent until `completed()` gets the cookie; without one it may be reused at once. */
  send(message: Uint8Array, port: number, cookie: number | undefined): SendResult;
  nowUs(): number;
  /** A round trip, for histogram and outliers. */
  roundTrip?(us: number): void;
  trace?(line: string): void;
}

interface OutboxConfig {
  reqSize: number;
  ackSize: number;
  depth: number;
  remote: { count: number };
  verify: boolean;
  zerocopy: boolean;
}

export class Outbox {
  /** Messages lent, and messages of a lending run that were copied because there was no memory to wait for. */
  lentSends = 0;
  lentBytes = 0;
  copiedInstead = 0;
  /** Of the last call of `send`. */
  startUs = 0;
  endUs = 0;
  readonly #link: TaskLink;
  readonly #zerocopy: boolean;
  readonly #requests: SendBuffers;
  readonly #acks: SendBuffers;
  readonly #lent = new Map<number, { buffer: Uint8Array; pool: SendBuffers }>();
  #cookie = 0;

  constructor(config: OutboxConfig, link: TaskLink) {
    this.#link = link;
    this.#zerocopy = config.zerocopy;
    const outstanding = config.zerocopy ? config.depth * config.remote.count : 0;
    this.#requests = new SendBuffers(config.reqSize, outstanding, config.verify);
    this.#acks = new SendBuffers(config.ackSize, outstanding, config.verify);
  }

  /** Buffers whose cookie has not come back. */
  get lent(): number {
    return this.#lent.size;
  }

  /** Sends the request or acknowledgement that is due for `slot`; the peer's numbers are the caller's to advance. */
  send(peer: Peer, op: number, slot: number): SendResult {
    const pool = op === OP_ACK ? this.#acks : this.#requests;
    const buffer = pool.take();
    if (buffer === undefined) return 'memory';
    const header = peer.outgoing;
    header.seq = peer.sendSeq;
    header.index = slot;
    header.op = op;
    encodeStressHeader(buffer, 0, header);
    return this.#zerocopy ? this.#lend(buffer, peer.port, pool) : this.#copy(buffer, peer.port, pool);
  }

  completed(cookies: readonly number[]): void {
    for (const cookie of cookies) {
      const lent = this.#lent.get(cookie);
      if (lent === undefined)
        throw new ZerotxError('ZTX_STRESS_MISMATCH', `completion for cookie ${cookie}, which is not lent`);
      this.#lent.delete(cookie);
      lent.pool.giveBack(lent.buffer);
    }
  }

  #copy(buffer: Uint8Array, port: number, pool: SendBuffers): SendResult {
    const result = this.#timedSend(buffer, port, undefined);
    pool.giveBack(buffer);
    return result;
  }

  #lend(buffer: Uint8Array, port: number, pool: SendBuffers): SendResult {
    const cookie = this.#nextCookie();
    const result = this.#timedSend(buffer, port, cookie);
    if (result === 'sent') {
      this.#lent.set(cookie, { buffer, pool });
      this.lentSends += 1;
      this.lentBytes += buffer.length;
      return result;
    }
    if (result === 'memory' && this.#lent.size === 0) {
      // Nothing of ours is lent, so no completion would ever free the memory that is missing.
      this.copiedInstead += 1;
      return this.#copy(buffer, port, pool);
    }
    pool.giveBack(buffer);
    return result;
  }

  #timedSend(buffer: Uint8Array, port: number, cookie: number | undefined): SendResult {
    this.startUs = this.#link.nowUs();
    const result = this.#link.send(buffer, port, cookie);
    this.endUs = this.#link.nowUs();
    return result;
  }

  #nextCookie(): number {
    do this.#cookie = (this.#cookie + 1) >>> 0;
    while (this.#lent.has(this.#cookie));
    return this.#cookie;
  }
}
