/**
 * A mapping of a lab file on its way to options: each key is taken once, by what it is; what is left at the end is unknown, and
 * said so with the key that was perhaps meant.
 *
 * Nothing is thrown: what is wrong is reported to the document, and is undefined here.
 */
import { isMap, isScalar, isSeq, type Node, type Pair, type YAMLMap } from 'yaml';
import type { LabDocument, Place } from './document.ts';
import type { Quantity } from './quantities.ts';

interface Entry {
  readonly key: Node | null;
  readonly value: Node | null;
}

export class Section {
  readonly document: LabDocument;
  /** Where it is. */
  readonly place: Place;
  /** As messages call it: `ports.vm1`; empty: the whole file. */
  readonly path: string;
  readonly #entries = new Map<string, Entry>();
  readonly #known = new Set<string>();

  constructor(document: LabDocument, map: YAMLMap, place: Place, path: string) {
    this.document = document;
    this.place = place;
    this.path = path;
    for (const pair of map.items as Pair[]) this.#add(pair);
  }

  /** The section that `node` is; undefined and reported when it is none. */
  static of(
    document: LabDocument,
    node: Node | null,
    place: Place,
    path: string,
    hint = 'it needs keys with values',
  ): Section | undefined {
    const map = document.resolve(node);
    if (isMap(map)) return new Section(document, map, place, path);
    const what = path === '' ? 'the file' : path;
    document.report(map ?? place, `${what} is ${shown(map)}: ${hint}`);
    return undefined;
  }

  /** Keys that are there, in the order of the file. */
  get keys(): readonly string[] {
    return [...this.#entries.keys()];
  }

  has(key: string): boolean {
    this.#known.add(key);
    return this.#entries.has(key);
  }

  /** Where the key is; the section, if it is not. */
  placeOf(key: string): Place {
    return this.#entries.get(key)?.key ?? this.place;
  }

  /** Where its value is. */
  valuePlace(key: string): Place {
    return this.#entries.get(key)?.value ?? this.placeOf(key);
  }

  report(key: string, problem: string): void {
    this.document.report(this.valuePlace(key), `${this.#name(key)}: ${problem}`);
  }

  take<T>(key: string, quantity: Quantity<T>): T | undefined {
    const entry = this.#take(key);
    return entry === undefined ? undefined : this.#parse(key, entry.value, entry.key, quantity);
  }

  need<T>(key: string, quantity: Quantity<T>): T | undefined {
    this.#known.add(key);
    if (this.#entries.has(key)) return this.take(key, quantity);
    this.document.report(this.place, `${this.path} needs ${key}: ${quantity.expected}`);
    return undefined;
  }

  /** A list of values, or one value instead of a list of one; undefined when one of them is wrong. */
  list<T>(key: string, quantity: Quantity<T>): readonly T[] | undefined {
    const entry = this.#take(key);
    if (entry === undefined) return undefined;
    const node = this.document.resolve(entry.value);
    const nodes = isSeq(node) ? (node.items as Node[]) : [entry.value];
    const values = nodes.map((one) => this.#parse(key, one, entry.key, quantity));
    const known = values.filter((value) => value !== undefined);
    return known.length === values.length ? known : undefined;
  }

  /** Whether the value of the key is a section. */
  hasSection(key: string): boolean {
    return isMap(this.document.resolve(this.#entries.get(key)?.value));
  }

  /** `hint`: what would be right when it is none. */
  section(key: string, hint?: string): Section | undefined {
    const entry = this.#take(key);
    if (entry === undefined) return undefined;
    return Section.of(this.document, entry.value, entry.key, this.#name(key), hint);
  }

  /** Sections behind all keys, whatever these are. */
  *sections(hint: string): Generator<[string, Section]> {
    for (const key of this.#entries.keys()) {
      const section = this.section(key, hint);
      if (section !== undefined) yield [key, section];
    }
  }

  /** Reports keys that nobody has asked for. */
  end(): void {
    for (const [key, entry] of this.#entries) {
      if (this.#known.has(key)) continue;
      const near = nearest(key, this.#known);
      const meant =
        near === undefined ? `there are ${[...this.#known].sort().join(', ')}` : `did you mean ${near}?`;
      const where = this.path === '' ? 'the file' : this.path;
      this.document.report(entry.key, `${where} has no ${JSON.stringify(key)}: ${meant}`);
    }
  }

  #add({ key, value }: Pair): void {
    const node = this.document.resolve(key);
    const name = isScalar(node) ? String(node.value ?? '') : '';
    if (name === '') {
      this.document.report(node ?? this.place, 'a key is a word');
      return;
    }
    const before = this.#entries.get(name);
    if (before !== undefined) {
      const line = this.document.lineOf(before.key);
      this.document.report(node, `${this.#name(name)} is there already, in line ${line}`);
      return;
    }
    this.#entries.set(name, { key: node, value: value as Node | null });
  }

  #take(key: string): Entry | undefined {
    this.#known.add(key);
    return this.#entries.get(key);
  }

  #parse<T>(key: string, raw: Node | null, place: Place, quantity: Quantity<T>): T | undefined {
    const node = this.document.resolve(raw);
    const value = isScalar(node) ? quantity.parse(node.value, node.source ?? '') : undefined;
    if (value !== undefined) return value;
    this.document.report(
      raw ?? place,
      `${this.#name(key)} is ${shown(node)}: it must be ${quantity.expected}`,
    );
    return undefined;
  }

  #name(key: string): string {
    return this.path === '' ? key : `${this.path}.${key}`;
  }
}

function shown(node: Node | null): string {
  if (isScalar(node)) return node.value === null ? 'empty' : (node.source ?? String(node.value));
  return isSeq(node) ? 'a list' : isMap(node) ? 'a section' : 'empty';
}

/** What `word` is a slip of: another case, or a letter or two that are wrong. */
function nearest(word: string, among: ReadonlySet<string>): string | undefined {
  const plain = (text: string): string => text.toLowerCase().replace(/[^a-z0-9]/g, '');
  let best: string | undefined;
  let bestDistance = Math.max(1, Math.floor(word.length / 3)) + 1;
  for (const one of among) {
    const distance = editDistance(plain(word), plain(one));
    if (distance >= bestDistance) continue;
    best = one;
    bestDistance = distance;
  }
  return best;
}

/** Letters to insert, leave out or replace, and neighbours that changed places (optimal string alignment). */
function editDistance(a: string, b: string): number {
  // The three last rows of the table of distances between the beginnings of both.
  let before: number[] = [];
  let above = Array.from({ length: b.length + 1 }, (_, i) => i);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const replaced = (above[j - 1] as number) + (a[i - 1] === b[j - 1] ? 0 : 1);
      let least = Math.min(replaced, (above[j] as number) + 1, (row[j - 1] as number) + 1);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1])
        least = Math.min(least, (before[j - 2] as number) + 1);
      row[j] = least;
    }
    before = above;
    above = row;
  }
  return above[b.length] as number;
}
