/** The error of whoever gave up waiting while the kernel may still read the memory. */
import { ZerotxError } from './errors.ts';
import type { Outcome } from './ubuf.ts';

/** The caller gave up, and the buffer is not its own yet: `released` says when. */
export class StillLentError extends ZerotxError {
  readonly released: Promise<Outcome>;

  constructor(message: string, released: Promise<Outcome>, cause?: unknown) {
    super('ZTX_STILL_LENT', message, cause === undefined ? {} : { cause });
    this.released = released;
  }
}
