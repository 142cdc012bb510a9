/**
 * The guest's programs that are written here: compiled when they are needed, without libraries, so that they run in a
 * guest and on this machine alike. Each file says what it does. And the content of tcp-blast's streams, for a peer that is
 * not tcp-blast.
 */
import { execFile } from 'node:child_process';
import { createHash, randomUUID } from 'node:crypto';
import { access, mkdir, readdir, readFile, rename } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { promisify } from 'node:util';
import { ROOT } from '../support/sources.ts';

const run = promisify(execFile);
const cacheFolder = join(ROOT, 'node_modules/.cache/zerotx-guest');
const sourceFolder = join(ROOT, 'test/guest/programs');

export interface GuestProgram {
  readonly name: string;
  readonly path: string;
}

/** All of them, or those of these names. */
export async function guestPrograms(...names: readonly string[]): Promise<GuestProgram[]> {
  const files = (await readdir(sourceFolder)).sort();
  const headers = await Promise.all(
    files.filter((file) => file.endsWith('.h')).map((file) => readFile(join(sourceFolder, file))),
  );
  const sources = files.filter(
    (file) => file.endsWith('.c') && (names.length === 0 || names.includes(basename(file, '.c'))),
  );
  return Promise.all(sources.map((file) => compiled(basename(file, '.c'), headers)));
}

/** The path of one of them. */
export async function guestProgram(name: string): Promise<string> {
  const [program] = await guestPrograms(name);
  if (program === undefined) throw new Error(`no program ${name}`);
  return program.path;
}

/** By a passing name first, as it may be wanted several times at once. */
async function compiled(name: string, headers: readonly Buffer[]): Promise<GuestProgram> {
  const source = join(sourceFolder, `${name}.c`);
  const hash = createHash('sha256').update(await readFile(source));
  for (const header of headers) hash.update(header);
  const path = join(cacheFolder, `${name}-${hash.digest('hex').slice(0, 12)}`);
  const exists = await access(path).then(
    () => true,
    () => false,
  );
  if (exists) return { name, path };
  await mkdir(cacheFolder, { recursive: true });
  const partial = `${path}.${randomUUID()}`;
  await run('gcc', ['-O2', '-Wall', '-Wextra', '-Werror', '-static', source, '-o', partial]);
  await rename(partial, path);
  return { name, path };
}

/** What the programs print as `name=number` words. */
export function figures(line: string): Record<string, string> {
  return Object.fromEntries([...line.matchAll(/(\w+)=(\S+)/g)].map(([, name, value]) => [name, value]));
}

const PATTERN_PERIOD = 1_048_583;

/** What tcp-blast sends, from its beginning. */
export function blastPattern(length: number): Buffer {
  const bytes = Buffer.allocUnsafe(length);
  const period = Math.min(length, PATTERN_PERIOD);
  for (let i = 0, x = 1; i < period; i++) {
    x = (Math.imul(x, 1_664_525) + 1_013_904_223) >>> 0;
    bytes[i] = x >>> 24;
  }
  for (let at = period; at < length; at += period) bytes.copyWithin(at, 0, Math.min(period, length - at));
  return bytes;
}
