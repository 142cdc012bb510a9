/** A command of the package as a user starts it, in a process group of its own; what is left of them ends with the test. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { ROOT } from './sources.ts';

export interface Ended {
  readonly code: number | null;
  readonly out: string;
  readonly errors: string;
}

export interface RunningTool {
  readonly child: ChildProcess;
  /** Resolves with the match when either stream has printed what matches; rejects when the tool ends first. */
  printed(pattern: RegExp): Promise<RegExpExecArray>;
  readonly ended: Promise<Ended>;
}

const running = new Set<number>();
process.on('exit', () => {
  for (const pid of running) {
    try {
      process.kill(-pid, 'SIGKILL');
    } catch {
      // It has just ended.
    }
  }
});

/** Starts `file`, a path from the root of the package. */
export function startTool(file: string, args: readonly string[], env: NodeJS.ProcessEnv = {}): RunningTool {
  const child = spawn(process.execPath, [join(ROOT, file), ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, ...env },
    cwd: ROOT,
    detached: true,
  });
  running.add(child.pid as number);
  const streams = { out: '', errors: '' };
  const looks = new Set<() => void>();
  for (const [name, stream] of [
    ['out', child.stdout],
    ['errors', child.stderr],
  ] as const) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      streams[name] += text;
      for (const look of [...looks]) look();
    });
  }
  const ended = once(child, 'close').then(([code]) => {
    running.delete(child.pid as number);
    return { code: code as number | null, ...streams };
  });
  const printed = (pattern: RegExp): Promise<RegExpExecArray> =>
    new Promise((resolve, reject) => {
      const look = (): void => {
        const match = pattern.exec(streams.out) ?? pattern.exec(streams.errors);
        if (match === null) return;
        looks.delete(look);
        resolve(match);
      };
      looks.add(look);
      look();
      void ended.then(({ code, out, errors }) => {
        look();
        reject(new Error(`ended with ${code} before ${pattern}: ${out}${errors}`));
      });
    });
  return { child, printed, ended };
}
