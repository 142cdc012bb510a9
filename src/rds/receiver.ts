/**
 * The receiving half of a lane: from a byte stream to messages. Pure: targets() says where the next bytes should be
 * put, filled() takes note of how many came.
 *
 *   chunk:   [ parsed | partial message | free ........ ]        big:  [ payload so far | free .... ]
 *                     ▲ pos             ▲ fill
 *
 * Small messages are parsed where they were read, in 64 KiB chunks that live as long as somebody holds a message in
 * them. A payload over 16 KiB gets a buffer of its own, which the next reads fill directly, followed by exactly one
 * header: so a stream of large messages is not copied again here.
 *
 * Between two turns of reading a lane keeps no chunk (rest()), but for the beginning of a message of some size. What it keeps is charged to
 * the peer like messages that wait: else many lanes, with a part of a message each, would hold memory that nobody counts.
 *
 * Rules (rds_tcp_data_recv): flags == CONG_BITMAP exactly is a map; what has come before is dropped (sequence.ts). Unlike the
 * kernel, h_len is bounded, and headers from port 0 to port 0 do not touch the numbers (they are what surplus bytes of a map from
 * a host with large pages look like).
 */
import type { ReleaseQueue } from '../core/releases.ts';
import {
  CONG_BITMAP,
  classify,
  dport as dportOf,
  flags as flagsOf,
  HEADER_BYTES,
  MAX_PAYLOAD,
  payloadLength,
  RETRANSMITTED,
  seqHi as seqHiOf,
  seqLo as seqLoOf,
  sport as sportOf,
} from '../wire/rds.ts';
import { CONG_MAP_BYTES } from '../wire/rds-congestion.ts';
import type { RdsCounters } from './counters.ts';
import { type BufferPool, CHUNK_BYTES, ChunkShelf, READ_BYTES_MIN, ReceiveBuffer } from './memory.ts';
import { Expectation, type SequenceRule } from './sequence.ts';

export interface ReceiverHost {
  /** A whole map of 8192 bytes, valid during the call. */
  congestion(map: Uint8Array): void;
  /** A probe ping (answer it) or probe pong; the extension area is at `header + 32`, valid during the call. */
  probe(isPing: boolean, bytes: Uint8Array, header: number): void;
  ping(sport: number): void;
  /** A data message or a pong (sport 0): `length` bytes at `offset` of `buffer`; ref() it to keep it. */
  data(sport: number, dport: number, buffer: ReceiveBuffer, offset: number, length: number): void;
  /** Memory held for messages that are not complete changed. */
  held(deltaBytes: number): void;
  /** So much is held that no more should be begun. */
  isFull(): boolean;
}

/** Payloads over this get a buffer of their own. */
const INLINE_MAX = 16 * 1024;
/** The beginning of a message is copied, instead of keeping its chunk, up to this size; and that is not charged. */
const KEPT_BYTES_MAX = 2048;

/** Of this thread: nothing happens between targets() and filled(), and no lane should keep a view of what it has read. */
const views: Uint8Array[] = [];

interface BigMessage {
  readonly sport: number;
  readonly dport: number;
  /** The sequence rule is applied when the message is whole: half of one must not make its resend a duplicate. */
  readonly seqHi: number;
  readonly seqLo: number;
  readonly flagged: boolean;
  /** Taken when its first bytes are to be read: by then the one before may be recycled, and is warm. */
  buffer: ReceiveBuffer | null;
  /** The bytes that came with the header, while there is no buffer. */
  head: Buffer | null;
  readonly length: number;
  filled: number;
}

export class LaneReceiver {
  /** The last filled() completed a message in a buffer of its own. */
  deliveredLarge = false;
  /** It outlives connections. The peer exchanges it when what comes turns out to be another lane's. */
  rule: SequenceRule = new Expectation();
  readonly #host: ReceiverHost;
  readonly #pool: BufferPool;
  readonly #releases: ReleaseQueue;
  readonly #counters: RdsCounters;
  readonly #shelf: ChunkShelf;
  #chunk: ReceiveBuffer | null = null;
  /** The beginning of a message, while there is no chunk. */
  #kept: Buffer | null = null;
  #chargedBytes = 0;
  #pos = 0;
  #fill = 0;
  #big: BigMessage | null = null;
  #skip = 0;

