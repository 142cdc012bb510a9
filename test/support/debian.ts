/** Programs and kernels of Debian that are fetched when a test needs them: scripts/debian-packages.mjs says how. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { ROOT } from './sources.ts';

const run = promisify(execFile);

export interface DebianPackages {
  /** Laid out as below the root of a machine. */
  readonly folder: string;
  readonly versions: Readonly<Record<string, string>>;
}

/** Rejects with the reason if it cannot be had. It takes seconds the first time, and then none. */
export async function debianPackages(
  set: 'dpdk' | 'kernel' | 'passt' | 'uml',
  suite?: string,
): Promise<DebianPackages> {
  const script = join(ROOT, 'scripts/debian-packages.mjs');
  const args = [script, set, ...(suite === undefined ? [] : [suite])];
  try {
    return JSON.parse((await run(process.execPath, args)).stdout) as DebianPackages;
  } catch (error) {
    const { stderr = '', message } = error as { stderr?: string; message: string };
    throw new Error(stderr.trim().split('\n').at(-1) || message);
  }
}
