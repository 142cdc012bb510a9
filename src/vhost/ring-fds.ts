/**
 * The descriptors of one ring: who is told of it, and how the guest is.
 *
 *   kick   from the driver: watched edge-triggered and never read, as a read can block if the other holder cleared
 *          O_NONBLOCK; without one the ring is polled
 *   call   to the driver: signalled without ever blocking (Native.eventfdSignal); without one the driver polls
 *   err    signalled when the ring is broken
 *
 * All three come from the front-end, so they may be anything.
 */
import { errnoOf } from '../core/errors.ts';
import type { Native } from '../sys/binding.ts';
import { EPOLLIN } from '../sys/constants.ts';
import type { Reactor, Registration } from '../sys/reactor.ts';

const EPERM = errnoOf('EPERM');

export interface SignalCounters {
  /** Signals sent to drivers, kicks heard from them, and signals that no descriptor took. */
  signals: number;
  kicks: number;
  signalErrors: number;
}

export class RingFds {
  readonly #sys: Native;
  readonly #reactor: Reactor;
  readonly #counters: SignalCounters;
  readonly #onKick: () => void;
  #kick = -1;
  #call = -1;
  #err = -1;
  #watch: Registration | null = null;

  constructor(sys: Native, reactor: Reactor, counters: SignalCounters, onKick: () => void) {
    this.#sys = sys;
    this.#reactor = reactor;
    this.#counters = counters;
    this.#onKick = onKick;
  }

  /** Nobody will kick. */
  get isPolled(): boolean {
    return this.#kick < 0;
  }

  /** 0, or the errno with which it cannot be watched (a file: EPERM); it is closed then. */
  setKick(fd: number): number {
    this.#watch?.remove();
    this.#watch = null;
    this.#kick = this.#replace(this.#kick, fd);
    if (fd < 0) return 0;
    try {
      this.#watch = this.#reactor.add(fd, EPOLLIN, () => {
        this.#counters.kicks += 1;
        this.#onKick();
      });
    } catch (error) {
      this.#kick = this.#replace(fd, -1);
      return (error as { errno?: number }).errno === undefined
        ? EPERM
        : Math.abs((error as { errno: number }).errno);
    }
    return 0;
  }

  setCall(fd: number): number {
    this.#call = this.#replace(this.#call, fd);
    return 0;
  }

  setErr(fd: number): number {
    this.#err = this.#replace(this.#err, fd);
    return 0;
  }

  /** Tells the driver that there are used entries. */
  call(): void {
    this.#signal(this.#call);
  }

  /** Tells the front-end that the ring is broken. */
  broken(): void {
    this.#signal(this.#err);
  }

  close(): void {
    this.setKick(-1);
    this.setCall(-1);
    this.setErr(-1);
  }

  #signal(fd: number): void {
    if (fd < 0) return;
    if (this.#sys.eventfdSignal(fd) < 0) this.#counters.signalErrors += 1;
    else this.#counters.signals += 1;
  }

  #replace(old: number, fd: number): number {
    if (old >= 0) this.#sys.close(old);
    return fd;
  }
}
