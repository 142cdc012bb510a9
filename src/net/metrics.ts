/**
 * stats() for Prometheus, by way of the program's own prom-client:
 *
 *   import * as client from 'prom-client';
 *   import { collectMetrics } from 'zerotx/net';
 *   collectMetrics(client);            // then serve client.register.metrics() as ever
 *
 * Nothing is counted for it: values are read when they are scraped, and are those of the thread that called collectMetrics().
 * prom-client is not imported here, so that a program without it needs none: its module is described below as far as it
 * is used.
 */
import { checkObject, checkString } from '../core/arguments.ts';
import { LATENCY_BOUNDS_US } from '../core/histogram.ts';
import { COPY_CAUSES } from './counters.ts';
import { type NetStats, stats } from './stats.ts';

/** A registry of prom-client. */
export interface MetricsRegister {
  readonly contentType: string;
}

interface MetricSettings {
  readonly name: string;
  readonly help: string;
  readonly registers: never[];
}

interface ValueSettings extends MetricSettings {
  readonly labelNames: string[];
  collect(): void;
}

/** A Counter or a Gauge. */
interface ValueMetric {
  reset(): void;
  inc(labels: Record<string, string>, value: number): void;
}

/** prom-client 15, as a module. */
export interface PromClient {
  readonly register: MetricsRegister;
  readonly Counter: new (settings: ValueSettings) => ValueMetric;
  readonly Gauge: new (settings: ValueSettings) => ValueMetric;
  readonly Histogram: new (settings: MetricSettings) => object;
}

export interface MetricsOptions {
  /** `client.register` if left out. */
  readonly register?: MetricsRegister;
  /** Of all names: `zerotx_` if left out. */
  readonly prefix?: string;
}

interface Value {
  readonly name: string;
  readonly help: string;
  /** One value, or one for each value of `label`. */
  readonly label?: string;
  readonly of: (now: NetStats) => number | Readonly<Record<string, number>>;
}

const counters: readonly Value[] = [
  { name: 'closed_sockets_total', help: 'Sockets that are gone.', of: (now) => now.closedSockets },
  {
    name: 'lent_calls_total',
    help: 'Calls whose memory the kernel took as it was.',
    of: (now) => now.zerocopy.lentCalls,
  },
  { name: 'lent_bytes_total', help: 'Bytes of these calls.', of: (now) => now.zerocopy.lentBytes },
  {
    name: 'copied_bytes_total',
    help: 'Bytes sent by ordinary calls, which copy, by cause.',
    label: 'cause',
    of: (now) => Object.fromEntries(COPY_CAUSES.map((cause) => [cause, now.zerocopy.copied[cause]])),
  },
  {
    name: 'kernel_copied_calls_total',
    help: 'Lent calls that the kernel copied after all.',
    of: (now) => now.zerocopy.kernelCopiedCalls,
  },
  {
    name: 'kernel_copied_bytes_total',
    help: 'Bytes of these calls.',
    of: (now) => now.zerocopy.kernelCopiedBytes,
  },
  {
    name: 'refused_calls_total',
    help: 'Lent calls that the kernel refused, and that were made again as ordinary ones.',
    label: 'error',
    of: ({ zerocopy: { refusedEnobufs, refusedOther } }) => ({
      ENOBUFS: refusedEnobufs,
      other: refusedOther,
    }),
  },
  {
    name: 'unexpected_completions_total',
    help: 'Completions that no call waited for.',
    of: (now) => now.zerocopy.unexpectedCompletions,
  },
  {
    name: 'pool_requests_total',
    help: 'Requests to pools: served from memory there was (hit) or newly mapped (miss), or not at once (refused).',
    label: 'result',
    of: ({ pools: { hits, misses, refused } }) => ({ hit: hits, miss: misses, refused }),
  },
  {
    name: 'pool_leaked_total',
    help: 'Leases that were collected without release().',
    of: (now) => now.pools.leaked,
  },
  {
    name: 'pool_mutated_total',
    help: 'Sends whose bytes changed meanwhile, as far as pools in debug mode see.',
    of: (now) => now.pools.mutated,
  },
];

