/** How sockets and nodes are closed. */
import { checkObject, checkOptionalBoolean, checkOptionalInteger } from '../core/arguments.ts';

export interface CloseOptions {
  /** Wait until everything sent is acknowledged. */
  readonly drain?: boolean;
  /** How long to wait for that, and for lent memory. Default 30 s each. */
  readonly timeoutMs?: number;
}

/** What is wrong with the options of close(), which rejects and does not throw. */
export function closeOptionsError(options: CloseOptions): unknown {
  try {
    checkObject('options', options);
    checkOptionalBoolean('options.drain', options.drain);
    checkOptionalInteger('options.timeoutMs', options.timeoutMs, 0, 2 ** 31 - 1);
    return null;
  } catch (error) {
    return error;
  }
}
