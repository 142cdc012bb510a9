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

/** A mirror that is slow is as none. */
const FETCH_MS = 180_000;

/** Rejects with the reason if it cannot be had. It takes seconds the first time, and then none. */
export async function debianPackages(
  set: 'dpdk' | 'kernel' | 'passt' | 'uml',
  suite?: string,
): Promise<DebianPackages> {
  const script = join(ROOT, 'scripts/debian-packages.mjs');
  const args = [script, set, ...(suite === undefined ? [] : [suite])];
  try {
    return JSON.parse((await run(process.execPath, args, { timeout: FETCH_MS })).stdout) as DebianPackages;
  } catch (error) {
    const { stderr = '', message, killed } = error as { stderr?: string; message: string; killed?: boolean };
    if (killed === true) throw new Error(`Debian packages for ${set}: not within ${FETCH_MS / 1000} s`);
    throw new Error(stderr.trim().split('\n').at(-1) || message);
  }
}
