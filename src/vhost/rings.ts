/**
 * The rings of a device as the protocol has them: what was set, what runs.
 *
 *            KICK, and everything is there                      ENABLE
 *   stopped ------------------------------> running  (enabled or disabled)
 *     ^                                        |
 *     +-- GET_VRING_BASE, status 0, reset, or a size, address or base that changes
 *
 * A ring runs from the message that brings its kick, though the specification says "from the first kick": a driver that was told
 * not to kick by the owner before us would wait for ever. *There* means size, addresses, features, and memory for all
 * three parts of it; a ring that was kicked before waits, and starts when the last of them comes: front-ends send the memory table
 * after the rings, and ENABLE before everything.
 *
 * User addresses are kept, as a new memory table comes without new addresses. Running rings hold the lease of the memory
 * they were translated in, so nothing is unmapped under them; move() takes them to the current one.
 *
 * All that can wait returns a promise only if it has to. When the connection ends meanwhile, the rest of the work never comes.
 */
import { constants } from 'node:os';
import {
  availBytes,
  descBytes,
  isRingSize,
  usedBytes,
  VRING_AVAIL_ALIGN,
  VRING_DESC_ALIGN,
  VRING_USED_ALIGN,
} from '../wire/virtio.ts';
import type { MemoryLease } from './lease.ts';
import type { GuestMemory } from './memory.ts';
import type { RingMemory } from './queue.ts';
import type { Answer, SessionHost } from './session-host.ts';

const { EINVAL, EFAULT } = constants.errno;

/** QEMU's is 1024 at most; more costs memory in every device that might get it. */
export const RING_SIZE_MAX = 4096;

export interface RingAddresses {
  readonly desc: bigint;
  readonly avail: bigint;
  readonly used: bigint;
}

/** A ring that runs: where, and whose memory it holds. */
interface Running {
  readonly memory: RingMemory;
  readonly lease: MemoryLease;
}

interface Ring {
  readonly index: number;
  size: number;
  addresses: RingAddresses | null;
  base: number;
  enabled: boolean;
  /** The front-end wants it to run. */
  kicked: boolean;
  running: Running | null;
}

export interface RingsOptions {
  readonly host: SessionHost;
  readonly count: number;
  readonly memory: Pick<GuestMemory, 'lease' | 'find'>;
  /** Whether the driver's features are settled: no ring starts before. */
  isSettled(): boolean;
  /**
   * A ring that is disabled is stopped: for User-Mode Linux, whose driver goes away with a disable and no other word, and frees
   * the ring. Others want what is sent to a disabled ring to be taken and dropped.
   */
  readonly haltsDisabled: boolean;
  /** Whether they have event indexes, which make rings longer. */
  eventIdx(): boolean;
}

export class Rings {
  readonly #options: RingsOptions;
  readonly #host: SessionHost;
  readonly #rings: readonly Ring[];
  #over = false;

