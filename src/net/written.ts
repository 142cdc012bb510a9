/**
 * Writes that want to hear of their release.
 *
 * stream.Writable calls a write's callback when the chunk is accepted; ours must wait until the kernel has let go of the
 * memory. So the program's callback waits in a ticket that goes along with the chunk:
 *
 *   write(chunk, cb) ──▶ queued ──▶ begun ──▶ accepted ──▶ released ──▶ cb(null)
 *                          │           └─ connection gone ─▶ released ──▶ cb(error)
 *                          └─ destroyed, or cancelled: cb(error) at once, nothing was lent
 */
import type { Outcome } from '../core/ubuf.ts';
import { Lease, returnLease } from './lease.ts';
import type { Borrowed } from './lending.ts';
import type { Ticket } from './outgoing.ts';

export type Settle = (error: Error | null, outcome: Outcome) => void;

const NOTHING: Outcome = { bytes: 0, copiedBytes: 0, exact: true };

export interface TicketOwner {
  stillLent(text: string): void;
}

export class WriteTicket implements Ticket {
  /** The socket has begun to send the chunk. */
  begun = false;
  /** Not to be sent any more. */
  cancelled = false;
  readonly #settle: Settle | null;
  readonly #lease: Lease | Borrowed | null;
  readonly #owner: TicketOwner | null;
  #error: Error | null = null;

  /** `lease`: a whole one, or a part of one. `owner` is told if the deadline for the release has passed. */
  constructor(settle: Settle | null, lease: Lease | Borrowed | null, owner: TicketOwner | null) {
    this.#owner = owner;
    this.#settle = settle;
    this.#lease = lease;
  }

  /** The stream's callback of the chunk. */
  readonly accepted = (error?: Error | null): void => {
    if (error === null || error === undefined || this.cancelled) return;
    if (this.begun) this.#error = error;
    else this.#end(error, NOTHING);
  };

  /** Takes the chunk back if it was not begun. */
  cancel(error: Error): boolean {
    if (this.begun || this.cancelled) return false;
    this.cancelled = true;
    this.#end(error, NOTHING);
    return true;
  }

  failed(error: Error): void {
    this.#error = error;
  }

  quarantined(): void {
    this.#owner?.stillLent('the kernel did not let go of the buffer in time');
  }

  released(outcome: Outcome): void {
    this.#end(this.#error, outcome);
  }

  #end(error: Error | null, outcome: Outcome): void {
    if (this.#lease instanceof Lease) returnLease(this.#lease);
    else this.#lease?.giveBack();
    this.#settle?.(error, outcome);
  }
}
