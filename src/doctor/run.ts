/**
 * Runs checks one after the other, each with a time limit of its own. What a check throws is its own failure and nobody
 * else's; one that does not come back is told so by its signal and left behind.
 */
import { select } from './catalogue.ts';
import { addonError } from './checks/system.ts';
import { type Destination, findDestination, type HostPort, parseHostPort } from './destination.ts';
import { type Check, type Finding, type Result, result, type Surroundings } from './finding.ts';
import { Absent } from './loopback.ts';

export interface DoctorOptions {
  /** The host to look at the way to: `host`, `host:port` or `[address]:port`. The default route, if left out. */
  readonly to?: string;
  /** Only checks with these ids, or of these groups. */
  readonly only?: readonly string[];
  /** Time for each check: 3000 if left out. */
  readonly limitMs?: number;
}

const LIMIT_MS = 3000;
const LOOPBACK_REMEDY = 'ip link set lo up';

/**
 * Looks at this host by trying things, and yields what each check found. Throws EINVAL on a bad `to` or an unknown name in
 * `only`; nothing else. Needs no rights; with fewer it says less.
 */
export async function* doctor(options: DoctorOptions = {}): AsyncGenerator<Finding, void, undefined> {
  const to = options.to === undefined ? undefined : parseHostPort(options.to);
  yield* runChecks(select(options.only), to, options.limitMs ?? LIMIT_MS);
}

export async function* runChecks(
  checks: readonly Check[],
  to: HostPort | undefined,
  limitMs: number,
): AsyncGenerator<Finding, void, undefined> {
  let found: Promise<Destination> | undefined;
  const way: Way = {
    asked: to !== undefined,
    destination: () => {
      found ??= findDestination(to);
      return found;
    },
  };
  const missing = addonError();
  for (const check of checks) {
    const { id, title } = check;
    if (missing !== undefined && check.withoutAddon !== true) yield { id, title, ...NEEDS_ADDON };
    else yield { id, title, ...(await limited(check, way, limitMs)) };
  }
}

const NEEDS_ADDON: Result = result('skip', 'needs the addon', { data: { code: 'ZTX_NO_ADDON' } });

type Way = Omit<Surroundings, 'signal'>;

async function limited(check: Check, way: Way, limitMs: number): Promise<Result> {
  const ending = new AbortController();
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<Result>((resolve) => {
    timer = setTimeout(() => {
      ending.abort();
      resolve(result('fail', `no answer within ${limitMs} ms`));
    }, limitMs);
  });
  // Of both, so that an error of a check that comes too late is not an unhandled one.
  const work = (async () => check.run({ ...way, signal: ending.signal }))().catch(failure);
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** What a check did not expect. */
function failure(error: unknown): Result {
  const message = error instanceof Error ? error.message : String(error);
  if (error instanceof Absent) return result('skip', message, { remedy: LOOPBACK_REMEDY });
  const data = { code: (error as NodeJS.ErrnoException | undefined)?.code ?? null };
  const remedy = data.code === 'ENOBUFS' ? 'raise what memlock or optmem warns of' : undefined;
  return result('fail', message, { remedy, data });
}
