/**
 * When a transmit queue has its turns, and how it ends.
 *
 * It is woken by a kick, by a receiver that takes frames again, and by what comes back from those it was lent to; a timer looks after what
 * stays out for too long, so that an idle guest gets its buffers back in any case. Without a kick descriptor it looks by itself.
 *
 * Stopping and disabling wait for what is lent, until a deadline. After that the ring is left alone: late completions touch
 * nothing of it (TxLedger.detach).
 */
import type { Port } from '../core/port.ts';
import { releases } from '../core/releases.ts';
import type { MemoryLease } from './lease.ts';
import type { Polled, Poller } from './poller.ts';
import type { RingMemory } from './queue.ts';
import type { RingFds } from './ring-fds.ts';
import type { Answer, RingStart } from './session-host.ts';
import { TURN_BLOCKED, TURN_BROKEN, TURN_IDLE, TxQueue, type TxQueueOptions } from './tx-queue.ts';

/** How often a ring without kick descriptor is looked at when it is idle. */
const POLL_MS = 1;

export interface TxRingOptions extends Omit<TxQueueOptions, 'signal' | 'onWork'> {
  readonly poller: Poller;
  readonly fds: RingFds;
  readonly port: Port;
  readonly drainMs: number;
  /** False: frames are dropped. */
  readonly hasLink: () => boolean;
  readonly onBroken: (reason: string) => void;
  readonly onPoisoned: () => void;
}

export class TxRing implements Polled {
  readonly queue: TxQueue;
  readonly #options: TxRingOptions;
  #over = false;
  #broken = false;
  /** Acknowledged as quiet: nothing is written to the ring any more. */
  #quiet = false;
  #blocked = false;
  #settles = false;
  /** Looks after what is lent, or polls a ring that nobody kicks. */
  #timer: NodeJS.Timeout | null = null;
  /** Waiting for what is lent, with the deadline. */
  #drained: (() => void) | null = null;

  constructor(ring: RingStart, options: TxRingOptions) {
    this.#options = options;
    this.queue = new TxQueue(ring, {
      ...options,
      signal: () => options.fds.call(),
      onWork: () => this.#settleSoon(),
    });
    this.wake();
  }

  get device(): object {
    return this.#options.port;
  }

  /** There may be something to do. */
  wake(): void {
    if (this.#over || this.#broken) return;
    this.#blocked = false;
    this.queue.queue.disableNotifications();
    this.#options.poller.wake(this);
  }

  /** The same ring at other addresses. */
  moved(memory: RingMemory, lease: MemoryLease): void {
    this.queue.moved(memory, lease);
    this.wake();
  }

  turn(): boolean {
    const { port } = this.#options;
    const found = this.queue.turn(this.#options.hasLink() ? port.receiver : null, port);
    if (this.queue.ledger.lent > 0) this.#watch();
    if (found === TURN_BROKEN) {
      this.#breakDown();
      return false;
    }
    this.#blocked = found === TURN_BLOCKED;
    return found !== TURN_IDLE && !this.#blocked;
  }

  rest(): boolean {
    // What does not fit now is not a reason to be kicked: resume() is.
    if (this.#over || this.#broken || this.#blocked) return false;
    if (this.queue.queue.enableNotifications()) return true;
    if (this.#options.fds.isPolled) this.#watch();
    return false;
  }

  /** Resolves to the base when all is back, or at the deadline. */
  stop(): number | Promise<number> {
    this.#halt();
    const { ledger } = this.queue;
    ledger.drain();
    const end = (): number => {
      this.queue.settle();
      this.abandon();
      return ledger.detach();
    };
    this.queue.settle();
    return ledger.awaited ? this.#drain().then(end) : end();
  }

  /** Off: what is lent comes back first. What does not is as good as lost, and the ring with it. */
  enable(on: boolean): Answer {
    const { ledger } = this.queue;
    this.queue.enabled = on;
    if (on) {
      ledger.resume();
      this.wake();
      return 0;
    }
    ledger.drain();
    const end = (): number => {
      this.queue.settle();
      if (ledger.lent > 0) {
        this.#quiet = true;
        this.queue.queue.fail('disabled while frames were lent that never came back');
        this.#breakDown();
      }
      return 0;
    };
    this.queue.settle();
    // What is in quarantine is not waited for, and is not back either.
    return ledger.awaited ? this.#drain().then(end) : end();
  }

  /** The end, without a word to the ring: it may be gone already. */
  abandon(): void {
    this.#halt();
    this.queue.ledger.detach();
    this.#drained?.();
  }

  #halt(): void {
    this.#over = true;
    this.#options.poller.remove(this);
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
  }

  #breakDown(): void {
    if (this.#broken) return;
    this.#broken = true;
    const reason = this.queue.queue.broken;
    if (reason === null || this.queue.isPoisoned) this.#options.onPoisoned();
    else this.#options.onBroken(reason);
  }

  /** What came back is reported once a batch of completions, behind it. */
  #settleSoon(): void {
    if (this.#settles) return;
    this.#settles = true;
    releases.run(() => {
      this.#settles = false;
      if (!this.#quiet && (!this.#over || this.#drained !== null)) this.queue.settle();
      if (!this.queue.ledger.awaited) this.#drained?.();
    });
  }

  #drain(): Promise<void> {
    return new Promise((resolve) => {
      const deadline = setTimeout(() => this.#drained?.(), this.#options.drainMs);
      this.#drained = () => {
        clearTimeout(deadline);
        this.#drained = null;
        resolve();
      };
    });
  }

  #watch(): void {
    if (this.#timer !== null || this.#over || this.#quiet) return;
    this.#timer = setTimeout(() => {
      this.#timer = null;
      if (this.#quiet) return;
      if (this.queue.ledger.lent > 0) {
        this.queue.settle();
        this.#watch();
      }
      if (this.#options.fds.isPolled) this.wake();
    }, this.#delayMs());
    this.#timer.unref();
  }

  #delayMs(): number {
    const due = this.queue.ledger.deadlineMs - this.#options.now();
    const watch = Number.isFinite(due) ? Math.max(POLL_MS, due) : 100;
    return this.#options.fds.isPolled ? POLL_MS : watch;
  }
}
