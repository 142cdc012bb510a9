/**
 * What connections cost that do nothing, and what those leave behind that are closed.
 */
import { type CellSpec, cellSpec, progress, withCells } from '../harness.ts';
import { type Bound, median, medianInterval } from '../stats.ts';
import {
  type Details,
  type Group,
  measured,
  type Result,
  type Results,
  type SuiteOptions,
} from '../suite.ts';

const CONNECTIONS = 1000;
const IDLE_MS = 10_000;
const SETTLING_MS = 15_000;
const IDLE_ROUNDS = 3;
const CHURN_ROUNDS = 5;
const CHURN_CONNECTIONS = 10_000;
const SLICE_TIMEOUT_MS = 120_000;
const MIB = 1 << 20;
const zerocopy = { mode: 'force', thresholdBytes: 4096 };

const bounds = {
  idleCpuMs: { op: '<=', limit: 20 },
  'memory.rssGrowthMiB': { op: '<=', limit: 16 },
  'memory.pinnedBytes': { op: '<=', limit: 0 },
} satisfies Record<string, Bound>;

/**
 * Both transports wait at the same time: that disturbs nobody. V8 tidies its heap once or twice some seconds after the
 * last activity, for tens of milliseconds, whatever the sockets are. So the first seconds count only as a detail, and the
 * rest as a median.
 */
async function measureIdle(): Promise<Results> {
  const specs = [upkeepCell('idle', 'zerotx/net'), upkeepCell('idle', 'node:net')];
  return withCells(specs, async (cells) => {
    const ms: number[][] = cells.map(() => []);
    let lentCalls = 0;
    for (let round = 0; round <= IDLE_ROUNDS; round++) {
      const slice = { count: round === 0 ? SETTLING_MS : IDLE_MS, variant: 'idle' };
      const slices = await Promise.all(cells.map((cell) => cell.slice(slice, SLICE_TIMEOUT_MS)));
      for (const [i, { cpuUs }] of slices.entries()) ms[i]!.push(cpuUs / 1e3);
      lentCalls = slices[0]!.sides.idle!.counters.lentCalls!;
      progress(`idle connections: round ${round} of ${IDLE_ROUNDS}`);
    }
    const [settlingMs, ...ours] = ms[0]!;
    const [nodeSettlingMs, ...node] = ms[1]!;
    const details: Details = {
      ...{ connections: CONNECTIONS, lentCalls, settlingMs: settlingMs! },
      ...{ nodeMs: median(node), nodeSettlingMs: nodeSettlingMs! },
      ...zerocopy,
    };
    const idleCpuMs = measured(medianInterval(ours), { bound: bounds.idleCpuMs, unit: 'ms', details });
    return { idleCpuMs };
  });
}

/** As many connections before, which make what stays: code, pools, the size of the heap. Growth is what the next ones add. */
async function measureChurn(options: SuiteOptions): Promise<Results> {
  const connections = options.quick ? CHURN_CONNECTIONS / 10 : CHURN_CONNECTIONS;
  const ours = await churn('zerotx/net', connections);
  const node = await churn('node:net', connections);
  const details = { connections, ...zerocopy, lentCalls: ours.after.lentCalls! };
  return {
    'memory.rssGrowthMiB': single(bounds['memory.rssGrowthMiB'], ours.growthMiB, 'MiB', {
      ...details,
      rssMiB: ours.after.rssBytes! / MIB,
      nodeGrowthMiB: node.growthMiB,
    }),
    'memory.pinnedBytes': single(bounds['memory.pinnedBytes'], ours.after.pinnedBytes!, 'bytes', details),
  };
}

async function churn(
  transport: string,
  connections: number,
): Promise<{ growthMiB: number; after: Record<string, number> }> {
  return withCells([upkeepCell('churn', transport)], async ([cell]) => {
    const run = async (count: number): Promise<Record<string, number>> => {
      const slice = await cell!.slice({ count, variant: 'churn' }, SLICE_TIMEOUT_MS);
      return slice.sides.churn!.counters;
    };
    const before = await run(connections);
    let after = before;
    for (let round = 0; round < CHURN_ROUNDS; round++) {
      after = await run(connections / CHURN_ROUNDS);
      progress(`closed connections, ${transport}: round ${round + 1} of ${CHURN_ROUNDS}`);
    }
    return { growthMiB: (after.rssBytes! - before.rssBytes!) / MIB, after };
  });
}

function single(bound: Bound, value: number, unit: string, details: Details): Result {
  return measured({ value, low: value, high: value }, { bound, unit, details });
}

function upkeepCell(side: string, transport: string): CellSpec {
  return cellSpec('tcp-upkeep', [side], side, { transport, connections: CONNECTIONS, ...zerocopy });
}

export const upkeep: readonly Group[] = [
  { keys: ['idleCpuMs'], run: measureIdle },
  { keys: ['memory.rssGrowthMiB', 'memory.pinnedBytes'], run: measureChurn },
];
