/**
 * Runs a compiled module in a process of its own, with a deadline: for tests of exits, crashes and terminated workers.
 */
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';

export interface ChildResult {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

export function runChild(
  module: URL,
  args: readonly string[],
  options: { execArgv?: readonly string[]; deadlineMs?: number } = {},
): Promise<ChildResult> {
  return new Promise((resolve, reject) => {
    const argv = [...(options.execArgv ?? []), fileURLToPath(module), ...args];
    const child = spawn(process.execPath, argv, { stdio: ['ignore', 'pipe', 'pipe'] });
    let stdout = '';
    let stderr = '';
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      stdout += text;
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      stderr += text;
    });
    const timer = setTimeout(() => child.kill('SIGKILL'), options.deadlineMs ?? 30_000);
    child.on('error', reject);
    child.on('close', (code, signal) => {
      clearTimeout(timer);
      resolve({ code, signal, stdout, stderr });
    });
  });
}
