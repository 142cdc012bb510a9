/**
 * What RDS costs with several lanes and many peers, and how soon it is back.
 *
 *   lanes8VsLane1.throughput64K   eight sockets over eight lanes against eight sockets over one, between two processes
 *   reconnect.msFirstMessage      from the return of a peer that we dial to its first message, in the simulation, on virtual time
 *   peers1000.*                   what a peer costs that does nothing
 */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import {
  type CellSpec,
  cellSpec,
  interleave,
  progress,
  type SliceResult,
  withCells,
  withVariant,
} from '../harness.ts';
import { ratioWithin, total } from '../ratio.ts';
import { type Bound, medianInterval } from '../stats.ts';
import { type Group, measured, type Results, type SuiteOptions } from '../suite.ts';

const MESSAGE_BYTES = 64 << 10;
const DEPTH = 16;
const LANES = 8;
const PEERS = 1000;
const FIRST_PEERS = 200;
const IDLE_MS = 10_000;
const SETTLING_MS = 60_000;
const IDLE_ROUNDS = 5;
const SLICE_TIMEOUT_MS = 120_000;
const KIB = 1024;

const bounds = {
  'lanes8VsLane1.throughput64K': { op: '>=', limit: 0.9 },
  'reconnect.msFirstMessage': { op: '<=', limit: 1.2 * 1000 },
  'peers1000.rssPerPeerKiB': { op: '<=', limit: 64 },
  'peers1000.idleCpuMs': { op: '<=', limit: 50 },
} satisfies Record<string, Bound>;
const ratio = ratioWithin(bounds);

async function measureLanes(options: SuiteOptions): Promise<Results> {
  const key = 'lanes8VsLane1.throughput64K';
  const [eight, one] = await withCells([lanesCell(LANES), lanesCell(1)], (cells) =>
    interleave('lanes', withVariant(cells, 'copy'), options.pairs, options.timing),
  );
  const gigabytes = (slice: SliceResult): number => (slice.count * MESSAGE_BYTES) / slice.elapsedNs;
  const cpuUs = (slice: SliceResult): number => slice.cpuUs / slice.count;
  const lanesUp = total(eight!, 'receiver', 'lanes') / eight!.length;
  const cpu = ratio(key, [eight!, cpuUs], [one!, cpuUs], 'Us').value ?? 0;
  const details = { lanesUp, cpuRatio: cpu };
  return { [key]: ratio(key, [eight!, gigabytes], [one!, gigabytes], 'GBs', details, lanesUp === LANES) };
}

/** A program of the tests, as virtual time is theirs: one line of JSON with the milliseconds of each seed. */
async function measureReconnect(): Promise<Results> {
  const program = fileURLToPath(new URL('../../test/rds/children/reconnect-time.js', import.meta.url));
  const { stdout } = await promisify(execFile)(process.execPath, [program], { timeout: SLICE_TIMEOUT_MS });
  const { firstMessageMs, ceilingMs } = JSON.parse(stdout) as { firstMessageMs: number[]; ceilingMs: number };
  // The slowest of all seeds is what the bound is for; the interval is that of the median.
  const { low, value } = medianInterval(firstMessageMs);
  const slowest = Math.max(...firstMessageMs);
  const details = { ceilingMs, medianMs: value, seeds: firstMessageMs.length };
  const interval = { value: slowest, low, high: slowest };
  return {
    'reconnect.msFirstMessage': measured(interval, {
      bound: bounds['reconnect.msFirstMessage'],
      unit: 'ms',
      details,
    }),
  };
}

/**
 * Resident memory that the last 800 of a thousand idle peers add: the first 200 also grow what a busy process has once, V8's young generation (some
 * 30 MiB) and code. The whole growth is in the details. And CPU while nothing happens.
 */
async function measurePeers(): Promise<Results> {
  const options = { prefix: `127.${64 + (process.pid % 64)}`, peers: PEERS };
  return withCells([cellSpec('rds-peers', ['many', 'one'], 'one', options)], async ([cell]) => {
    const run = async (variant: string, count = 1): Promise<SliceResult> => {
      progress(`${PEERS} peers: ${variant}`);
      return cell!.slice({ count, variant }, SLICE_TIMEOUT_MS);
    };
    const rss = (slice: SliceResult): number => slice.sides.one!.counters.rssBytes! / KIB;
    const alone = rss(await run('rss'));
    await run('connect', FIRST_PEERS);
    const before = rss(await run('rss'));
    const { lanes = 0 } = (await run('connect', PEERS - FIRST_PEERS)).sides.one!.counters;
    const after = rss(await run('rss'));
    const settling = await run('idle', SETTLING_MS);
    const idleMs: number[] = [];
    for (let round = 0; round < IDLE_ROUNDS; round++) {
      idleMs.push((await run('idle', IDLE_MS)).sides.one!.cpuUs / 1e3);
    }
    const perPeer = (after - before) / (PEERS - FIRST_PEERS);
    const details = {
      lanes,
      settlingMs: settling.sides.one!.cpuUs / 1e3,
      wholeKiB: (after - alone) / PEERS,
    };
    return {
      'peers1000.rssPerPeerKiB': measured(
        { value: perPeer, low: perPeer, high: perPeer },
        { bound: bounds['peers1000.rssPerPeerKiB'], unit: 'KiB', details },
      ),
      'peers1000.idleCpuMs': measured(medianInterval(idleMs), {
        bound: bounds['peers1000.idleCpuMs'],
        unit: 'ms',
        details,
      }),
    };
  });
}

function lanesCell(lanes: number): CellSpec {
  // Addresses of their own for each cell: RDS has one fixed TCP port for each address.
  const prefix = `127.${200 + lanes}.${process.pid % 256}`;
  return cellSpec('rds-lanes', ['receiver', 'sender'], 'sender', {
    ...{ senderAddress: `${prefix}.1`, receiverAddress: `${prefix}.2` },
    ...{ lanes, messageBytes: MESSAGE_BYTES, depth: DEPTH },
  });
}

export const laneGroups: readonly Group[] = [
  { keys: ['lanes8VsLane1.throughput64K'], run: measureLanes },
  { keys: ['reconnect.msFirstMessage'], run: measureReconnect },
  { keys: ['peers1000.rssPerPeerKiB', 'peers1000.idleCpuMs'], run: measurePeers },
];
