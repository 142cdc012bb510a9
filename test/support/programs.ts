/** Programs that show their statistics, started with a runtime folder of their own, and told to end. */
import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { fileURLToPath } from 'node:url';

/** Takes the place of $XDG_RUNTIME_DIR; of mode 0700, as mkdtemp() makes it. */
export function runtimeFolder(): { path: string; remove(): void } {
  const path = mkdtempSync(join(tmpdir(), 'ztx-run-'));
  return { path, remove: () => rmSync(path, { recursive: true, force: true }) };
}

export interface Running {
  readonly child: ChildProcessByStdio<Writable, Readable, Readable>;
  readonly pid: number;
  /** What it printed after `ready`. */
  readonly words: readonly string[];
  readonly errors: () => string;
  /** Ends its input and resolves with its exit code. */
  end(): Promise<number | null>;
}

/** Starts a compiled module and waits until it prints a line that begins with `ready`. */
export async function startProgram(
  module: URL,
  args: readonly string[],
  env: Readonly<Record<string, string>>,
  wrap: readonly string[] = [],
): Promise<Running> {
  const [command = process.execPath, ...rest] = [...wrap, process.execPath, fileURLToPath(module), ...args];
  const child = spawn(command, rest, { stdio: ['pipe', 'pipe', 'pipe'], env: { ...process.env, ...env } });
  const closed = once(child, 'close');
  let output = '';
  let errors = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    errors += text;
  });
  child.stdout.setEncoding('utf8');
  await new Promise<void>((resolve, reject) => {
    child.stdout.on('data', (text: string) => {
      output += text;
      if (/^ready.*\n/.test(output)) resolve();
    });
    child.once('close', () => reject(new Error(`it ended before it was ready: ${output}${errors}`)));
  });
  return {
    child,
    pid: child.pid as number,
    words: (output.split('\n')[0] as string).split(' ').slice(1),
    errors: () => errors,
    end: async () => {
      child.stdin.end();
      const [code] = await closed;
      return code as number | null;
    },
  };
}
