/**
 * How a tool that runs reaches whoever started it: for people, what to do is on standard output, and what happens on standard error;
 * for programs both are documents on standard output, a line each.
 */
import { printable, printableJsonLine } from '../printable.ts';
import type { Tool } from '../tool.ts';
import { counterDocument, counterLines, type PortRow } from './counters.ts';
import { eventText, type Tell } from './events.ts';

export interface Document {
  readonly event: string;
  readonly [key: string]: unknown;
}

export class Voice {
  readonly #tool: Tool;
  readonly #json: boolean;

  constructor(tool: Tool, json: boolean) {
    this.#tool = tool;
    this.#json = json;
  }

  readonly tell: Tell = (event) => {
    if (this.#json) this.document(event);
    else this.#tool.error(eventText(event));
  };

  /** Lines for people, on standard output. */
  lines(lines: readonly string[]): void {
    for (const line of lines) this.#tool.line(printable(line));
  }

  /** A line for programs. */
  document(document: Document): void {
    this.#tool.line(printableJsonLine({ time: new Date().toISOString(), ...document }));
  }

  counters(rows: readonly PortRow[]): void {
    if (!this.#json) {
      for (const line of counterLines(rows)) this.#tool.error(line);
      return;
    }
    // Of all threads.
    const { user: cpuUserUs, system: cpuSystemUs } = process.cpuUsage();
    this.document({ event: 'counters', cpuUserUs, cpuSystemUs, ports: counterDocument(rows) });
  }
}