  constructor(options: RingsOptions) {
    this.#options = options;
    this.#host = options.host;
    this.#rings = Array.from({ length: options.count }, (_, index) => ({
      index,
      size: 0,
      addresses: null,
      base: 0,
      enabled: false,
      kicked: false,
      running: null,
    }));
  }

  get count(): number {
    return this.#rings.length;
  }

  get runningCount(): number {
    return this.#rings.filter(({ running }) => running !== null).length;
  }

  /** Whether one of them runs and is enabled: the driver counts on what was negotiated. */
  get isBusy(): boolean {
    return this.#rings.some(({ running, enabled }) => running !== null && enabled);
  }

  setSize(index: number, size: number): Answer {
    if (!isRingSize(size) || size > RING_SIZE_MAX) return EINVAL;
    return this.#change(
      index,
      ({ size: old }) => old !== size,
      (ring) => {
        ring.size = size;
      },
    );
  }

  /**
   * Alignment is checked here, where it can be refused: views of a ring that is not aligned cannot be made. User addresses are as
   * aligned as the memory behind them, since regions are.
   */
  setAddresses(index: number, addresses: RingAddresses): Answer {
    const { desc, avail, used } = addresses;
    if (desc % BigInt(VRING_DESC_ALIGN) !== 0n) return EINVAL;
    if (avail % BigInt(VRING_AVAIL_ALIGN) !== 0n || used % BigInt(VRING_USED_ALIGN) !== 0n) return EINVAL;
    const differ = ({ addresses: old }: Ring): boolean =>
      old === null || old.desc !== desc || old.avail !== avail || old.used !== used;
    return this.#change(index, differ, (ring) => {
      ring.addresses = { desc, avail, used };
    });
  }

  setBase(index: number, base: number): Answer {
    if (base > 0xffff) return EINVAL;
    // The base of a running ring is not what was set: it moves on.
    return this.#change(
      index,
      () => true,
      (ring) => {
        ring.base = base;
      },
    );
  }

  /** GET_VRING_BASE: stops the ring, and says where it stood. A ring that we do not have never moved. */
  takeBase(index: number): number | Promise<number> {
    const ring = this.#rings[index];
    if (ring === undefined) return 0;
    const base = (): number => {
      ring.kicked = false;
      this.#host.setKick(index, -1);
      return ring.base;
    };
    return after(this.#stop(ring), base);
  }

  /** The ring may run, with this kick descriptor, or polled (-1). EFAULT: it is not where the memory is, and waits. */
  kick(index: number, fd: number): number {
    const ring = this.#ring(index);
    const error = this.#host.setKick(index, fd);
    if (error !== 0) return error;
    ring.kicked = true;
    return this.#start(ring);
  }

  enable(index: number, on: boolean): Answer {
    const ring = this.#ring(index);
    if (ring.enabled === on) return 0;
    ring.enabled = on;
    if (this.#options.haltsDisabled) return on ? this.#start(ring) : this.#stop(ring);
    return ring.running === null ? 0 : this.#host.enableRing(index, on);
  }

  /**
   * A front-end without protocol features has no ENABLE: all rings are enabled from SET_FEATURES on; but for those that were disabled
   * after they were kicked, by one that has ENABLE and leaves out the bit that says so.
   */
  enableAll(): void {
    for (const ring of this.#rings) if (ring.running === null && !this.#isHalted(ring)) ring.enabled = true;
  }

  #isHalted({ kicked, enabled }: Ring): boolean {
    return this.#options.haltsDisabled && kicked && !enabled;
  }

  /** Stops what runs. Bases stay, and GET_VRING_BASE still says them: QEMU resets the status first. */
  stopAll(): Answer {
    return this.#each((ring) => {
      ring.kicked = false;
      return this.#stop(ring);
    });
  }

  /** Stops those that run, and leaves those that wait to wait. */
  stopRunning(): Answer {
    return this.#each((ring) => {
      if (ring.running === null) return 0;
      ring.kicked = false;
      return this.#stop(ring);
    });
  }

  /** RESET_DEVICE. */
  reset(): Answer {
    return after(this.stopAll(), () => {
      for (const ring of this.#rings) ring.enabled = false;
      return 0;
    });
  }

  /** Starts rings that wait for something that has come now. */
  startWaiting(): void {
    for (const ring of this.#rings) this.#start(ring);
  }

  /** The current lease is another one: rings go on in it. Those that it has no memory for stop, and wait for it. */
  move(): Answer {
    return after(
      this.#each((ring) => this.#move(ring)),
      () => {
        this.startWaiting();
        return 0;
      },
    );
  }

  /** The connection is over, and the host has stopped its rings: gives back what they held. */
  end(): void {
    this.#over = true;
    for (const ring of this.#rings) this.#leave(ring);
  }

  #ring(index: number): Ring {
    const ring = this.#rings[index];
    if (ring === undefined) throw new RangeError(`ring ${index} of ${this.count}`);
    return ring;
  }

  /** A change to a running ring stops it: only a new kick says that all the changes have been made. */
  #change(index: number, differs: (ring: Ring) => boolean, apply: (ring: Ring) => void): Answer {
    const ring = this.#ring(index);
    if (!differs(ring)) return 0;
    if (ring.running === null) {
      apply(ring);
      return this.#start(ring);
    }
    ring.kicked = false;
    return after(this.#stop(ring), () => {
      apply(ring);
      return 0;
    });
  }

  /** Starts it if it was kicked and everything is there. EFAULT: there is memory, but not for this ring. */
  #start(ring: Ring): number {
    if (!ring.kicked || ring.running !== null || ring.size === 0 || ring.addresses === null) return 0;
    const lease = this.#options.memory.lease;
    if (lease === null || !this.#options.isSettled() || this.#isHalted(ring)) return 0;
    const running = this.#translate(ring, lease);
    if (running === null) return EFAULT;
    ring.running = running;
    lease.hold();
    this.#host.startRing({
      ...running,
      index: ring.index,
      size: ring.size,
      base: ring.base,
      enabled: ring.enabled,
    });
    return 0;
  }

  #move(ring: Ring): Answer {
    const { running } = ring;
    const lease = this.#options.memory.lease;
    if (running === null || running.lease === lease) return 0;
    const moved = lease === null ? null : this.#translate(ring, lease);
    if (lease === null || moved === null) return this.#stop(ring);
    ring.running = moved;
    lease.hold();
    this.#host.ringMoved(ring.index, moved.memory, lease);
    release(running);
    return 0;
  }

  /** Resolves to 0 when it is stopped and its base known. */
  #stop(ring: Ring): Answer {
    if (ring.running === null) return 0;
    const stopped = this.#host.stopRing(ring.index);
    const done = (base: number): number => {
      ring.base = base & 0xffff;
      this.#leave(ring);
      return 0;
    };
    return typeof stopped === 'number' ? done(stopped) : this.#outlive(stopped).then(done);
  }

  #leave(ring: Ring): void {
    const { running } = ring;
    if (running === null) return;
    ring.running = null;
    release(running);
  }

  #translate({ size, addresses }: Ring, lease: MemoryLease): Running | null {
    const eventIdx = this.#options.eventIdx();
    if (addresses === null) return null;
    const views: ArrayBuffer[] = [];
    for (const [user, bytes] of [
      [addresses.desc, descBytes(size)],
      [addresses.avail, availBytes(size, eventIdx)],
      [addresses.used, usedBytes(size, eventIdx)],
    ] as const) {
      const guest = this.#options.memory.find(user, bytes);
      const view = guest < 0 ? guest : lease.space.view(guest, bytes);
      if (typeof view === 'number') {
        for (const made of views) lease.space.detach(made);
        return null;
      }
      views.push(view);
    }
    const [desc, avail, used] = views as [ArrayBuffer, ArrayBuffer, ArrayBuffer];
    return { memory: { desc, avail, used }, lease };
  }

  /** In order, one after the other; the first error is the answer, and the others are done all the same. */
  #each(work: (ring: Ring) => Answer): Answer {
    return this.#from(0, 0, work);
  }

  #from(start: number, error: number, work: (ring: Ring) => Answer): Answer {
    let first = error;
    for (let i = start; i < this.#rings.length; i++) {
      const answer = work(this.#ring(i));
      if (typeof answer !== 'number') {
        const so = first;
        return this.#outlive(answer).then((late) => this.#from(i + 1, so || late, work));
      }
      first ||= answer;
    }
    return first;
  }

  /** The promise, which stays pending for ever when the connection ended meanwhile. */
  #outlive(promise: Promise<number>): Promise<number> {
    return promise.then((value) => (this.#over ? new Promise<number>(() => {}) : value));
  }
}

/** `next` when `answer` is there. */
export function after(answer: Answer, next: (value: number) => number): Answer {
  return typeof answer === 'number' ? next(answer) : answer.then(next);
}

/** Detached, views of memory that may go cannot be used by mistake. */
function release({ memory, lease }: Running): void {
  for (const view of [memory.desc, memory.avail, memory.used]) lease.space.detach(view);
  lease.release();
}
