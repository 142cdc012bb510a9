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
import { StillLentError } from '../core/still-lent.ts';
import type { Outcome } from '../core/ubuf.ts';
import type { Timer } from './transport.ts';

/** Why a message was not accepted, where waiting helps. */
export type Refusal = 'EAGAIN' | 'ENOBUFS' | 'ENOMEM';

/** What became of an attempt. */
export type Attempt = Refusal | Accepted;

export interface Accepted {
  /** Null when the message was copied: there is nothing to wait for. */
  readonly lent: LentMessage | null;
}

/** A message whose buffer is with the library or the kernel. */
export interface LentMessage {
  /** Takes it back if it was not begun; then it is released soon. */
  withdraw(): boolean;
  /** The peer has it; only the kernel may still hold pages. */
  acknowledged(): boolean;
}

/** `released` is called once for a lent message; with an error when it was not delivered as it was accepted. */
export type Released = (outcome: Outcome, error?: ZerotxError) => void;

export interface SendRequest {
  readonly address: string;
  readonly port: number;
  /** Tries to queue the message; `released` is called once if it was lent. Throws what cannot be waited for. */
  attempt(released: Released): Attempt;
  readonly bytes: number;
}

class PendingSend {
  readonly request: SendRequest;
  readonly key: string;
  readonly resolve: (outcome: Outcome) => void;
  readonly reject: (error: unknown) => void;
  lent: LentMessage | null = null;
  accepted = false;
  settled = false;
  withdrawnWith: unknown = null;
  timer: Timer | null = null;
  /** The timer bounds the wait for room alone. */
  timesRoom = false;
  unlisten: (() => void) | null = null;
  /** Set when the caller was told ZTX_STILL_LENT: tells when the buffer is free after all. */
  freed: ((outcome: Outcome) => void) | null = null;

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
  /** Without `timeoutMs`: how long to wait for room; 0: for ever. */
  readonly roomTimeoutMs?: number;
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
      const { signal, timeoutMs, roomTimeoutMs = 0 } = options;
      if (signal?.aborted) {
        reject(signal.reason);
        return;
      }
      const pending = new PendingSend(request, resolve, reject);
      const behind = this.#waiting.has(pending.key);
      if (behind || this.#tried(pending) !== null) this.#wait(pending);
      if (pending.settled) return;
      if (signal !== undefined) {
        const onAbort = (): void => this.#giveUp(pending, signal.reason);
        signal.addEventListener('abort', onAbort, { once: true });
        pending.unlisten = () => signal.removeEventListener('abort', onAbort);
      }
      if (timeoutMs !== undefined) {
        pending.timer = this.#setTimer(() => this.#giveUp(pending, timedOut(timeoutMs)), timeoutMs);
      } else if (roomTimeoutMs > 0 && !pending.accepted) {
        pending.timesRoom = true;
        pending.timer = this.#setTimer(() => this.#giveUp(pending, noRoom(roomTimeoutMs)), roomTimeoutMs);
      }
    });
  }

  /**
   * Room may have come: destinations in turn, one message each, until the socket has no room. A congested destination is
   * passed over. (A key that is set again is visited again: that is what makes the turns.)
   */
  retry(): void {
    for (const [key, queue] of this.#waiting) {
      const [pending] = queue;
      if (pending === undefined) continue;
      const refusal = this.#tried(pending);
      if (refusal === 'ENOBUFS') continue;
      if (refusal !== null) return;
      this.#unwait(pending);
      if (!this.#waiting.delete(key)) continue;
      this.#waiting.set(key, queue);
    }
  }

  /**
   * What waits for `address` and `port` (null: any) is rejected; what is lent and not acknowledged is about to be withdrawn, and
   * is rejected when the buffer is the caller's again.
   */
  withdraw(address: string | null, port: number | null, error: ZerotxError): void {
    for (const queue of [...this.#waiting.values()]) {
      for (const pending of queue) {
        if (!isTo(pending.request, address, port)) continue;
        this.#unwait(pending);
        this.#settle(pending, () => pending.reject(error));
      }
    }
    for (const pending of this.#lent) {
      if (isTo(pending.request, address, port) && !pending.lent?.acknowledged())
        pending.withdrawnWith ??= error;
    }
  }

  /** Nobody waits for the kernel any longer: all that are lent are rejected with ZTX_STILL_LENT. */
  abandon(reason: string): void {
    for (const pending of this.#lent) this.#stillLent(pending, reason, undefined);
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

  /** Null if the message was accepted, or failed for good. */
  #tried(pending: PendingSend): Refusal | null {
    let attempt: Attempt;
    try {
      attempt = pending.request.attempt((outcome, error) => this.#released(pending, outcome, error));
    } catch (error) {
      // Its peer was forgotten, and another one has the place: it had one when it began to wait, and may have one again.
      const waits = this.#waiting.get(pending.key)?.has(pending) ?? false;
      if (waits && error instanceof ZerotxError && error.code === 'ENOBUFS') return 'ENOBUFS';
      this.#settle(pending, () => pending.reject(error));
      return null;
    }
    if (typeof attempt === 'string') return attempt;
    pending.accepted = true;
    if (pending.timesRoom) pending.timer?.cancel();
    pending.lent = attempt.lent;
    if (attempt.lent !== null) this.#lent.add(pending);
    else {
      const { bytes } = pending.request;
      this.#settle(pending, () => pending.resolve({ bytes, copiedBytes: bytes, exact: true }));
    }
    return null;
  }

  #released(pending: PendingSend, outcome: Outcome, error: ZerotxError | undefined): void {
    pending.freed?.(outcome);
    this.#settle(pending, () => {
      const failure = pending.withdrawnWith ?? error;
      if (failure === undefined || failure === null) pending.resolve(outcome);
      else pending.reject(failure);
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
    if (pending.lent?.withdraw()) return;
    const why =
      'send given up while the kernel or a retransmission may still read the buffer: it is not yours yet';
    this.#stillLent(pending, why, reason);
  }

  #stillLent(pending: PendingSend, why: string, cause: unknown): void {
    const released = new Promise<Outcome>((resolve) => {
      pending.freed = resolve;
    });
    this.#settle(pending, () => pending.reject(new StillLentError(why, released, cause)));
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

function isTo(request: SendRequest, address: string | null, port: number | null): boolean {
  return (address === null || request.address === address) && (port === null || request.port === port);
}

function timedOut(timeoutMs: number): ZerotxError {
  return new ZerotxError('ETIMEDOUT', `send ETIMEDOUT: not accepted or released within ${timeoutMs} ms`, {
    syscall: 'send',
  });
}

function noRoom(timeoutMs: number): ZerotxError {
  return new ZerotxError('ETIMEDOUT', `send ETIMEDOUT: no room within SO_SNDTIMEO, ${timeoutMs} ms`, {
    syscall: 'send',
  });
}
