/**
 * How one kernel socket receives. A look at what is next (MSG_PEEK, no memory to read into) tells how long the message is, and
 * brings cookies and news of congestion, which are kept here: the kernel gives them once, along with whatever is read or looked
 * at. Then the message is read into memory of just that size. Data waits in the kernel until the program reads it, so that
 * the kernel's idea of a congested port stays true.
 */
import { errnoError, errnoOf } from '../../core/errors.ts';
import { native } from '../../sys/binding.ts';
import { MSG_PEEK, MSG_TRUNC } from '../../sys/constants.ts';
import {
  RDS_RECEIVED_WORDS,
  WORD_ADDRESS_BYTES,
  WORD_COOKIES,
  WORD_HAS_NEWS,
  WORD_HAS_TIME,
  WORD_MICROSECONDS,
  WORD_NEWS,
  WORD_SECONDS,
  WORD_TRACE_POSITIONS,
  WORD_TRACE_TIMES,
  WORD_TRACES,
} from '../../sys/rds.ts';
import { MAX_PAYLOAD } from '../../wire/rds.ts';
import { decodeSockaddr, SOCKADDR_BYTES } from '../../wire/sockaddr.ts';
import { CookieQueue } from '../cookies.ts';
import { POOLED_BYTES_MIN, ReceiveBuffer } from '../memory.ts';
import { RdsMessage, type RdsReceived } from '../received.ts';
import type { LatencyPoint } from '../socket-options.ts';
import { MessageTrace, type RdsLatency, ReceiveTimes } from '../socket-trace.ts';
import { addressText } from './address.ts';
import type { KernelRdsNode } from './node.ts';

const EAGAIN = -errnoOf('EAGAIN');
const NONE = -1;
const noTimes = new ReceiveTimes();

export interface Reading {
  readonly peek: boolean;
  readonly control: boolean;
  readonly maxBytes: number;
  readonly trunc: boolean;
}

const everything: Reading = { peek: false, control: true, maxBytes: Number.POSITIVE_INFINITY, trunc: false };

export interface ReceiverOwner {
  readonly fd: number;
  readonly zerocopy: boolean;
  /** RDS_CONG_MONITOR, as the program set it. */
  readonly monitors: boolean;
  readonly node: Pick<KernelRdsNode, 'pool' | 'runtime'>;
  /** The kernel gave back a cookie of lending.ts. */
  cameBack(cookie: number): void;
  /** Some port is not congested any more. */
  congestionNews(): void;
}

export class KernelReceiver {
  /** Cookies of the program. */
  readonly cookies: CookieQueue = new CookieQueue();
  readonly #owner: ReceiverOwner;
  readonly #words = new Uint32Array(RDS_RECEIVED_WORDS);
  readonly #source = new Uint8Array(SOCKADDR_BYTES);
  #news = 0n;
  /** Bytes of the next message; NONE if none is known of. */
  #nextBytes = NONE;

  constructor(owner: ReceiverOwner) {
    this.#owner = owner;
  }

  /** recvmsg() would return something. */
  get readable(): boolean {
    return this.look() || this.#news !== 0n || (this.#owner.zerocopy && this.cookies.length > 0);
  }

