/**
 * Another network namespace, for tests that run in one of their own already (test/guest/namespace.ts): it has no name, and
 * goes with the process that holds it.
 */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

/** Runs one command after the other, words separated by blanks. */
export function run(...commands: readonly string[]): string {
  return commands
    .map((command) => {
      const [file, ...args] = command.split(' ') as [string, ...string[]];
      return execFileSync(file, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] });
    })
    .join('');
}

export class Netns {
  readonly #holder: ChildProcess;
  readonly #children: ChildProcess[] = [];

  private constructor(holder: ChildProcess) {
    this.#holder = holder;
  }

  static async make(): Promise<Netns> {
    const script = 'ip link set lo up && echo ready && exec cat';
    const holder = spawn('unshare', ['--net', 'sh', '-c', script], { stdio: ['pipe', 'pipe', 'inherit'] });
    await once(createInterface({ input: holder.stdout! }), 'line');
    return new Netns(holder);
  }

  /** What `ip link set ... netns` takes. */
  get pid(): number {
    return this.#holder.pid as number;
  }

  /** Runs commands in it. */
  run(...commands: readonly string[]): string {
    return run(...commands.map((command) => `nsenter -t ${this.pid} -n ${command}`));
  }

  /** Starts a compiled module in it; resolves with the first line that it says. */
  async start(module: URL, ...args: readonly string[]): Promise<string> {
    const command = ['-t', String(this.pid), '-n', process.execPath, fileURLToPath(module), ...args];
    const child = spawn('nsenter', command, { stdio: ['pipe', 'pipe', 'inherit'] });
    this.#children.push(child);
    const line = once(createInterface({ input: child.stdout! }), 'line').then(([text]) => text as string);
    const ended = once(child, 'close').then(([code]): never => {
      throw new Error(`${module.href} ended: ${code}`);
    });
    ended.catch(() => {}); // of end()
    return Promise.race([line, ended]);
  }

  async end(): Promise<void> {
    for (const child of [...this.#children, this.#holder]) {
      if (child.exitCode !== null) continue;
      const closed = once(child, 'close');
      child.stdin!.end();
      await closed;
    }
  }
}
