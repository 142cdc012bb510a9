/**
 * One ring of a front-end, beside the memory: the driver's queue, its three eventfds, and what is needed to go on when the
 * back-end dies and comes back.
 *
 * A back-end that comes back is told to go on at the used index: what it had returned is done, and what it had taken
 * and not returned it takes again. With completion in order the available ring still says just that. If chains came back
 * out of order, entries that are done stand between those that are not; then the ring begins anew, with the chains that
 * are out as its first entries.
 *
 *   avail   a b c d e     used  a c          used index 2: the new back-end would take c, d, e: b is lost, c is sent twice
 *   anew    b d e         used               used index 0
 */
import { native } from '../sys/binding.ts';
import { eventfd } from '../sys/fds.ts';
import { DriverQueue } from './driver-queue.ts';
import type { FrontendMemory } from './frontend-memory.ts';
import type { RingPlan } from './frontend-protocol.ts';
import type { RingFeatures } from './queue.ts';

/** All count from the start. */
export interface RingCounters {
  /** Eventfd signals to the back-end, and from it. */
  kicks: number;
  signals: number;
  /** Chains that came back in another turn than they were given in; 0: all came in order. */
  outOfOrder: number;
  /** Chains given again to a back-end that came back. */
  resubmitted: number;
}

export interface RingEnds {
  readonly kick: number;
  readonly call: number;
  readonly err: number;
}

export class FrontendRing {
  readonly index: number;
  readonly size: number;
  readonly counters: RingCounters = { kicks: 0, signals: 0, outOfOrder: 0, resubmitted: 0 };
  /** What reap() filled. */
  readonly heads: Uint32Array;
  readonly lengths: Uint32Array;
  /** Eventfds, -1 for none. */
  readonly ends: RingEnds;
  queue: DriverQueue;
  /** A back-end runs it. */
  isRunning = false;
  readonly #memory: FrontendMemory;
  #features: RingFeatures = { eventIdx: false, indirect: false, inOrder: false };
  /** By head: index in avail (u16) of the chain that is out, and whether it is. */
  readonly #position: Uint16Array;
  readonly #out: Uint8Array;
  /** Index in avail of the next chain to come back if all come in order. */
  #expected = 0;

  /** Opens the eventfds that are wanted; throws EMFILE. */
  constructor(memory: FrontendMemory, index: number, size: number, wants: { kick: boolean; call: boolean }) {
    this.index = index;
    this.size = size;
    this.#memory = memory;
    this.heads = new Uint32Array(size);
    this.lengths = new Uint32Array(size);
    this.#position = new Uint16Array(size);
    this.#out = new Uint8Array(size);
    this.queue = new DriverQueue(memory.ring(index), size, this.#features);
    this.ends = openEnds(wants);
  }

  /** A new ring, with nothing in it. */
  begin(features: RingFeatures): void {
    this.#features = features;
    this.#out.fill(0);
    this.#expected = 0;
    const memory = this.#memory;
    this.queue = new DriverQueue(memory.ring(this.index), this.size, features, memory.tables(this.index));
  }

  /** Pieces `from` and on as a chain, seen by the device after flush(). Its head, or -1 when there is no room. */
  add(
    addresses: Float64Array,
    lengths: Uint32Array,
    from: number,
    readable: number,
    writable: number,
  ): number {
    const { queue } = this;
    const position = queue.availIdx;
    const head = queue.add(addresses, lengths, from, readable, writable);
    if (head < 0) return -1;
    this.#position[head] = position;
    this.#out[head] = 1;
    return head;
  }

  /** Shows the device what was added, and wakes it if it wants that. */
  flush(): void {
    if (this.queue.publish() && this.isRunning) this.kick();
  }

  kick(): void {
    if (this.ends.kick < 0) return;
    this.counters.kicks += 1;
    native().eventfdSignal(this.ends.kick);
  }

  /** Fills `heads` and `lengths` with what came back; how many, -1: the queue is broken. */
  reap(): number {
    const { heads } = this;
    const count = this.queue.reap(heads, this.lengths);
    let expected = this.#expected;
    let late = 0;
    for (let i = 0; i < count; i++) {
      const head = heads[i] as number;
      this.#out[head] = 0;
      if (this.#position[head] !== expected) late += 1;
      expected = (expected + 1) & 0xffff;
    }
    this.#expected = expected;
    this.counters.outOfOrder += late;
    return count;
  }

  /** Whether the available ring is what a new back-end may go on with. */
  get isIntact(): boolean {
    const { queue } = this;
    if (queue.broken !== null) return false;
    const { outstanding } = queue;
    const first = (queue.availIdx - outstanding) & 0xffff;
    return this.#heads().every((head) => (((this.#position[head] as number) - first) & 0xffff) < outstanding);
  }

  /** Chains that are out, oldest first. */
  outstanding(): number[] {
    const now = this.queue.availIdx;
    const age = (head: number): number => (now - (this.#position[head] as number)) & 0xffff;
    return this.#heads().sort((a, b) => age(b) - age(a));
  }

  /** As the back-end is told of it. */
  plan(): RingPlan {
    const { desc, avail, used } = this.#memory.layout.rings[this.index] as {
      desc: number;
      avail: number;
      used: number;
    };
    const { queue, ends } = this;
    return {
      index: this.index,
      size: this.size,
      base: (queue.availIdx - queue.outstanding) & 0xffff,
      desc: this.#memory.userAddress(desc),
      avail: this.#memory.userAddress(avail),
      used: this.#memory.userAddress(used),
      kickFd: ends.kick,
      callFd: ends.call,
      errFd: ends.err,
    };
  }

  close(): void {
    this.isRunning = false;
    closeEnds(this.ends);
  }

  #heads(): number[] {
    const heads: number[] = [];
    for (let head = 0; head < this.size; head++) if (this.#out[head] === 1) heads.push(head);
    return heads;
  }
}

function openEnds({ kick, call }: { kick: boolean; call: boolean }): RingEnds {
  const ends = { kick: -1, call: -1, err: -1 };
  try {
    if (kick) ends.kick = eventfd();
    if (call) ends.call = eventfd();
    ends.err = eventfd();
    return ends;
  } catch (error) {
    closeEnds(ends);
    throw error;
  }
}

function closeEnds({ kick, call, err }: RingEnds): void {
  for (const fd of [kick, call, err]) if (fd >= 0) native().close(fd);
}