  /** Takes all cookies and news there are; true if a message waits. */
  look(): boolean {
    if (this.#nextBytes !== NONE) return true;
    for (;;) {
      const result = this.#call([], MSG_PEEK | MSG_TRUNC);
      if (result < 0) return false;
      const isMessage = this.#words[WORD_ADDRESS_BYTES] !== 0;
      // Each call brings one record of cookies; the message stays.
      if (this.#words[WORD_COOKIES] !== 0 || this.#words[WORD_HAS_NEWS] !== 0) continue;
      if (!isMessage) return false;
      this.#nextBytes = result;
      return true;
    }
  }

  /** Takes all cookies and news there are, also those behind a message that is known of. */
  reap(): void {
    this.#nextBytes = NONE;
    this.look();
  }

  /** In the order of the kernel: news, then a message with cookies, then cookies alone. */
  next(reading: Reading): RdsReceived | null {
    const got = this.dataOrNews(reading);
    if (got !== null) return got;
    const { peek, control } = reading;
    if (peek || !control || !this.#owner.zerocopy || this.cookies.length === 0) return null;
    return { kind: 'completion', cookies: this.cookies.take() };
  }

  /** Without cookies alone, which end no wait. */
  dataOrNews(reading: Reading): RdsReceived | null {
    const takesNews = reading.control && !reading.peek;
    this.look();
    const message = takesNews && this.#news !== 0n ? null : this.#message(reading, takesNews);
    if (message !== null || !takesNews || this.#news === 0n) return message;
    const mask = this.#news;
    this.#news = 0n;
    return { kind: 'congestion', mask };
  }

  /** The next message, with cookies; news stay. */
  message(): RdsMessage | null {
    return this.#message(everything, false);
  }

  #message({ peek, control, maxBytes, trunc }: Reading, newsFirst: boolean): RdsMessage | null {
    const message = this.look() ? this.#read(maxBytes, peek, trunc, newsFirst) : null;
    if (message !== null && control && !peek && this.#owner.zerocopy && this.cookies.length > 0)
      message.cookies = this.cookies.take();
    return message;
  }

  /** What was told of congestion is forgotten. */
  forgetNews(): void {
    this.#news = 0n;
  }

  /** Null if there is none after all, or news came in between and go first. */
  #read(maxBytes: number, peek: boolean, trunc: boolean, newsFirst: boolean): RdsMessage | null {
    const { pool, runtime } = this.#owner.node;
    // The kernel takes messages of any length from a peer; more than RDS allows is cut.
    const room = Math.min(maxBytes, this.#nextBytes, MAX_PAYLOAD);
    const bytes = room < POOLED_BYTES_MIN ? Buffer.allocUnsafeSlow(room) : pool.acquire(room);
    const view = bytes.byteLength === room ? bytes : bytes.subarray(0, room);
    for (;;) {
      const result = this.#call([view], (peek ? MSG_PEEK : 0) | MSG_TRUNC);
      const isMessage = result >= 0 && this.#words[WORD_ADDRESS_BYTES] !== 0;
      if (result < 0 || (!isMessage && newsFirst && this.#news !== 0n)) {
        pool.release(bytes);
        if (result < 0 && result !== EAGAIN) throw errnoError(result, 'recvmsg');
        return null;
      }
      if (!isMessage) continue;
      if (!peek) this.#nextBytes = NONE;
      const { address, port } = this.#from();
      const source = { address, held: () => {} };
      const message = new RdsMessage(
        source,
        port,
        new ReceiveBuffer(bytes, pool, runtime.releases),
        0,
        result,
      );
      message.show(room, trunc);
      this.#trace(message);
      message.entered();
      message.left();
      return message;
    }
  }

  /** recvmsg(2) with control messages, of which cookies and news are taken at once. */
  #call(views: readonly Uint8Array[], flags: number): number {
    const { fd, monitors } = this.#owner;
    const words = this.#words;
    const result = native().rdsRecvmsg(fd, views, views.length, flags, true, this.#source, words);
    if (result < 0) {
      this.#nextBytes = NONE;
      return result;
    }
    const cookies = words[WORD_COOKIES] as number;
    for (let i = 1; i <= cookies; i++) this.#owner.cameBack(words[WORD_COOKIES + i] as number);
    if (words[WORD_HAS_NEWS] !== 0) {
      if (monitors) this.#news |= this.#number(WORD_NEWS);
      this.#owner.congestionNews();
    }
    return result;
  }

  #from(): { address: string; port: number } {
    const from = decodeSockaddr(this.#source, this.#words[WORD_ADDRESS_BYTES] as number);
    return { address: addressText(from), port: from.port };
  }

  #trace(message: RdsMessage): void {
    const words = this.#words;
    const traces = words[WORD_TRACES] as number;
    if (words[WORD_HAS_TIME] === 0 && traces === 0) return;
    const milliseconds =
      Number(this.#number(WORD_SECONDS)) * 1e3 + (words[WORD_MICROSECONDS] as number) / 1e3;
    const trace = new MessageTrace(words[WORD_HAS_TIME] === 0 ? null : milliseconds, [], noTimes);
    if (traces > 0) {
      trace.latency = Array.from(
        { length: traces },
        (_, i): RdsLatency => ({
          point: words[WORD_TRACE_POSITIONS + i] as LatencyPoint,
          ns: Number(this.#number(WORD_TRACE_TIMES + 2 * i)),
        }),
      );
    }
    message.stamp(trace);
  }

  #number(at: number): bigint {
    return BigInt(this.#words[at] as number) | (BigInt(this.#words[at + 1] as number) << 32n);
  }
}
