/**
 * The end of a socket, this library's or the kernel's. close() waits for nothing but acknowledgements and releases, so whoever sees one says so
 * here; every call on a closed socket fails alike, and so does a close() that met its deadline.
 */
import { ZerotxError } from '../core/errors.ts';
import type { Runtime } from './transport.ts';

/** Throws ENOTCONN for a closed socket: there is no descriptor that could be bad. */
export function checkOpen(socket: { readonly closed: boolean }, syscall: string): void {
  if (socket.closed)
    throw new ZerotxError('ENOTCONN', `${syscall} ENOTCONN: the socket is closed`, { syscall });
}

/** How long close() waits for acknowledgements, and for lent memory, if it is not told. */
export const CLOSE_DRAIN_MS = 30_000;

export function stillLentText(bytes: number): string {
  return `${bytes} bytes lent by this socket may still be read by the kernel`;
}

/** What close() rejects with; null: nothing. */
export function closeError(
  { released, drained }: { readonly released: boolean; readonly drained: boolean },
  stillLent: string,
  timeoutMs: number,
): ZerotxError | null {
  if (!released) return new ZerotxError('ZTX_STILL_LENT', stillLent);
  if (drained) return null;
  const text = `close ETIMEDOUT: not all was acknowledged within ${timeoutMs} ms; the rest was withdrawn`;
  return new ZerotxError('ETIMEDOUT', text, { syscall: 'close', next: 'fatal' });
}

/** For calls that wait to receive: the socket was closed meanwhile. */
export function closedMeanwhile(): ZerotxError {
  const text = 'receive ECANCELED: the socket was closed while it waited';
  return new ZerotxError('ECANCELED', text, { syscall: 'receive' });
}

export class Change {
  readonly #runtime: Runtime;
  #look: (() => void) | null = null;

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  /** Bytes were acknowledged, given up or released. */
  happened(): void {
    this.#look?.();
  }

  /** Resolves with true once `condition` holds, with false after `timeoutMs`. One wait at a time. */
  async until(condition: () => boolean, timeoutMs: number): Promise<boolean> {
    if (condition()) return true;
    return new Promise((resolve) => {
      const timer = this.#runtime.timer(() => finish(false), timeoutMs);
      const finish = (result: boolean): void => {
        this.#look = null;
        timer.cancel();
        resolve(result);
      };
      this.#look = () => {
        if (condition()) finish(true);
      };
    });
  }
}
