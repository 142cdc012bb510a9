/**
 * A signal that fires with another one, or after a time. AbortSignal.any() makes one too; but Node 20 may collect it, with the
 * AbortSignal.timeout() in it, while somebody waits for it, and then it never fires.
 */
export interface Deadline {
  readonly signal: AbortSignal;
  /** It fires by the clock no more. */
  clear(): void;
}

/** `ms` undefined: it fires with `signal` alone. */
export function deadline(signal: AbortSignal, ms: number | undefined): Deadline {
  const ending = new AbortController();
  const end = (): void => ending.abort();
  const timer = ms === undefined ? undefined : setTimeout(end, ms);
  if (signal.aborted) end();
  signal.addEventListener('abort', end, { once: true });
  return {
    signal: ending.signal,
    clear() {
      clearTimeout(timer);
      signal.removeEventListener('abort', end);
    },
  };
}
