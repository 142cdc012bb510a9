/** Counters of ports, as a table for people, and as a document for programs. */
import type { PortCounters } from '../../ports/index.ts';
import { printable } from '../printable.ts';

/** Frames that got lost, by reason. */
export type Losses = Readonly<Record<string, number>>;

export interface PortRow {
  readonly port: string;
  readonly kind: string;
  readonly up: boolean;
  readonly counters: PortCounters;
  /** By whoever joins the ports: of frames that came out of this one, and of those for it. */
  readonly rxLost: Losses;
  readonly txLost: Losses;
  /** What only programs want to know. */
  readonly more?: Readonly<Record<string, unknown>>;
}

const HEAD = [
  ['', '', 'from the port', '', '', 'to the port', '', '', '', ''],
  ['port', 'link', 'frames', 'bytes', 'lost', 'frames', 'bytes', 'lost', 'lent', 'copied'],
] as const;
/** Columns that begin a group. */
const GROUP_STARTS = new Set([2, 5]);

/** The table, and below it what became of frames that were lost. */
export function counterLines(rows: readonly PortRow[]): string[] {
  const cells = [...HEAD, ...rows.map(cellsOf)];
  const widths = HEAD[1].map((_, column) =>
    Math.max(...cells.slice(1).map((line) => (line[column] as string).length)),
  );
  const lines = cells.map((line) =>
    line
      .map((cell, column) => {
        const width = widths[column] as number;
        const gap = GROUP_STARTS.has(column) ? '    ' : column === 0 ? '' : '  ';
        // A group's name begins where its first number ends, and may run over the next columns.
        return gap + (column < 2 ? cell.padEnd(width) : cell.padStart(width));
      })
      .join('')
      .trimEnd(),
  );
  lines[0] = groupLine(widths);
  return [...lines, ...rows.flatMap(lossLines)];
}

function groupLine(widths: readonly number[]): string {
  let at = 0;
  let line = '';
  for (const [column, width] of widths.entries()) {
    at += GROUP_STARTS.has(column) ? 4 : column === 0 ? 0 : 2;
    if (GROUP_STARTS.has(column)) line = line.padEnd(at) + HEAD[0][column];
    at += width;
  }
  return line;
}

function cellsOf({ port, up, counters, rxLost, txLost }: PortRow): string[] {
  const { rxFrames, rxBytes, txFrames, txBytes, txLentBytes, txKernelCopiedBytes } = counters;
  return [
    printable(port),
    up ? 'up' : 'down',
    `${rxFrames}`,
    bytesText(rxBytes),
    `${counters.rxDropped + counters.rxErrors + total(rxLost)}`,
    `${txFrames}`,
    bytesText(txBytes),
    `${counters.txDropped + counters.txErrors + total(txLost)}`,
    bytesText(txLentBytes),
    txLentBytes === 0 ? '-' : `${((100 * txKernelCopiedBytes) / txLentBytes).toFixed(0)} %`,
  ];
}

function lossLines({ port, counters, rxLost, txLost }: PortRow): string[] {
  const { rxDropped, rxErrors, txDropped, txErrors } = counters;
  return [
    ['from', { 'not taken': rxDropped, unreadable: rxErrors, ...rxLost }] as const,
    ['to', { 'not sent': txDropped, refused: txErrors, ...txLost }] as const,
  ].flatMap(([way, losses]) => {
    const reasons = Object.entries(losses).filter(([, frames]) => frames > 0);
    if (reasons.length === 0) return [];
    const text = reasons.map(([reason, frames]) => `${frames} ${words(reason)}`).join(', ');
    return [`lost ${way} ${printable(port)}: ${text}`];
  });
}

/** `bad offload` for badOffload. */
function words(reason: string): string {
  return reason.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);
}

function total(losses: Losses): number {
  return Object.values(losses).reduce((sum, frames) => sum + frames, 0);
}

/** Three digits at least, and a decimal prefix: as rates of links have. */
export function bytesText(bytes: number): string {
  if (bytes < 10_000) return `${bytes} B`;
  const prefixes = ['k', 'M', 'G', 'T', 'P', 'E'];
  let value = bytes / 1000;
  let i = 0;
  while (value >= 9999.5 && i < prefixes.length - 1) {
    value /= 1000;
    i += 1;
  }
  return `${value.toFixed(value < 99.5 ? 1 : 0)} ${prefixes[i]}B`;
}

/** The same as a document: one object for each port, by its name. */
export function counterDocument(rows: readonly PortRow[]): Record<string, unknown> {
  return Object.fromEntries(
    rows.map(({ port, kind, up, counters, rxLost, txLost, more }) => [
      port,
      { kind, up, ...counters, rxLost, txLost, ...more },
    ]),
  );
}
