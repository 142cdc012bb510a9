/**
 * Compiles the C programs beside this file when they are needed, into `build/bench/`.
 *
 * The file name carries a hash of the source, so a changed source is compiled anew and several processes at once do not
 * disturb each other (the result is moved into place when it is complete).
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { access, mkdir, readFile, rename } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** Compiled files run from `out/bench/wirepeer/`; the C sources stay in `bench/wirepeer/`. */
const packageFolder = join(dirname(fileURLToPath(import.meta.url)), '..', '..', '..');

/** Path of the program made from `bench/wirepeer/<name>.c`. Throws with the compiler's words when that fails. */
export async function compiled(name: string): Promise<string> {
  const source = join(packageFolder, 'bench', 'wirepeer', `${name}.c`);
  const hash = createHash('sha256')
    .update(await readFile(source))
    .digest('hex')
    .slice(0, 12);
  const folder = join(packageFolder, 'build', 'bench');
  const program = join(folder, `${name}-${hash}`);
  const exists = await access(program).then(
    () => true,
    () => false,
  );
  if (exists) return program;
  await mkdir(folder, { recursive: true });
  const partial = `${program}.${process.pid}`;
  await run(process.env.CC ?? 'gcc', [
    '-std=gnu11',
    '-O2',
    '-Wall',
    '-Wextra',
    '-Werror',
    '-o',
    partial,
    source,
  ]);
  await rename(partial, program);
  return program;
}
