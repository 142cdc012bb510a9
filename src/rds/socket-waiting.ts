/** Who waits to receive on one socket: served one after the other, in the order in which they came. */
import { ZerotxError } from '../core/errors.ts';
import type { Runtime, Timer } from './transport.ts';

export interface ReceiveWaitOptions {
  readonly signal?: AbortSignal | undefined;
  /** Undefined: for ever. */
  readonly timeoutMs?: number | undefined;
}

interface Waiter {
  /** Resolves with what there is, if it is for this one. */
  served(): void;
  end(error: ZerotxError | null): void;
}

export class ReceiveWaiters {
  readonly #runtime: Runtime;
  readonly #waiting = new Set<Waiter>();

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  get length(): number {
    return this.#waiting.size;
  }

  /**
   * Resolves with the first thing that `take` gives, at once if it has something and nobody waits. `ended` is what becomes of it
   * when the socket closes: it resolves with that, or rejects if it is undefined.
   */
  add<T>(take: () => T | null, options: ReceiveWaitOptions, ended?: T): Promise<T> {
    const { signal, timeoutMs } = options;
    return new Promise<T>((resolve, reject) => {
      if (signal?.aborted) {
        reject(signal.reason);
        return;
      }
      const first = this.#waiting.size === 0 ? take() : null;
      if (first !== null) {
        resolve(first);
        return;
      }
      let timer: Timer | null = null;
      const leave = (): void => {
        this.#waiting.delete(waiter);
        timer?.cancel();
        signal?.removeEventListener('abort', onAbort);
      };
      const onAbort = (): void => {
        leave();
        reject(signal?.reason);
      };
      const waiter: Waiter = {
        served: () => {
          try {
            const got = take();
            if (got === null) return;
            leave();
            resolve(got);
          } catch (error) {
            // Nobody but the one who waits can do anything about it.
            leave();
            reject(error);
          }
        },
        end: (error) => {
          leave();
          if (ended === undefined) reject(error);
          else resolve(ended);
        },
      };
      this.#waiting.add(waiter);
      signal?.addEventListener('abort', onAbort, { once: true });
      if (timeoutMs !== undefined) {
        timer = this.#runtime.timer(() => {
          leave();
          reject(timedOut(timeoutMs));
        }, timeoutMs);
      }
      // Those before may wait for something else than what is there, which raises no event any more.
      if (this.#waiting.size > 1) this.serve();
    });
  }

  /** Something came. Who cannot use it leaves it to those behind. */
  serve(): void {
    for (const waiter of this.#waiting) waiter.served();
  }

  /** The socket closes. */
  end(error: ZerotxError): void {
    for (const waiter of [...this.#waiting]) waiter.end(error);
  }
}

function timedOut(timeoutMs: number): ZerotxError {
  return new ZerotxError('ETIMEDOUT', `receive ETIMEDOUT: nothing came within ${timeoutMs} ms`, {
    syscall: 'receive',
  });
}
