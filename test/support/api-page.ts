/**
 * What the hand-written pages of docs/ name, and what the doors of the package have: for the tests that compare the two.
 * Doors are read by line and pattern, which relies on the formatter.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join, normalize } from 'node:path';
import { ROOT, sources } from './sources.ts';

const files = sources(['src'], ['.ts']);
const src = files.map(({ text }) => text).join('\n');

export interface Part {
  /** The text between backquotes, as the page has it, and the names in it. */
  readonly spans: readonly string[];
  readonly named: ReadonlySet<string>;
}

function part(text: string): Part {
  const spans = [...text.matchAll(/`([^`\n]+)`/g)].map(([, span = '']) => span);
  const named = new Set(spans.flatMap((span) => [...span.split(/[^\w.]+/), ...span.split(/\W+/)]));
  return { spans, named };
}

export class ApiPage {
  readonly text: string;

  constructor(name: string) {
    this.text = readFileSync(join(ROOT, 'docs', name), 'utf8');
  }

  /** The parts below these titles of the first order, each up to the next one. */
  below(...titles: readonly string[]): Part {
    const texts = titles.map((title) => {
      const [, text] = this.text.split(new RegExp(`^# ${title}$`, 'm'));
      assert.ok(text !== undefined, `no part "${title}"`);
      return text.split(/^# /m)[0] as string;
    });
    return part(texts.join('\n'));
  }

  /** Blocks of JavaScript, and the lines of output that their comments tell. */
  get programs(): { readonly text: string; readonly prints: readonly string[] }[] {
    return [...this.text.matchAll(/^```js\n([\s\S]*?)^```/gm)].map(([, text = '']) => ({
      text,
      prints: [...text.matchAll(/console\.log\(.*\);? \/\/ ([^.\n]+)$/gm)].map(([, line = '']) => line),
    }));
  }

  /** Names in code spans, and codes of errors, that are nowhere in the sources; `foreign` spans are not looked at. */
  unknown(foreign: ReadonlySet<string>): string[] {
    const words = part(this.text)
      .spans.filter((text) => !foreign.has(text))
      .flatMap((text) => text.match(/[A-Za-z_]\w*/g) ?? [])
      .concat(this.text.match(/\b(?:E[A-Z_]{4,}|ZTX_[A-Z_]+|RDS_[A-Z_]+)\b/g) ?? []);
    assert.ok(words.length > 500, `only ${words.length} words`);
    return [...new Set(words)].filter((word) => !new RegExp(`\\b${word}\\b`).test(src));
  }
}

export function missing(wanted: readonly string[], { named }: Part): string[] {
  return [...new Set(wanted)].filter((name) => !named.has(name));
}

export interface Exported {
  readonly name: string;
  readonly kind: 'class' | 'interface' | 'type' | 'value';
  /** Fields and methods, also of objects within; of a union of texts, these. */
  readonly members: readonly string[];
}

/** What a door (`src/net/index.ts`) exports: values and types. */
export function exportsOf(door: string): Exported[] {
  const text = textOf(door);
  const names = [...text.matchAll(/^export (?:type )?\{([\s\S]*?)\}/gm)]
    .flatMap(([, list = '']) => list.split(','))
    .flatMap((name) => /^\s*(?:type )?(\w+)/.exec(name)?.[1] ?? []);
  const own = [...text.matchAll(/^export (?:async )?(?:const|function|class) (\w+)/gm)];
  return [...new Set([...names, ...own.map(([, name = '']) => name)])].map((name) => described(door, name));
}

/** Codes of errors that files below `folders` make by name. */
export function codesOf(...folders: readonly string[]): string[] {
  return files
    .filter(({ path }) => folders.some((folder) => path.startsWith(folder)))
    .flatMap(({ text }) => [...text.matchAll(/new ZerotxError\(\s*'(\w+)'/g)])
    .map(([, code = '']) => code);
}

function textOf(path: string): string {
  const text = files.find((file) => file.path === path)?.text;
  assert.ok(text !== undefined, `no ${path}`);
  return text;
}

function described(path: string, name: string): Exported {
  const text = textOf(path);
  const from = sourceOf(text, name);
  if (from !== null) {
    // A module that is not ours, such as node:net.
    if (!from.startsWith('.')) return { name, kind: 'value', members: [] };
    return described(normalize(join(path, '..', from)), name);
  }
  const plain = text.replace(/\/\*[\s\S]*?\*\/|(?<![:'"])\/\/[^\n]*/g, '');
  const body = new RegExp(`^export (class|interface) ${name}\\b[^\\n]*\\{\\n([\\s\\S]*?)^\\}`, 'm').exec(
    plain,
  );
  if (body !== null) {
    const kind = body[1] as 'class' | 'interface';
    return { name, kind, members: kind === 'class' ? classMembers(body[2]!) : fields(body[2]!) };
  }
  const alias = new RegExp(`^export type ${name}\\b[^=]*=([\\s\\S]*?);$`, 'm').exec(plain)?.[1];
  if (alias === undefined) {
    assert.match(
      plain,
      new RegExp(`^export (?:async )?(?:const|function\\*?) ${name}\\b`, 'm'),
      `${path}: ${name}`,
    );
    return { name, kind: 'value', members: [] };
  }
  const texts = [...alias.matchAll(/'([^']+)'/g)].map(([, one = '']) => one);
  return { name, kind: 'type', members: [...texts, ...fields(alias)] };
}

/** The module that a file has a name from; null: it is its own. */
function sourceOf(text: string, name: string): string | null {
  const lists = text.matchAll(/^(?:import|export)(?: type)?(?: \w+,)? \{([^}]*)\} from '([^']+)';/gm);
  for (const [, list = '', from = ''] of lists) {
    if (list.split(',').some((one) => /^\s*(?:type )?(\w+)/.exec(one)?.[1] === name)) return from;
  }
  return null;
}

function fields(body: string): string[] {
  const found = body.matchAll(/(?:^[ \t]*|[{;][ \t]*)(?:readonly )?(\w+)(?=\??[:(])/gm);
  return [...found].map(([, name = '']) => name);
}

/** What a program, or a class that derives from it, can see. */
function classMembers(body: string): string[] {
  const found = body.matchAll(
    /^ {2}(?:(?:override|readonly|static|async|get|set|protected) |\*)*(\w+)(?=[?!]?[:(;<]| =)/gm,
  );
  return [...found].map(([, name = '']) => name).filter((name) => name !== 'constructor');
}
