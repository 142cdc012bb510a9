/**
 * await send(): messages that wait for room, and messages that wait for their release.
 *
 *   waiting ── accepted ──▶ (copied: resolved)
 *      │          └───────▶ lent ── released ──▶ resolved
 *      │ abort, deadline     │ abort, deadline
 *      ▼                     ▼
 *   rejected              not begun: withdrawn, rejected when the buffer is free
 *                         begun: rejected at once with ZTX_STILL_LENT; the message goes on
 *
 * A message behind another one to the same port of the same peer never overtakes it; others do not wait for it.
 */
import { ZerotxError } from '../core/errors.ts';
import type { Outcome } from '../core/ubuf.ts';
import type { Timer } from './transport.ts';

/** What became of an attempt: an errno name to wait on, or accepted. */
export type Attempt = 'EAGAIN' | 'ENOBUFS' | 'ENOMEM' | Accepted;

export interface Accepted {
  /** Null when the message was copied: there is nothing to wait for. */
  readonly withdraw: (() => boolean) | null;
}

export interface SendRequest {
  readonly address: string;
  readonly port: number;
  /** Tries to queue the message; `released` is called once if it was lent. Throws what cannot be waited for. */
  attempt(released: (outcome: Outcome) => void): Attempt;
  readonly bytes: number;
}

class PendingSend {
  readonly request: SendRequest;
  readonly key: string;
  readonly resolve: (outcome: Outcome) => void;
  readonly reject: (error: unknown) => void;
  withdraw: (() => boolean) | null = null;
  accepted = false;
  settled = false;
  withdrawnWith: unknown = null;
  timer: Timer | null = null;
  unlisten: (() => void) | null = null;

  constructor(request: SendRequest, resolve: (outcome: Outcome) => void, reject: (error: unknown) => void) {
    this.request = request;
    this.key = `${request.address} ${request.port}`;
    this.resolve = resolve;
    this.reject = reject;
  }
}

export interface SendWaitOptions {
  readonly signal?: AbortSignal | undefined;
  readonly timeoutMs?: number | undefined;
}

export class PendingSends {
  /** By destination, in the order of send(). */
  readonly #waiting = new Map<string, Set<PendingSend>>();
  #waitingCount = 0;
  /** Accepted, and lent until released. */
  readonly #lent = new Set<PendingSend>();
  readonly #setTimer: (task: () => void, delayMs: number) => Timer;
  readonly #gaveUp: () => void;

  /** `gaveUp`: a waiting message was given up, so those behind it are worth a try. */
  constructor(setTimer: (task: () => void, delayMs: number) => Timer, gaveUp: () => void) {
    this.#setTimer = setTimer;
    this.#gaveUp = gaveUp;
  }

  /** Messages that wait for room. */
  get length(): number {
    return this.#waitingCount;
  }

  add(request: SendRequest, options: SendWaitOptions): Promise<Outcome> {
    return new Promise((resolve, reject) => {
      const { signal, timeoutMs } = options;
      if (signal?.aborted) {
        reject(signal.reason);
        return;
      }
      const pending = new PendingSend(request, resolve, reject);
      const behind = this.#waiting.has(pending.key);
      if (!behind && this.#tried(pending)) return;
      if (!pending.accepted) this.#wait(pending);
      if (signal !== undefined) {
        const onAbort = (): void => this.#giveUp(pending, signal.reason);
        signal.addEventListener('abort', onAbort, { once: true });
        pending.unlisten = () => signal.removeEventListener('abort', onAbort);
      }
      if (timeoutMs !== undefined) {
        pending.timer = this.#setTimer(() => this.#giveUp(pending, timedOut(timeoutMs)), timeoutMs);
      }
    });
  }

  /** Room may have come: tries the first of each destination, and those behind it while they are accepted. */
  retry(): void {
    for (const queue of [...this.#waiting.values()]) {
      for (const pending of queue) {
        this.#tried(pending);
        if (!pending.accepted && !pending.settled) break;
        this.#unwait(pending);
      }
    }
  }

  /** Rejects all that wait for room. */
  close(error: ZerotxError): void {
    for (const queue of [...this.#waiting.values()]) {
      for (const pending of queue) {
        this.#unwait(pending);
        this.#settle(pending, () => pending.reject(error));
      }
    }
  }

  /** What is lent to `address` (null: to anybody) was withdrawn: rejected when the buffer is the caller's again. */
  withdrawn(address: string | null, error: ZerotxError): void {
    for (const pending of this.#lent) {
      if (address === null || pending.request.address === address) pending.withdrawnWith ??= error;
    }
  }

  /** Rejects all that are lent: nobody waits for the kernel any longer. */
  abandon(error: ZerotxError): void {
    for (const pending of this.#lent) this.#settle(pending, () => pending.reject(error));
  }

  #wait(pending: PendingSend): void {
    const queue = this.#waiting.get(pending.key) ?? new Set();
    this.#waiting.set(pending.key, queue);
    queue.add(pending);
    this.#waitingCount += 1;
  }

  #unwait(pending: PendingSend): void {
    const queue = this.#waiting.get(pending.key);
    if (queue?.delete(pending)) this.#waitingCount -= 1;
    if (queue?.size === 0) this.#waiting.delete(pending.key);
  }

  /** True if there is nothing left to wait for. */
  #tried(pending: PendingSend): boolean {
    let attempt: Attempt;
    try {
      attempt = pending.request.attempt((outcome) => this.#released(pending, outcome));
    } catch (error) {
      this.#settle(pending, () => pending.reject(error));
      return true;
    }
    if (typeof attempt === 'string') return false;
    pending.accepted = true;
    pending.withdraw = attempt.withdraw;
    if (attempt.withdraw !== null) {
      this.#lent.add(pending);
      return false;
    }
    const { bytes } = pending.request;
    this.#settle(pending, () => pending.resolve({ bytes, copiedBytes: bytes, exact: true }));
    return true;
  }

  #released(pending: PendingSend, outcome: Outcome): void {
    this.#settle(pending, () => {
      if (pending.withdrawnWith !== null) pending.reject(pending.withdrawnWith);
      else pending.resolve(outcome);
    });
  }

  #giveUp(pending: PendingSend, reason: unknown): void {
    if (pending.settled || pending.withdrawnWith !== null) return;
    if (!pending.accepted) {
      this.#unwait(pending);
      this.#settle(pending, () => pending.reject(reason));
      this.#gaveUp();
      return;
    }
    // Withdrawn: rejected by #released, when the buffer is the caller's again.
    pending.withdrawnWith = reason;
    if (pending.withdraw?.()) return;
    const message =
      'send given up while the kernel or a retransmission may still read the buffer: it is not yours yet';
    this.#settle(pending, () =>
      pending.reject(new ZerotxError('ZTX_STILL_LENT', message, { cause: reason })),
    );
  }

  #settle(pending: PendingSend, finish: () => void): void {
    if (pending.settled) return;
    pending.settled = true;
    this.#lent.delete(pending);
    pending.timer?.cancel();
    pending.unlisten?.();
    finish();
  }
}

function timedOut(timeoutMs: number): ZerotxError {
  return new ZerotxError('ETIMEDOUT', `send ETIMEDOUT: not accepted or released within ${timeoutMs} ms`, {
    syscall: 'send',
  });
}
