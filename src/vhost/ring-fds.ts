/**
 * The descriptors of one ring: who is told of it, and how the guest is.
 *
 *   kick   from the driver: watched edge-triggered and never read, as a read can block if the other holder cleared
 *          O_NONBLOCK; without one the ring is polled
 *   call   to the driver: signalled without ever blocking (Native.eventfdSignal); without one the driver polls
 *   err    signalled when the ring is broken
 *
 * All three come from the front-end, so they may be anything; eventfds are what QEMU, DPDK and all the others send, and nothing else is
 * taken from them. A file's file system may be a program of the front-end's that never answers; a pipe has a lock that the other end
 * can hold (fds.ts, signal.c); and a socket may be the far end of this very connection, or have it on the way to be received: as
 * long as we held it, the connection would never end. User-Mode Linux, whose call descriptors are sockets or pipes, is a
 * front-end to be trusted anyway.
 */
import { errnoOf, ZerotxError } from '../core/errors.ts';
import type { Native } from '../sys/binding.ts';
import { EPOLLIN } from '../sys/constants.ts';
import { closeReceived, isEventfd, isSafeToWatch } from '../sys/fds.ts';
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
  readonly #takesOthers: boolean;
  #kick = -1;
  #call = -1;
  #err = -1;
  #watch: Registration | null = null;

  constructor(
    sys: Native,
    reactor: Reactor,
    counters: SignalCounters,
    takesOthers: boolean,
    onKick: () => void,
  ) {
    this.#sys = sys;
    this.#takesOthers = takesOthers;
    this.#reactor = reactor;
    this.#counters = counters;
    this.#onKick = onKick;
  }

  /** Nobody will kick. */
  get isPolled(): boolean {
    return this.#kick < 0;
  }

  /** 0, or the errno with which it cannot be watched (what is no eventfd: EPERM); it is closed then. */
  setKick(fd: number): number {
    this.#watch?.remove();
    this.#watch = null;
    this.#kick = this.#replace(this.#kick, fd);
    if (fd < 0) return 0;
    if (!this.#isTaken(fd)) return this.#refuseKick(EPERM);
    try {
      this.#watch = this.#reactor.add(fd, EPOLLIN, () => {
        this.#counters.kicks += 1;
        this.#onKick();
      });
      return 0;
    } catch (error) {
      if (!(error instanceof ZerotxError)) throw error;
      return this.#refuseKick(-error.errno);
    }
  }

  /** 0, or EPERM for what is no eventfd; it is closed then. */
  setCall(fd: number): number {
    const usable = fd < 0 || this.#isTaken(fd);
    this.#call = this.#replace(this.#call, usable ? fd : -1);
    if (!usable) closeReceived(fd);
    return usable ? 0 : EPERM;
  }

  setErr(fd: number): number {
    const usable = fd < 0 || this.#isTaken(fd);
    this.#err = this.#replace(this.#err, usable ? fd : -1);
    if (!usable) closeReceived(fd);
    return usable ? 0 : EPERM;
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

  #refuseKick(errno: number): number {
    this.#kick = this.#replace(this.#kick, -1);
    return errno;
  }

  #isTaken(fd: number): boolean {
    return this.#takesOthers ? isSafeToWatch(fd) : isEventfd(fd);
  }

  #signal(fd: number): void {
    if (fd < 0) return;
    if (this.#sys.eventfdSignal(fd) < 0) this.#counters.signalErrors += 1;
    else this.#counters.signals += 1;
  }

  #replace(old: number, fd: number): number {
    if (old >= 0) closeReceived(old);
    return fd;
  }
}
