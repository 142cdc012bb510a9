/**
 * The end of a socket. close() waits for nothing but acknowledgements and releases, so whoever sees one says so here; and every
 * call on a closed socket fails alike.
 */
import { ZerotxError } from '../core/errors.ts';
import type { Runtime } from './transport.ts';

/** Throws ENOTCONN for a closed socket: there is no descriptor that could be bad. */
export function checkOpen(socket: { readonly closed: boolean }, syscall: string): void {
  if (socket.closed)
    throw new ZerotxError('ENOTCONN', `${syscall} ENOTCONN: the socket is closed`, { syscall });
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
