/**
 * Finds data files in `test/vectors`, which the compiler does not copy beside the compiled tests.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const vectors = join(projectRoot(), 'test', 'vectors');

/** The contents of `test/vectors/<name>`. */
export function readVector(name: string): Uint8Array {
  return readFileSync(join(vectors, name));
}

/** Sorted names of the files in `test/vectors/<folder>`. */
export function listVectors(folder: string): string[] {
  return readdirSync(join(vectors, folder)).sort();
}

function projectRoot(): string {
  let folder = dirname(fileURLToPath(import.meta.url));
  while (!existsSync(join(folder, 'package.json'))) {
    const parent = dirname(folder);
    if (parent === folder) throw new Error('no package.json above the tests');
    folder = parent;
  }
  return folder;
}
