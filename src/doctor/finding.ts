/** What a check is, and what it says. */
import type { Destination } from './destination.ts';

/**
 * `ok`: works, or is as it should be. `warn`: something will be copied, refused or missed; `remedy` says what to do.
 * `fail`: the thing that was tried does not work. `skip`: there is nothing to try here.
 */
export type Status = 'ok' | 'warn' | 'fail' | 'skip';

export interface Finding {
  /** As `zerocopy.tcp4`: a group and a name. Stable. */
  readonly id: string;
  readonly title: string;
  readonly status: Status;
  /** What was found, a sentence for a person. */
  readonly found: string;
  /** What to do about it, as a command where there is one. */
  readonly remedy?: string;
  /** The same for programs: plain values. */
  readonly data?: Readonly<Record<string, unknown>>;
}

export type Result = Omit<Finding, 'id' | 'title'>;

/** What a check may ask for. */
export interface Surroundings {
  /** Where to: resolved and looked up on first use, once for all checks. */
  destination(): Promise<Destination>;
  /** A host was named; else it is about the default route. */
  readonly asked: boolean;
  /** Fires when the check's time is over: what it opened must be closed then. */
  readonly signal: AbortSignal;
}

export interface Check {
  readonly id: string;
  readonly title: string;
  /** Says something even where the addon is missing. */
  readonly withoutAddon?: true;
  run(surroundings: Surroundings): Result | Promise<Result>;
}

/** A result that has a remedy only if it needs one. */
export function result(
  status: Status,
  found: string,
  more: { remedy?: string | undefined; data?: Readonly<Record<string, unknown>> } = {},
): Result {
  return {
    status,
    found,
    ...(more.remedy === undefined ? {} : { remedy: more.remedy }),
    ...(more.data === undefined ? {} : { data: more.data }),
  };
}
