/**
 * What the groups of the suite `vhost` share: rounds of anything in turn, processors, and cells of a device and a driver.
 */
import { readFileSync } from 'node:fs';
import { type CellSpec, cellSpec, progress } from '../harness.ts';
import type { Bound } from '../stats.ts';

export const KIB = 1024;
export const MIB: number = 1 << 20;

export const bounds: Readonly<Record<string, Bound>> = {
  'guestTcp.vsQemuTap': { op: '>=', limit: 1.2 },
  'guestTcp.vsPasst': { op: '>=', limit: 1.5 },
  'pps64.vsDpdkVhost': { op: '>=', limit: 0.25 },
  'bps1500.vsDpdkVhost': { op: '>=', limit: 0.35 },
  'zc.cpuVsCopy.62000.stream': { op: '<=', limit: 0.6 },
  'zc.cpuVsCopy.9000.vxlan': { op: '<=', limit: 0.95 },
  'zc.cpuVsCopy.1500.vxlan': { op: '<=', limit: 1.05 },
  'hol.throughputB': { op: '>=', limit: 0.8 },
  gcPer10MPackets: { op: '<=', limit: 5 },
  idleCpuMs: { op: '<=', limit: 20 },
};

/** Runs all `contenders` in each round, in turn, the next round in the opposite order; warm-up rounds are discarded. */
export async function rounds<T>(
  label: string,
  contenders: readonly (() => Promise<T>)[],
  count: number,
  warmups = 1,
): Promise<T[][]> {
  const results: T[][] = contenders.map(() => []);
  for (let round = -warmups; round < count; round++) {
    const order = contenders.map((_, i) => i);
    if (round % 2 !== 0) order.reverse();
    for (const i of order) {
      const result = await contenders[i]!();
      if (round >= 0) results[i]!.push(result);
    }
    progress(`${label}: round ${Math.max(0, round + 1)} of ${count}`);
  }
  return results;
}

/** Processors that this process may use: Cpus_allowed_list in proc(5). */
export function processors(): number[] {
  const status = readFileSync('/proc/self/status', 'utf8');
  const list = /^Cpus_allowed_list:\s*(\S+)$/m.exec(status)?.[1] ?? '0';
  return list.split(',').flatMap((range) => {
    const [first, last] = range.split('-').map(Number);
    return Array.from({ length: (last ?? first!) - first! + 1 }, (_, i) => first! + i);
  });
}

/** Two processors for two processes of which one polls at least; or why there are none. */
export function twoProcessors(): readonly [number, number] | string {
  const [first, second] = processors();
  return first === undefined || second === undefined
    ? 'needs two processors: a process that polls would starve the other'
    : [first, second];
}

/** Command to start a process with, so that it stays on one processor. */
export function pinned(processor: number): string[] {
  return ['taskset', '-c', `${processor}`];
}

/** The same cell with a command before some of its sides. */
export function withPrefixes(
  spec: CellSpec,
  prefixes: Readonly<Record<string, readonly string[]>>,
): CellSpec {
  return { ...spec, sides: spec.sides.map((one) => ({ ...one, prefix: prefixes[one.side] ?? [] })) };
}

/** A cell whose sides are in different modules, opened in this order. */
export function joinedSpec(
  name: string,
  sides: readonly (readonly [module: string, side: string])[],
  starter: string,
  options: CellSpec['options'],
): CellSpec {
  const specs = sides.map(([module, side]) => cellSpec(module, [side], starter, options));
  return { name, starter, options, sides: specs.flatMap((spec) => spec.sides) };
}

export function reasonOf(error: unknown): string {
  return error instanceof Error ? (error.message.split('\n')[0] ?? error.message) : String(error);
}
