/**
 * Compiles the C programs beside this file when they are needed, into `build/bench/`.
 *
 * The file name carries a hash of the source and of the headers, so a changed source is compiled anew and several processes at once do not
 * disturb each other (the result is moved into place when it is complete).
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { access, mkdir, readdir, readFile, rename } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** Compiled files run from `out/bench/wirepeer/`; the C sources stay in `bench/wirepeer/`. */
const packageFolder = join(dirname(fileURLToPath(import.meta.url)), '..', '..', '..');

/** Path of the program made from `bench/wirepeer/<name>.c`. Throws with the compiler's words when that fails. */
export async function compiled(name: string): Promise<string> {
  const sources = join(packageFolder, 'bench', 'wirepeer');
  const source = join(sources, `${name}.c`);
  const sum = createHash('sha256').update(await readFile(source));
  for (const header of (await readdir(sources)).filter((file) => file.endsWith('.h')).sort())
    sum.update(await readFile(join(sources, header)));
  const hash = sum.digest('hex').slice(0, 12);
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
