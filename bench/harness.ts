/**
 * Runs cells against each other: warm-up, calibration, and slices in turn.
 *
 * A cell is a group of child processes that stay alive and connected from its first slice to its last. Cells to be
 * compared run one slice each per round, A B C, and the next round in the opposite order, so that neither drift of the
 * machine nor the place within a round favours one of them. Between its slices a cell is idle: it uses no CPU, and its
 * memory is not touched.
 *
 * The number of messages in a slice is found once per variant, so that a slice lasts about `sliceMs`: long against the
 * granularity of CPU accounting and the few IPC messages around it, short against the machine's moods.
 */
import type { Options, Slice } from './cells/cell.ts';
import type { SideReport } from './cells/worker.ts';
import { CellProcess, type ProcessSpec } from './processes.ts';

export interface CellSpec {
  name: string;
  /** In the order they are opened. */
  sides: readonly ProcessSpec[];
  /** The side that starts the traffic of a slice; the others are armed before it. */
  starter: string;
  options: Options;
}

export interface SliceResult {
  count: number;
  /** From the start of the side that sends until the last side had everything. */
  elapsedNs: number;
  /** Of all sides. */
  cpuUs: number;
  sides: Record<string, SideReport>;
}

export interface Timing {
  sliceMs: number;
  /** Discarded slices of each variant before the first that counts. */
  warmups: number;
  sliceTimeoutMs: number;
}

export const fullTiming: Timing = { sliceMs: 300, warmups: 2, sliceTimeoutMs: 60_000 };
export const quickTiming: Timing = { sliceMs: 60, warmups: 1, sliceTimeoutMs: 20_000 };

export class Cell {
  readonly name: string;
  readonly #starter: string;
  readonly #sides: { name: string; process: CellProcess }[] = [];

  static async start(spec: CellSpec): Promise<Cell> {
    const cell = new Cell(spec.name, spec.starter);
    try {
      let options = spec.options;
      for (const side of spec.sides) {
        const child = await CellProcess.start(side);
        cell.#sides.push({ name: side.side, process: child });
        options = { ...options, ...(await child.call<Options>({ method: 'open', params: options })) };
      }
      // From here on in the order of arming.
      cell.#sides.sort((a, b) => Number(a.name === spec.starter) - Number(b.name === spec.starter));
    } catch (error) {
      await cell.stop();
      throw error;
    }
    return cell;
  }

  private constructor(name: string, starter: string) {
    this.name = name;
    this.#starter = starter;
  }

  async slice(slice: Slice, timeoutMs: number): Promise<SliceResult> {
    for (const { process } of this.#sides) await process.call({ method: 'begin', params: slice });
    await Promise.all(this.#sides.map(({ process }) => process.call({ method: 'wait' }, timeoutMs)));
    const reports = await Promise.all(
      this.#sides.map(({ process }) => process.call<SideReport>({ method: 'end' })),
    );
    const sides = Object.fromEntries(this.#sides.map(({ name }, i) => [name, reports[i]!]));
    return {
      count: slice.count,
      elapsedNs: Math.max(...reports.map((report) => report.endNs)) - sides[this.#starter]!.startNs,
      cpuUs: reports.reduce((sum, report) => sum + report.cpuUs, 0),
      sides,
    };
  }

  /** Resident bytes of each side now. */
  async rss(): Promise<Record<string, number>> {
    const bytes = await Promise.all(
      this.#sides.map(({ process }) => process.call<number>({ method: 'rss' })),
    );
    return Object.fromEntries(this.#sides.map(({ name }, i) => [name, bytes[i]!]));
  }

  async stop(): Promise<void> {
    // The sender first: a receiver that goes first looks like a broken connection.
    for (const { process } of [...this.#sides].reverse()) await process.stop();
  }
}

export interface Contender {
  cell: Cell;
  variant: string;
}

export function withVariant(cells: readonly Cell[], variant: string): Contender[] {
  return cells.map((cell) => ({ cell, variant }));
}

export function withVariants(cell: Cell, variants: readonly string[]): Contender[] {
  return variants.map((variant) => ({ cell, variant }));
}

/** A cell of the module `cells/<name>.ts`; `sides` in the order they are opened. */
export function cellSpec(
  name: string,
  sides: readonly string[],
  starter: string,
  options: Options,
): CellSpec {
  const module = new URL(`./cells/${name}.js`, import.meta.url).href;
  return { name, sides: sides.map((side) => ({ module, side })), starter, options };
}

/** The same cell with all its sides started by a command, e.g. in a network namespace. */
export function withPrefix(spec: CellSpec, prefix: readonly string[]): CellSpec {
  return { ...spec, sides: spec.sides.map((side) => ({ ...side, prefix })) };
}

/**
 * Warms up and calibrates every contender, then runs `rounds` rounds of one slice each, in turn. Returns the slices of
 * each contender; slices at the same index are neighbours in time.
 */
export async function interleave(
  label: string,
  contenders: readonly Contender[],
  rounds: number,
  timing: Timing,
): Promise<SliceResult[][]> {
  const counts: number[] = [];
  for (const contender of contenders) counts.push(await calibrate(contender, timing));
  const results: SliceResult[][] = contenders.map(() => []);
  for (let round = -timing.warmups; round < rounds; round++) {
    const order = contenders.map((_, i) => i);
    if (round % 2 !== 0) order.reverse();
    for (const i of order) {
      const { cell, variant } = contenders[i]!;
      const result = await cell.slice({ count: counts[i]!, variant }, timing.sliceTimeoutMs);
      if (round >= 0) results[i]!.push(result);
    }
    progress(`${label}: round ${Math.max(0, round + 1)} of ${rounds}`);
  }
  return results;
}

/**
 * Messages in a slice of about `sliceMs`: doubles until half of that, by when the code is compiled, then scales. The
 * quicker of two slices counts: one stall, e.g. a retransmission timeout on a busy machine, would leave all slices so
 * short that what surrounds them is measured.
 */
async function calibrate({ cell, variant }: Contender, timing: Timing): Promise<number> {
  let count = 8;
  const shareOfSlice = async (): Promise<number> => {
    const { elapsedNs } = await cell.slice({ count, variant }, timing.sliceTimeoutMs);
    return elapsedNs / (timing.sliceMs * 1e6);
  };
  for (let attempt = 0; attempt < 30; attempt++) {
    let share = await shareOfSlice();
    if (share >= 0.5) share = Math.min(share, await shareOfSlice());
    if (share >= 0.5) return Math.max(1, Math.round(count / share));
    count *= 2;
  }
  throw new Error(`${cell.name}: ${count} messages take no time`);
}

/** Runs `body` with started cells and stops them afterwards, whatever happens. */
export async function withCells<T>(
  specs: readonly CellSpec[],
  body: (cells: Cell[]) => Promise<T>,
): Promise<T> {
  const cells: Cell[] = [];
  try {
    for (const spec of specs) cells.push(await Cell.start(spec));
    return await body(cells);
  } finally {
    for (const cell of cells) await cell.stop();
  }
}

let progressOnTerminal = '';

/** One line on standard error; on a terminal the line is rewritten while its part before the colon stays the same. */
export function progress(text: string): void {
  if (!process.stderr.isTTY) {
    process.stderr.write(`${text}\n`);
    return;
  }
  const part = text.split(':')[0]!;
  const start = part === progressOnTerminal ? '\r\x1b[K' : progressOnTerminal === '' ? '' : '\n';
  progressOnTerminal = part;
  process.stderr.write(`${start}${text}`);
}
