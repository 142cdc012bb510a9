/** The `zerocopy` option of sockets and servers: one table of defaults. */
import { checkObject, checkOptionalBoolean, checkOptionalInteger, wrongRange } from '../core/arguments.ts';
import type { ZerocopyMode } from './policy.ts';

export interface ZerocopyOptions {
  /** `auto`: lend, but copy to this host and where the kernel copies after all. `force`: lend. `off`: copy. */
  readonly mode?: ZerocopyMode | undefined;
  /** Smaller chunks are copied: 32 KiB on TCP, 16 KiB on UDP. */
  readonly thresholdBytes?: number | undefined;
  /**
   * A connection that holds lent memory for longer is reset with ETIMEDOUT, also after it was closed (then 30 s at most); 0,
   * which is the default: no limit while it is open.
   */
  readonly pinTimeoutMs?: number | undefined;
  /** The program vouches that it does not transfer Buffers while they are lent, where the runtime cannot protect them. */
  readonly pin?: boolean | undefined;
}

export interface ResolvedZerocopy {
  readonly mode: ZerocopyMode;
  readonly thresholdBytes: number;
  readonly pinTimeoutMs: number;
  readonly pin: boolean;
}

/** Throws ERR_INVALID_ARG_TYPE or ERR_OUT_OF_RANGE. */
export function resolveZerocopy(
  options: ZerocopyOptions | undefined,
  defaultThresholdBytes: number,
): ResolvedZerocopy {
  const given: ZerocopyOptions = options ?? {};
  checkObject('options.zerocopy', given);
  const {
    mode = 'auto',
    thresholdBytes = defaultThresholdBytes,
    pinTimeoutMs = 0,
    pin = false,
  } = given as ZerocopyOptions;
  if (mode !== 'auto' && mode !== 'force' && mode !== 'off') {
    throw wrongRange('options.zerocopy.mode', "'auto', 'force' or 'off'", mode);
  }
  checkOptionalInteger('options.zerocopy.thresholdBytes', thresholdBytes, 1, Number.MAX_SAFE_INTEGER);
  checkOptionalInteger('options.zerocopy.pinTimeoutMs', pinTimeoutMs, 0, 2 ** 31 - 1);
  checkOptionalBoolean('options.zerocopy.pin', pin);
  return { mode, thresholdBytes, pinTimeoutMs, pin };
}
