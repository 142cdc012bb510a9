/**
 * Commands in a guest, through a serial port: initramfs.ts has the other end. A command goes there as `id seconds command`;
 * each line it prints comes back as `id line`, at last `id exit code`. Several run at the same time. Number 0 is not a
 * command: its `exit 0` says that the guest is ready for them.
 */

const COMMAND_SECONDS = 20;
/** The guest ends a command by itself; if it does not, it hangs. */
const GRACE_MS = 5000;

/** A command that runs in the guest. */
export class GuestJob {
  readonly command: string;
  /** All it printed; rejects if its exit code is not 0, or it ran out of time. */
  readonly done: Promise<string>;
  readonly #lines: string[] = [];
  readonly #waiting = new Set<() => void>();
  #result: { readonly code: number; readonly why: string } | null = null;
  #finish: () => void = () => {};

  constructor(command: string) {
    this.command = command;
    this.done = new Promise((resolve, reject) => {
      this.#finish = () => (this.#result?.code === 0 ? resolve(this.output) : reject(this.#error()));
    });
    // Whoever waits for a line hears of a failure there; nobody has to wait for both.
    this.done.catch(() => {});
  }

  get output(): string {
    return this.#lines.join('\n');
  }

  /** Resolves with the first line, printed or to come, that begins with `prefix`. */
  async line(prefix: string): Promise<string> {
    for (;;) {
      const found = this.#lines.find((line) => line.startsWith(prefix));
      if (found !== undefined) return found;
      if (this.#result !== null) throw this.#error();
      await new Promise<void>((resolve) => this.#waiting.add(resolve));
    }
  }

  /** For the console. */
  printed(line: string): void {
    this.#lines.push(line);
    this.#wake();
  }

  /** For the console. */
  ended(code: number, why: string): void {
    if (this.#result !== null) return;
    this.#result = { code, why };
    this.#finish();
    this.#wake();
  }

  #wake(): void {
    for (const resolve of this.#waiting) resolve();
    this.#waiting.clear();
  }

  #error(): Error {
    return new Error(`guest: ${this.command}: ${this.#result?.why}\n${this.output}`);
  }
}

export class GuestConsole {
  readonly #write: (line: string) => void;
  readonly #explain: () => string;
  readonly #jobs = new Map<number, { job: GuestJob; timer: NodeJS.Timeout }>();
  #nextId = 1;
  #gone: string | null = null;

  /** `explain` adds to an error what is known of the guest. */
  constructor(write: (line: string) => void, explain: () => string) {
    this.#write = write;
    this.#explain = explain;
  }

  /** Resolves when the guest, which is booting, takes commands. */
  async booted(limitMs: number): Promise<void> {
    await this.#expect(0, new GuestJob('boot'), limitMs).done;
  }

  /** Starts a shell command, which the guest ends after `seconds`. */
  start(command: string, seconds: number = COMMAND_SECONDS): GuestJob {
    const id = this.#nextId++;
    const job = this.#expect(id, new GuestJob(command), seconds * 1000 + GRACE_MS);
    if (this.#gone === null) this.#write(`${id} ${seconds} ${command}\n`);
    return job;
  }

  /** A line that came from the guest. */
  line(line: string): void {
    const [, id, text = ''] = /^(\d+) (.*)$/.exec(line) ?? [];
    const job = this.#jobs.get(Number(id))?.job;
    if (job === undefined) return;
    const code = /^exit (\d+)$/.exec(text)?.[1];
    if (code === undefined) job.printed(text);
    else {
      this.#jobs.delete(Number(id));
      job.ended(Number(code), `exit code ${code}`);
    }
  }

  /** All that runs will never end: the guest was reset. */
  abandon(why: string): void {
    const reason = `${why}\n${this.#explain()}`;
    for (const { job } of this.#jobs.values()) job.ended(-1, reason);
    this.#jobs.clear();
  }

  /** As abandon(), and whatever is started from now on fails, too. */
  close(why: string): void {
    this.#gone ??= why;
    this.abandon(why);
  }

  #expect(id: number, job: GuestJob, limitMs: number): GuestJob {
    if (this.#gone !== null) {
      job.ended(-1, this.#gone);
      return job;
    }
    const expired = (): void => job.ended(-1, `not within ${limitMs} ms\n${this.#explain()}`);
    const timer = setTimeout(expired, limitMs);
    this.#jobs.set(id, { job, timer });
    job.done.catch(() => {}).finally(() => clearTimeout(timer));
    return job;
  }
}
