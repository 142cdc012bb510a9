/** AbortSignals that sockets and servers obey for as long as they live. */
import type { EventEmitter } from 'node:events';
import { checkSignal } from '../core/arguments.ts';

/** Calls `onAbort` when `signal` fires, at once if it has; forgets about it at the 'close' of `owner`. Throws ERR_INVALID_ARG_TYPE. */
export function obey(signal: AbortSignal | undefined, owner: EventEmitter, onAbort: () => void): void {
  checkSignal('options.signal', signal);
  if (signal === undefined) return;
  if (signal.aborted) {
    onAbort();
    return;
  }
  signal.addEventListener('abort', onAbort, { once: true });
  owner.once('close', () => signal.removeEventListener('abort', onAbort));
}
