/**
 * The child process of one side of a cell: takes requests over Node's IPC channel, runs the side, and measures this
 * process's own CPU time around each slice.
 *
 * CPU is `process.cpuUsage()` (getrusage(2): all threads, user and system), from `begin` to `end`. The harness sends
 * `end` only when all sides are done, so that work a side does for the other's last messages is counted too. The end of
 * the IPC channel ends the process.
 *
 * usage: node worker.js MODULE_URL SIDE
 */
import type { CellModule, CellSide, Counters, Options, Slice } from './cell.ts';

export interface SideReport {
  cpuUs: number;
  /** CLOCK_MONOTONIC, comparable between processes. */
  startNs: number;
  endNs: number;
  counters: Counters;
}

export type Request =
  | { id: number; method: 'open'; params: Options }
  | { id: number; method: 'begin'; params: Slice }
  | { id: number; method: 'wait' | 'end' | 'rss' | 'close' };

export type Response = { id: number; result: unknown } | { id: number; error: string };

interface Running {
  cpu: NodeJS.CpuUsage;
  startNs: number;
  done: Promise<{ endNs: number; counters: Counters }>;
}

const [moduleUrl, sideName] = process.argv.slice(2);
let running: Running | undefined;

async function main(): Promise<void> {
  const { sides } = (await import(moduleUrl!)) as CellModule;
  const factory = sides[sideName!];
  if (factory === undefined) throw new Error(`${moduleUrl} has no side ${sideName}`);
  const side = factory();
  process.on('disconnect', () => process.exit(0));
  process.on('message', (request: Request) => {
    handle(side, request).then(
      (result) => respond({ id: request.id, result }),
      (error: unknown) =>
        respond({ id: request.id, error: error instanceof Error ? error.stack! : String(error) }),
    );
  });
  respond({ id: 0, result: null });
}

async function handle(side: CellSide, request: Request): Promise<unknown> {
  switch (request.method) {
    case 'open':
      return side.open(request.params);
    case 'begin': {
      const startNs = nowNs();
      const cpu = process.cpuUsage();
      const done = side.run(request.params).then((counters) => ({ endNs: nowNs(), counters }));
      done.catch(() => {}); // reported by `wait`
      running = { cpu, startNs, done };
      return null;
    }
    case 'wait':
      await running!.done;
      return null;
    case 'end': {
      const { user, system } = process.cpuUsage(running!.cpu);
      const { endNs, counters } = await running!.done;
      return { cpuUs: user + system, startNs: running!.startNs, endNs, counters } satisfies SideReport;
    }
    case 'rss':
      return process.memoryUsage.rss();
    case 'close':
      return side.close();
  }
}

function respond(response: Response): void {
  process.send!(response);
}

function nowNs(): number {
  return Number(process.hrtime.bigint());
}

main().catch((error: unknown) => {
  respond({ id: 0, error: error instanceof Error ? error.stack! : String(error) });
  process.exitCode = 1;
});
