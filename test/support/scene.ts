/**
 * Two nodes in a simulated world, ready to send: `socket` of the smaller address `a` (it dials) to `peer` of `b`. And what
 * tests on virtual time need between the steps: turns in which promises settle, and the fate of a promise.
 */
import type { FixedBudget } from '../../src/core/budget.ts';
import { ZerotxError } from '../../src/core/errors.ts';
import type { Outcome } from '../../src/core/ubuf.ts';
import type { RdsEnvironment } from '../../src/rds/environment.ts';
import { RdsNode } from '../../src/rds/node.ts';
import type { NodeLimits, SocketOptions } from '../../src/rds/options.ts';
import type { RdsMessage } from '../../src/rds/received.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import type { Channel, ChannelHandler, Transport } from '../../src/rds/transport.ts';
import { Random } from './random.ts';
import { Process, World } from './sim.ts';

/** Where `peer` is. */
export const TO = { address: '10.0.0.2', port: 5000 } as const;
export const FROM = { address: '10.0.0.1', port: 4000 } as const;

export interface Scene {
  readonly world: World;
  /** The smaller address: it dials. */
  readonly a: RdsNode;
  readonly b: RdsNode;
  readonly socket: RdsSocket;
  readonly peer: RdsSocket;
  readonly processes: { readonly a: Process; readonly b: Process };
  /** That of `a`. */
  readonly budget: FixedBudget;
  /** Timers of `a` that are set and neither fired nor cancelled. */
  timers(): number;
}

export interface SceneOptions {
  readonly budgetPages?: number;
  readonly peer?: SocketOptions;
  /** One if left out: most tests look at the bytes of one connection. */
  readonly lanes?: number;
  readonly limits?: { readonly a?: Partial<NodeLimits>; readonly b?: Partial<NodeLimits> };
  /** What stands between `a` and the channels of its world. */
  readonly through?: (channel: Channel) => Channel;
}

export function newProcess(world: World, budgetPages = -1): Process {
  return new Process(world, { lendable: true, budgetPages, bootMs: 1_000_000 });
}

export function scene(options: SocketOptions = { zerocopy: true }, more: SceneOptions = {}): Scene {
  const { lanes = 1 } = more;
  const world = new World(new Random(11));
  const processes = { a: newProcess(world, more.budgetPages), b: newProcess(world) };
  const { environment } = processes.a;
  const counted = countTimers(through(environment, more.through));
  const a = new RdsNode(FROM.address, counted.environment, more.limits?.a, null, lanes);
  const b = new RdsNode(TO.address, processes.b.environment, more.limits?.b, null, lanes);
  return {
    world,
    a,
    b,
    socket: a.bind(FROM.port, options),
    peer: b.bind(TO.port, more.peer),
    processes,
    budget: environment.budget as FixedBudget,
    timers: counted.timers,
  };
}

function through(environment: RdsEnvironment, wrap: SceneOptions['through']): RdsEnvironment {
  if (wrap === undefined) return environment;
  const inner = environment.transport;
  const transport: Transport = {
    listen: (address, accepted, admits, failed) =>
      inner.listen(address, (channel) => accepted(wrap(channel)), admits, failed),
    dial: (local, remote, lane, handler: ChannelHandler) => wrap(inner.dial(local, remote, lane, handler)),
  };
  return { ...environment, transport };
}

function countTimers(environment: RdsEnvironment): { environment: RdsEnvironment; timers: () => number } {
  let timers = 0;
  const { runtime } = environment;
  const timer: typeof runtime.timer = (task, delayMs) => {
    timers += 1;
    let over = false;
    const end = (): void => {
      if (!over) timers -= 1;
      over = true;
    };
    const inner = runtime.timer(() => {
      end();
      task();
    }, delayMs);
    return {
      cancel: () => {
        end();
        inner.cancel();
      },
    };
  };
  return { environment: { ...environment, runtime: { ...runtime, timer } }, timers: () => timers };
}

/** Lets promises settle between steps of the world. */
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

export async function run(world: World, ms: number): Promise<void> {
  world.run(world.now + ms);
  await turn();
  world.settle();
  await turn();
}

/** Nothing moves on any connection from now on. */
export function stall(world: World): void {
  for (const link of world.links) link.stall(1e5);
}

/** All connections are lost. */
export function cut(world: World): void {
  for (const link of world.links) link.cut();
}

/** What became of a promise so far. */
export interface Fate {
  outcome(): Outcome | null;
  error(): unknown;
  resolved(): boolean;
}

export function watch(promise: Promise<unknown>): Fate {
  let outcome: Outcome | null = null;
  let error: unknown = null;
  let resolved = false;
  promise.then(
    (value) => {
      resolved = true;
      outcome = (value as Outcome | undefined) ?? null;
    },
    (reason) => {
      error = reason;
    },
  );
  return { outcome: () => outcome, error: () => error, resolved: () => resolved };
}

export function codeFrom(fate: Fate): string | undefined {
  const error = fate.error();
  return error instanceof ZerotxError ? error.code : undefined;
}

/** The messages that wait to be read; news and completions met on the way are dropped. */
export function readMessages(socket: RdsSocket): RdsMessage[] {
  const messages: RdsMessage[] = [];
  for (let m = socket.recvmsg(); m !== null; m = socket.recvmsg()) if (m.kind === 'data') messages.push(m);
  return messages;
}

/** Their lengths. */
export function readAll(socket: RdsSocket): number[] {
  return readMessages(socket).map(({ length }) => length);
}
