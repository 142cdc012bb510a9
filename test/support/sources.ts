/**
 * The project's own files, for tests that check how they are written: names, lines, imports, and functions with their
 * length. The reading is by line and pattern; it relies on the formatter, which puts a function's closing brace at the
 * indentation of its first line.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';

function findRoot(): string {
  let folder = dirname(fileURLToPath(import.meta.url));
  while (!existsSync(join(folder, 'package.json'))) folder = dirname(folder);
  return folder;
}

/** Folder of package.json. */
export const ROOT: string = findRoot();

export interface Source {
  /** Path from the root, as `src/core/ubuf.ts`. */
  readonly path: string;
  readonly text: string;
  readonly lines: readonly string[];
}

/** All files below `folders` whose name ends in one of `endings`, in order of their paths. */
export function sources(folders: readonly string[], endings: readonly string[]): Source[] {
  return folders
    .filter((folder) => existsSync(join(ROOT, folder)))
    .flatMap((folder) =>
      readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' }).map((name) =>
        join(folder, name),
      ),
    )
    .filter((path) => endings.some((ending) => path.endsWith(ending)) && !path.startsWith('test/vectors'))
    .sort()
    .map((path) => {
      const text = readFileSync(join(ROOT, path), 'utf8');
      return { path, text, lines: text.replace(/\n$/, '').split('\n') };
    });
}

/** The file without comments and without the contents of strings, line by line. */
export function code({ text }: Source): string[] {
  const stripped = text.replace(
    /\/\*[\s\S]*?\*\/|\/\/[^\n]*|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"/g,
    (match) => (match.startsWith('/') ? match.replace(/[^\n]/g, ' ') : match[0]! + match[0]!),
  );
  return stripped.split('\n');
}

export interface Import {
  /** What stands in quotes. */
  readonly from: string;
  /** Path from the root, for relative ones. */
  readonly path: string | undefined;
  /** Erased by the compiler. */
  readonly typeOnly: boolean;
}

export function imports({ path, text }: Source): Import[] {
  const statements = text.matchAll(
    /^(?:import|export)\s+(type\s)?([^;'"]*?)\s*(?:from\s+)?'([^']+)';|\bimport\('([^']+)'\)/gm,
  );
  return [...statements]
    .filter(([whole, , names]) => whole.includes('from ') || names === '' || whole.startsWith('import('))
    .map(([, type, names = '', from = '', dynamic]) => {
      const target = dynamic ?? from;
      const named = /^\{([\s\S]*)\}$/.exec(names)?.[1];
      const all = named?.split(',').filter((name) => name.trim() !== '');
      return {
        from: target,
        path: target.startsWith('.') ? normalize(join(dirname(path), target)) : undefined,
        typeOnly: type !== undefined || all?.every((name) => /^\s*type\s/.test(name)) === true,
      };
    });
}

export interface FunctionLength {
  readonly name: string;
  readonly line: number;
  readonly length: number;
}

const NOT_FUNCTIONS = /^(?:if|for|while|switch|catch|do|else|try|return|throw|class|interface|await)\b/;

/** Functions and methods with a body of more than one line. */
export function functions(source: Source): FunctionLength[] {
  const lines = code(source);
  const found: FunctionLength[] = [];
  for (const [i, line] of lines.entries()) {
    const begin = line.trimStart();
    if (NOT_FUNCTIONS.test(begin)) continue;
    const name =
      /^(?:export )?(?:default )?(?:async )?function\*? ?(\w+)/.exec(begin)?.[1] ??
      /^(?:const|let|readonly|export const) (#?\w+)\b.*(?:=>|function) ?\{$/.exec(begin)?.[1] ??
      /^(?:(?:static|private|async|override|get|set) )*\*?(\[?#?[\w.]+\]?)(?:<[^(]*>)?\(.*$/.exec(begin)?.[1];
    if (name === undefined) continue;
    const indent = line.length - begin.length;
    const end = lines.findIndex((later, j) => j > i && closes(later, indent));
    if (end < 0 || !opensBody(lines, i, end, indent)) continue;
    found.push({ name, line: i + 1, length: end - i + 1 });
  }
  return found;
}

/** A line that is only the closing brace of something that began at `indent`. */
function closes(line: string, indent: number): boolean {
  return line.startsWith(`${' '.repeat(indent)}}`) && !/^\s*\}.*\{$/.test(line);
}

/** The signature ends in a brace, on its own line or, when it is broken, on the line that closes the parentheses. */
function opensBody(lines: readonly string[], first: number, end: number, indent: number): boolean {
  if (lines[first]!.endsWith('{')) return true;
  if (!lines[first]!.endsWith('(')) return false;
  for (let i = first + 1; i < end; i++) {
    if (lines[i]!.startsWith(`${' '.repeat(indent)})`)) return lines[i]!.endsWith('{');
  }
  return false;
}