  constructor(
    host: ReceiverHost,
    pool: BufferPool,
    releases: ReleaseQueue,
    counters: RdsCounters,
    shelf: ChunkShelf = new ChunkShelf(pool, releases),
  ) {
    this.#host = host;
    this.#pool = pool;
    this.#releases = releases;
    this.#counters = counters;
    this.#shelf = shelf;
  }

  /** Bytes held for a message that is not complete yet. */
  get partialBytes(): number {
    if (this.#big !== null) return this.#big.filled;
    return this.#kept === null ? this.#fill - this.#pos : this.#kept.byteLength;
  }

  /** For observers: bytes still to come of the message that has begun, of its header and of its payload. */
  get missing(): { readonly headerBytes: number; readonly payloadBytes: number } {
    if (this.#big !== null) return { headerBytes: 0, payloadBytes: this.#big.length - this.#big.filled };
    if (this.#skip > 0) return { headerBytes: 0, payloadBytes: this.#skip };
    const partial = this.partialBytes;
    if (partial < HEADER_BYTES) return { headerBytes: HEADER_BYTES - partial, payloadBytes: 0 };
    const bytes = this.#kept ?? (this.#chunk as ReceiveBuffer).bytes;
    const whole = HEADER_BYTES + payloadLength(bytes, this.#kept === null ? this.#pos : 0);
    return { headerBytes: 0, payloadBytes: Math.max(0, whole - partial) };
  }

  /** Memory is held for a message that has begun: reading the rest of it takes no more. */
  get hasBegun(): boolean {
    return this.#big === null ? this.#chargedBytes > 0 : this.#big.buffer !== null;
  }

  /** The next thing to be read needs memory of its own. */
  get needsMemory(): boolean {
    return this.#big !== null && this.#big.buffer === null;
  }

  /**
   * Where to put what comes next: one view or two, never empty. The array is that of all receivers. With `toEnd`, no more than the message that has begun
   * (hasBegun).
   */
  targets(toEnd = false): readonly Uint8Array[] {
    views.length = 0;
    const chunk = this.#chunk ?? this.#openChunk();
    const big = this.#big;
    if (big !== null) {
      big.buffer ??= this.#acquireBig(big);
      views.push(big.buffer.bytes.subarray(big.filled, big.length));
      if (!toEnd) views.push(chunk.bytes.subarray(this.#fill, this.#fill + HEADER_BYTES));
    } else if (toEnd) {
      const end = this.#pos + HEADER_BYTES + payloadLength(chunk.bytes, this.#pos);
      views.push(chunk.bytes.subarray(this.#fill, end));
    } else views.push(chunk.bytes.subarray(this.#fill));
    return views;
  }

  /** Nothing more is read for now: gives up what it can. */
  rest(): void {
    const chunk = this.#chunk;
    if (chunk === null) return;
    const partial = this.#fill - this.#pos;
    if (partial > KEPT_BYTES_MAX) {
      // Decided once for what has come: to change one's mind with every look would make room, and take it, without end.
      if (this.#chargedBytes === 0) this.#charge(this.#host.isFull() ? partial : CHUNK_BYTES);
      if (this.#chargedBytes === CHUNK_BYTES) return;
    }
    if (partial > 0) {
      this.#kept = Buffer.allocUnsafeSlow(partial);
      chunk.bytes.copy(this.#kept, 0, this.#pos, this.#fill);
    }
    this.#shelf.put(chunk, this.#pos);
    this.#chunk = null;
    this.#pos = 0;
    this.#fill = 0;
  }

  /** `n` bytes were put into the targets. False if the peer broke the limit on h_len: drop the connection. */
  filled(n: number): boolean {
    const big = this.#big;
    let rest = n;
    this.deliveredLarge = false;
    if (big !== null && big.buffer !== null) {
      const take = Math.min(rest, big.length - big.filled);
      big.filled += take;
      rest -= take;
      if (big.filled < big.length) return true;
      this.#big = null;
      // Before the message is charged in its queue: the same bytes do not count twice.
      this.#charge(-this.#chargedBytes);
      if (!this.#isDuplicate(big.seqHi, big.seqLo, big.flagged))
        this.#host.data(big.sport, big.dport, big.buffer, 0, big.length);
      big.buffer.unref();
      this.deliveredLarge = true;
    }
    if (this.#chargedBytes > 0 && this.#big === null) this.#charge(-this.#chargedBytes);
    this.#fill += rest;
    const sane = this.#parse();
    // A probe among them may have ended the connection, and with it what is read here.
    if (sane && this.#chunk !== null) this.#makeRoom();
    return sane;
  }

  /** Copies `bytes` in, for callers that have them already (replay, tests). False as filled(). */
  feed(bytes: Uint8Array): boolean {
    let at = 0;
    while (at < bytes.byteLength) {
      let n = 0;
      for (const view of this.targets()) {
        const take = Math.min(view.byteLength, bytes.byteLength - at - n);
        view.set(bytes.subarray(at + n, at + n + take));
        n += take;
      }
      if (!this.filled(n)) return false;
      at += n;
    }
    return true;
  }

  /** The connection is gone: forget what is incomplete; the expectation stays. */
  reset(): void {
    if (this.partialBytes > 0 || this.#big !== null || this.#skip > 0) this.#counters.recv_truncated += 1;
    this.#big?.buffer?.unref();
    this.#big = null;
    this.#kept = null;
    this.#skip = 0;
    this.#pos = this.#fill;
    this.#charge(-this.#chargedBytes);
    this.rest();
  }

  close(): void {
    this.reset();
  }

  #parse(): boolean {
    const { bytes } = this.#chunk as ReceiveBuffer;
    for (;;) {
      if (this.#skip > 0) {
        const take = Math.min(this.#skip, this.#fill - this.#pos);
        this.#pos += take;
        this.#skip -= take;
        if (this.#skip > 0) return true;
      }
      const available = this.#fill - this.#pos - HEADER_BYTES;
      if (available < 0) return true;
      const header = this.#pos;
      const length = payloadLength(bytes, header);
      if (flagsOf(bytes, header) === CONG_BITMAP && length !== CONG_MAP_BYTES) {
        this.#counters.cong_bad_length += 1;
        this.#skip = length;
        this.#pos += HEADER_BYTES;
        continue;
      }
      if (length > MAX_PAYLOAD) {
        this.#counters.recv_oversized += 1;
        return false;
      }
      if (available >= length) {
        this.#pos += HEADER_BYTES + length;
        this.#dispatch(header, length);
        continue;
      }
      if (length > INLINE_MAX) this.#startBig(header, length);
      return true;
    }
  }

  #dispatch(header: number, length: number): void {
    const chunk = this.#chunk as ReceiveBuffer;
    const { bytes } = chunk;
    const kind = classify(bytes, header);
    if (kind === 'congestion') {
      this.#host.congestion(bytes.subarray(header + HEADER_BYTES, header + HEADER_BYTES + CONG_MAP_BYTES));
      return;
    }
    if (kind === 'ignored') {
      this.#counters.recv_ignored += 1;
      return;
    }
    const flagged = (flagsOf(bytes, header) & RETRANSMITTED) !== 0;
    if (this.#isDuplicate(seqHiOf(bytes, header), seqLoOf(bytes, header), flagged)) return;
    switch (kind) {
      case 'data':
        this.#host.data(sportOf(bytes, header), dportOf(bytes, header), chunk, header + HEADER_BYTES, length);
        return;
      case 'pong':
        this.#host.data(0, dportOf(bytes, header), chunk, header + HEADER_BYTES, 0);
        return;
      case 'ping':
        this.#host.ping(sportOf(bytes, header));
        return;
      case 'probe-ping':
      case 'probe-pong':
        this.#host.probe(kind === 'probe-ping', bytes, header);
    }
  }

  #startBig(header: number, length: number): void {
    const { bytes } = this.#chunk as ReceiveBuffer;
    const sport = sportOf(bytes, header);
    const dport = dportOf(bytes, header);
    // A large ping or 0 -> 0 message: only its header matters, so take it as an empty one and skip the payload.
    if (dport === 0 || sport === 0) {
      this.#pos += HEADER_BYTES;
      this.#skip = length;
      this.#dispatch(header, 0);
      this.#skip -= this.#fill - this.#pos;
      this.#pos = this.#fill;
      return;
    }
    const seqHi = seqHiOf(bytes, header);
    const seqLo = seqLoOf(bytes, header);
    const flagged = (flagsOf(bytes, header) & RETRANSMITTED) !== 0;
    const have = this.#fill - header - HEADER_BYTES;
    const begun = bytes.subarray(header + HEADER_BYTES, this.#fill);
    const head = have > 0 && this.#host.isFull() ? Buffer.from(begun) : null;
    const big: BigMessage = { sport, dport, seqHi, seqLo, flagged, buffer: null, head, length, filled: have };
    this.#big = big;
    this.#pos = this.#fill;
    // Less than a chunk, and not charged: what holds the lane back must not be its own beginning.
    if (have > 0 && head === null) {
      big.buffer = this.#acquireBig(big);
      big.buffer.bytes.set(begun);
    }
  }

  #isDuplicate(hi: number, lo: number, flagged: boolean): boolean {
    const isDuplicate = this.rule.isDuplicate(hi, lo, flagged);
    if (isDuplicate) this.#counters.recv_drop_old_seq += 1;
    return isDuplicate;
  }

  /** Sees to it that the message that has begun fits behind `pos`, and that a read is worth its call. */
  #makeRoom(): void {
    const chunk = this.#chunk as ReceiveBuffer;
    if (this.#pos === this.#fill && chunk.refs === 1) {
      this.#pos = 0;
      this.#fill = 0;
      return;
    }
    const partial = this.#fill - this.#pos;
    const length = partial >= HEADER_BYTES ? payloadLength(chunk.bytes, this.#pos) : 0;
    const fits = this.#pos + HEADER_BYTES + length <= CHUNK_BYTES;
    if (fits && CHUNK_BYTES - this.#fill >= READ_BYTES_MIN) return;
    const next = this.#shelf.fresh();
    chunk.bytes.copy(next.bytes, 0, this.#pos, this.#fill);
    chunk.unref();
    this.#chunk = next;
    this.#pos = 0;
    this.#fill = partial;
  }

  #openChunk(): ReceiveBuffer {
    this.#chunk = this.#shelf.take();
    this.#pos = this.#shelf.fill;
    this.#fill = this.#pos;
    const kept = this.#kept;
    if (kept === null) return this.#chunk;
    kept.copy(this.#chunk.bytes, this.#fill);
    this.#fill += kept.byteLength;
    this.#kept = null;
    this.#makeRoom();
    return this.#chunk;
  }

  #acquireBig(big: BigMessage): ReceiveBuffer {
    const buffer = new ReceiveBuffer(this.#pool.acquire(big.length), this.#pool, this.#releases);
    if (big.head !== null) buffer.bytes.set(big.head);
    big.head = null;
    this.#charge(buffer.bytes.byteLength - this.#chargedBytes);
    return buffer;
  }

  #charge(deltaBytes: number): void {
    if (deltaBytes === 0) return;
    this.#chargedBytes += deltaBytes;
    this.#host.held(deltaBytes);
  }
}