const gauges: readonly Value[] = [
  { name: 'sockets', help: 'Sockets with a descriptor.', of: (now) => now.sockets },
  {
    name: 'lingering_sockets',
    help: 'Closed sockets whose lent memory the kernel still reads.',
    of: (now) => now.lingering,
  },
  {
    name: 'quarantined_sockets',
    help: 'Closed sockets that did not let go at their deadline.',
    of: (now) => now.quarantinedSockets,
  },
  {
    name: 'quarantined_bytes',
    help: 'Memory of these sockets.',
    of: (now) => now.quarantinedBytes,
  },
  { name: 'pinned_bytes', help: 'Bytes that the kernel has now.', of: (now) => now.pinnedBytes },
  {
    name: 'pinned_bytes_max',
    help: 'The most bytes that the kernel had at once.',
    of: (now) => now.pinnedBytesMax,
  },
  {
    name: 'memlock_limit_pages',
    help: 'Pages that may be lent by the process; -1: no limit.',
    of: (now) => now.memlockLimitPages,
  },
  {
    name: 'memlock_used_pages',
    help: 'Pages charged against that limit.',
    of: (now) => now.memlockUsedPages,
  },
  { name: 'pools', help: 'Pools.', of: (now) => now.pools.pools },
  { name: 'pool_mapped_bytes', help: 'Memory that pools have mapped.', of: (now) => now.pools.mappedBytes },
  { name: 'pool_used_bytes', help: 'Memory of leases.', of: (now) => now.pools.usedBytes },
  { name: 'pool_leases', help: 'Leases whose memory is not back yet.', of: (now) => now.pools.leases },
  { name: 'pool_lent_leases', help: 'Leases with sends in flight.', of: (now) => now.pools.lent },
  { name: 'pool_waiting', help: 'Requests that wait for memory.', of: (now) => now.pools.waiting },
];

/**
 * Registers the metrics, once for each registry and prefix: a second time throws what prom-client throws for a name that is
 * taken. Throws ERR_INVALID_ARG_TYPE if `client` is not the module.
 */
export function collectMetrics(client: PromClient, options: MetricsOptions = {}): void {
  checkObject('client', client);
  checkObject('options', options);
  const { register = client.register, prefix = 'zerotx_' } = options;
  checkString('options.prefix', prefix);
  const now = onceAScrape();
  const registers = [register] as never[];
  for (const [Metric, values] of [
    [client.Counter, counters],
    [client.Gauge, gauges],
  ] as const) {
    for (const { name, help, label, of } of values) {
      const metric = new Metric({
        name: prefix + name,
        help,
        registers,
        labelNames: label === undefined ? [] : [label],
        collect: () => {
          const value = of(now());
          metric.reset();
          if (typeof value === 'number') metric.inc({}, value);
          else for (const [key, part] of Object.entries(value)) metric.inc({ [label as string]: key }, part);
        },
      });
    }
  }
  makeLatency(client.Histogram, { name: `${prefix}release_seconds`, help: LATENCY_HELP, registers }, now);
}

const LATENCY_HELP = 'From a lent call to the moment at which the kernel let go of its memory.';

/** All metrics of a scrape show one moment, and the sums are made once: prom-client asks for all of them in one turn. */
function onceAScrape(): () => NetStats {
  let now: NetStats | undefined;
  return () => {
    if (now === undefined) {
      now = stats();
      queueMicrotask(() => {
        now = undefined;
      });
    }
    return now;
  };
}

/**
 * A histogram cannot be given counts, only observations: so this one has its own idea of what it holds. Prometheus counts
 * values up to a bound and LatencyHistogram those below it, which is the same but for values on a bound.
 */
function makeLatency(
  Histogram: PromClient['Histogram'],
  settings: MetricSettings,
  now: () => NetStats,
): void {
  const { name, help } = settings;
  const get = async (): Promise<object> => ({
    name,
    help,
    type: 'histogram',
    aggregator: 'sum',
    values: latencyValues(name, now()),
  });
  class ReleaseLatency extends Histogram {
    get(): Promise<object> {
      return get();
    }

    getForPromString(): Promise<object> {
      return get();
    }
  }
  new ReleaseLatency(settings);
}

interface HistogramValue {
  readonly metricName: string;
  readonly labels: Readonly<Record<string, number | string>>;
  readonly value: number;
}

function latencyValues(name: string, { zerocopy: { latency } }: NetStats): HistogramValue[] {
  const counted = new Map(latency.buckets.map(({ belowUs, count }) => [belowUs, count]));
  const values: HistogramValue[] = [];
  let below = 0;
  for (const boundUs of LATENCY_BOUNDS_US) {
    below += counted.get(boundUs) ?? 0;
    const le = Number.isFinite(boundUs) ? boundUs / 1e6 : '+Inf';
    values.push({ metricName: `${name}_bucket`, labels: { le }, value: below });
  }
  values.push({ metricName: `${name}_sum`, labels: {}, value: latency.sumUs / 1e6 });
  values.push({ metricName: `${name}_count`, labels: {}, value: latency.count });
  return values;
}
