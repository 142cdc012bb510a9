/**
 * A YAML file with positions: what is wrong in it is told as `file:line:column: what`, all of it at once.
 *
 * Keys that stand twice are found where sections are read (section.ts), which can say where the first one is.
 */
import { isAlias, isNode, LineCounter, type Node, parseDocument } from 'yaml';

export interface Problem {
  /** From 1 on. */
  readonly line: number;
  readonly column: number;
  readonly text: string;
}

/** Something with a place in the file: a node, or a key of one. */
export type Place = { readonly range?: readonly [number, number, number] | null } | null | undefined;

export class LabDocument {
  readonly #lines = new LineCounter();
  readonly #document: ReturnType<typeof parseDocument>;
  readonly #problems: Problem[] = [];
  readonly #warnings: Problem[] = [];

  constructor(text: string) {
    this.#document = parseDocument(text, {
      lineCounter: this.#lines,
      prettyErrors: false,
      uniqueKeys: false,
      stringKeys: true,
    });
    for (const { pos, code, message } of [...this.#document.errors, ...this.#document.warnings])
      this.#reportAt(
        pos[0],
        code === 'MULTIPLE_DOCS' ? 'a second document begins here: a lab is one' : message,
      );
  }

  get root(): Node | null {
    const { contents } = this.#document;
    return isNode(contents) ? contents : null;
  }

  /** By line and column. */
  get problems(): readonly Problem[] {
    return inOrder(this.#problems);
  }

  get warnings(): readonly Problem[] {
    return inOrder(this.#warnings);
  }

  /** The node that an alias stands for. */
  resolve(node: unknown): Node | null {
    if (isAlias(node)) return node.resolve(this.#document) ?? null;
    return isNode(node) ? node : null;
  }

  lineOf(place: Place): number {
    return this.#lines.linePos(place?.range?.[0] ?? 0).line;
  }

  report(place: Place, text: string): void {
    this.#reportAt(place?.range?.[0] ?? 0, text);
  }

  warn(place: Place, text: string): void {
    this.#warnings.push(this.#problem(place?.range?.[0] ?? 0, text));
  }

  #reportAt(offset: number, text: string): void {
    this.#problems.push(this.#problem(offset, text));
  }

  #problem(offset: number, text: string): Problem {
    const { line, col } = this.#lines.linePos(offset);
    // An empty file has no line.
    return { line: Math.max(line, 1), column: Math.max(col, 1), text };
  }
}

function inOrder(problems: readonly Problem[]): readonly Problem[] {
  return problems.toSorted((a, b) => a.line - b.line || a.column - b.column);
}
