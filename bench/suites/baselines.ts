/**
 * The baselines by themselves, as absolute numbers of this machine: to see that they are as fast as they should be
 * before anything is compared with them.
 */
import { netFramed64, netStream1M, zmq1M, zmq64 } from '../cells/baselines.ts';
import { type CellSpec, interleave, type SliceResult, withCells } from '../harness.ts';
import { medianInterval } from '../stats.ts';
import { measured, type Results, type Suite, type SuiteOptions } from '../suite.ts';

interface Baseline {
  spec: CellSpec;
  unit: string;
  rate: (slice: SliceResult) => number;
}

const gigabytesPerSecond = (slice: SliceResult): number => (slice.count * 2 ** 20) / slice.elapsedNs;
const millionsPerSecond = (slice: SliceResult): number => (slice.count * 1e3) / slice.elapsedNs;

const baselines: Record<string, Baseline> = {
  'netStream1M.throughput': { spec: netStream1M, unit: 'GB/s', rate: gigabytesPerSecond },
  'zmq1M.throughput': { spec: zmq1M, unit: 'GB/s', rate: gigabytesPerSecond },
  'netFramed64.rate': { spec: netFramed64, unit: 'M messages/s', rate: millionsPerSecond },
  'zmq64.rate': { spec: zmq64, unit: 'M messages/s', rate: millionsPerSecond },
};

async function run(options: SuiteOptions): Promise<Results> {
  const wanted = Object.entries(baselines).filter(([key]) => options.wants(key));
  return withCells(
    wanted.map(([, { spec }]) => spec),
    async (cells) => {
      const contenders = cells.map((cell) => ({ cell, variant: '' }));
      const slices = await interleave('baselines', contenders, options.pairs, options.timing);
      return Object.fromEntries(
        wanted.map(([key, { unit, rate }], i) => {
          const cpuUsPerMessage = medianInterval(slices[i]!.map((slice) => slice.cpuUs / slice.count)).value;
          return [
            key,
            measured(medianInterval(slices[i]!.map(rate)), { unit, details: { cpuUsPerMessage } }),
          ];
        }),
      );
    },
  );
}

export const suite: Suite = {
  description: 'node:net and zeromq alone, absolute',
  keys: Object.keys(baselines),
  run,
};
