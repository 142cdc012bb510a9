/** send(): one promise over the tickets of one or several chunks. */
import { wrongType } from '../core/arguments.ts';
import { StillLentError } from '../core/still-lent.ts';
import type { Outcome } from '../core/ubuf.ts';
import { Lease } from './lease.ts';
import { abortError } from './node-errors.ts';
import type { Settle, WriteTicket } from './written.ts';

export type Sendable = Uint8Array | Lease | readonly Uint8Array[];

/** The parts of what send() was given, of which a lease is one by itself; throws ERR_INVALID_ARG_TYPE. */
export function sendParts(data: Sendable): readonly (Uint8Array | Lease)[] {
  if (data instanceof Lease) return [data];
  const parts = Array.isArray(data) ? (data as readonly Uint8Array[]) : [data as Uint8Array];
  if (!parts.every((part) => part instanceof Uint8Array)) {
    throw wrongType('data', 'an instance of Uint8Array or Lease, or an array of Uint8Array', data);
  }
  return parts;
}

export class PendingSend {
  readonly promise: Promise<Outcome>;
  readonly #tickets: WriteTicket[] = [];
  readonly #signal: AbortSignal | undefined;
  readonly #errored: () => Error | null;
  #total: { bytes: number; copiedBytes: number; exact: boolean } = { bytes: 0, copiedBytes: 0, exact: true };
  #left: number;
  #failure: Error | null = null;
  #resolve: (outcome: Outcome) => void = () => {};
  #reject: (error: Error) => void = () => {};
  #released: ((outcome: Outcome) => void) | null = null;

  /** `errored` says what became of the connection. */
  constructor(parts: number, signal: AbortSignal | undefined, errored: () => Error | null) {
    this.#left = parts;
    this.#signal = signal;
    this.#errored = errored;
    this.promise = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    signal?.addEventListener('abort', this.#onAbort, { once: true });
  }

  add(ticket: WriteTicket): void {
    this.#tickets.push(ticket);
  }

  /** What each ticket settles with. */
  readonly settle: Settle = (error, outcome) => {
    this.#failure ??= error ?? this.#errored();
    this.#total.bytes += outcome.bytes;
    this.#total.copiedBytes += outcome.copiedBytes;
    this.#total.exact &&= outcome.exact;
    this.#left -= 1;
    if (this.#left > 0) return;
    this.#signal?.removeEventListener('abort', this.#onAbort);
    this.#released?.(this.#total);
    if (this.#failure === null) this.#resolve(this.#total);
    else this.#reject(this.#failure);
  };

  /** Nobody knows when the kernel will let go: the buffer is not the caller's until `released` says so. */
  stillLent(text: string, cause?: Error): void {
    if (this.#released !== null) return;
    const released = new Promise<Outcome>((resolve) => {
      this.#released = resolve;
    });
    this.#reject(new StillLentError(text, released, cause));
  }

  readonly #onAbort = (): void => {
    const reason = abortError(this.#signal as AbortSignal);
    // What was not begun is not sent; of what was, the rest follows, or the stream would be torn.
    const begun = this.#tickets.filter((ticket) => !ticket.cancel(reason));
    if (begun.length > 0) this.stillLent('aborted when its turn had come', reason);
  };
}
