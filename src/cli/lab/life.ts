/**
 * The life of `zerotx vhost` and `zerotx switch`: open what needs root, give root up, open the rest, run until a signal or a
 * failure, close.
 *
 *   prepare() ─▶ another user ─▶ open() ─▶ ... SIGUSR1, --stats: counters ... ─▶ SIGINT, SIGTERM ─▶ close() ─▶ exit 0
 *                                             └ nothing left that could work ─▶ close() ─▶ exit 1
 *
 * When nobody reads what it prints any more, it closes as at a signal, and exits with 141 as what SIGPIPE ends.
 */
import { forbidNewPrivileges, ZerotxError } from '../../ports/index.ts';
import type { Tool } from '../tool.ts';
import type { PortRow } from './counters.ts';
import type { LabEvent, Tell } from './events.ts';
import { settleIdentity, type User } from './identity.ts';
import { Voice } from './voice.ts';

/** What runs: pairs of a device and an uplink, in this thread or in workers, or a switch. */
export interface Running {
  /** Opens what needs rights that are given up afterwards. */
  prepare(): Promise<void>;
  open(): Promise<void>;
  rows(): Promise<readonly PortRow[]>;
  /** Looks for what nobody tells of: files that cannot be written any more. */
  check(): void;
  /** Whether it can go on when so many ports are lost. */
  survives(lost: number): boolean;
  close(): Promise<void>;
}

export interface LifeOptions {
  /** Who to go on as; null: as we are. */
  readonly user: User | null;
  readonly stats?: number;
  readonly json?: boolean;
}

const CHECK_MS = 1000;

/** Runs what `make` makes until it is to end; sets the exit code. Rejects with what went wrong, when all is closed. */
export async function live(
  tool: Tool,
  options: LifeOptions,
  make: (tell: Tell, fail: (error: Error) => void) => Running,
  opened: (voice: Voice) => void,
): Promise<void> {
  const voice = new Voice(tool, options.json === true);
  // Before workers are there, which then have it from us.
  forbidNewPrivileges();
  tool.endsOnBrokenPipe = true;
  const ending = new Ending(tool.signal);
  let lost = 0;
  const tell = (event: LabEvent): void => {
    voice.tell(event);
    if (event.event !== 'lost') return;
    lost += 1;
    if (!running.survives(lost)) ending.fail(new ZerotxError('ENODEV', 'nothing is left that could work'));
  };
  const running = make(tell, (error) => ending.fail(error));
  const show = (): void => {
    running.rows().then(
      (rows) => voice.counters(rows),
      // A worker that comes or goes has no counters.
      () => {},
    );
  };
  // From the beginning: to whoever is early the signal must not mean what it means to Node, a debugger.
  process.on('SIGUSR1', show);
  let rows: readonly PortRow[] = [];
  try {
    await running.prepare().catch((error) => Promise.reject(wantingRoot(error)));
    const text = settleIdentity(options.user);
    if (text !== null) voice.tell({ event: 'note', text });
    await running.open().catch((error) => Promise.reject(missingRoot(error, options.user)));
    opened(voice);
    await whileRunning(running, show, options.stats ?? 0, ending.over);
    voice.tell({ event: 'note', text: 'closing' });
    rows = await running.rows();
  } finally {
    await running.close();
    process.off('SIGUSR1', show);
  }
  voice.counters(rows);
  tool.exitCode = 0;
}

/** What refused a tap, and what would have helped. */
function wantingRoot(error: unknown): unknown {
  const isRefused = hasCode(error, 'EACCES') || hasCode(error, 'EPERM');
  if (!isRefused || process.geteuid?.() === 0) return error;
  return explained(error, 'run it with sudo; root is given up once taps are open');
}

/** What root could have done, and the user that we have become cannot. */
function missingRoot(error: unknown, user: User | null): unknown {
  if (user === null || !hasCode(error, 'EACCES')) return error;
  return explained(
    error,
    `root was given up before, and user ${user.uid} may not write there; --user says who`,
  );
}

function hasCode(error: unknown, code: string): error is NodeJS.ErrnoException {
  return error instanceof Error && (error as NodeJS.ErrnoException).code === code;
}

function explained({ code, message }: NodeJS.ErrnoException, why: string): ZerotxError {
  return new ZerotxError(code as string, `${message}; ${why}`);
}

/** Resolves at a signal, rejects at a failure. */
class Ending {
  readonly over: Promise<void>;
  #reject: (error: Error) => void = () => {};

  constructor(signal: AbortSignal) {
    this.over = new Promise((resolve, reject) => {
      this.#reject = reject;
      if (signal.aborted) resolve();
      signal.addEventListener('abort', () => resolve(), { once: true });
    });
    // It may come before anybody waits for it.
    this.over.catch(() => {});
  }

  fail(error: Error): void {
    this.#reject(error);
  }
}

async function whileRunning(
  running: Running,
  show: () => void,
  statsSeconds: number,
  over: Promise<void>,
): Promise<void> {
  // It also keeps the process alive when no descriptor does.
  const checks = setInterval(() => running.check(), CHECK_MS);
  const shows = statsSeconds > 0 ? setInterval(show, statsSeconds * 1000) : null;
  try {
    await over;
  } finally {
    clearInterval(checks);
    if (shows !== null) clearInterval(shows);
  }
}
