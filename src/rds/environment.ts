/** What a node takes from the process it runs in; programs get the real one, tests a simulated one. */
import type { MemlockBudget } from '../core/budget.ts';
import { releases } from '../core/releases.ts';
import { processBudget } from '../net/budget.ts';
import { canLend, lend, pageBytes } from '../net/lending.ts';
import { aboutToBegin } from '../net/stats.ts';
import { showNodes } from './control.ts';
import type { RdsNode } from './node.ts';
import type { PeerLending } from './peer-lending.ts';
import type { RdsSocket } from './socket.ts';
import type { Runtime, Transport } from './transport.ts';
import { type TcpTransportOptions, tcpTransport } from './transport-tcp.ts';

export interface Memory {
  readonly pageBytes: number;
  canLend(view: Uint8Array, options: { readonly pin: boolean }): boolean;
  lend(view: Uint8Array, options: { readonly pin: boolean }): void;
}

export interface RdsEnvironment {
  readonly runtime: Runtime;
  readonly transport: Transport;
  readonly budget: MemlockBudget;
  readonly memory: Memory;
  /** Milliseconds since the epoch: where sequence numbers begin. */
  readonly epochMs: () => number;
  readonly lending: PeerLending;
  /** Sockets of any node that wait for pages of the budget. */
  readonly budgetWaiters: Set<RdsSocket>;
  /** Open nodes by address: what is local. */
  readonly nodes: Map<string, RdsNode>;
}

/** Time and turns of this process. */
export const processRuntime: Runtime = {
  now: () => performance.now(),
  defer: queueMicrotask,
  yield: (task) => {
    setImmediate(task);
  },
  timer: (task, delayMs) => {
    const timer = setTimeout(task, delayMs);
    return { cancel: () => clearTimeout(timer) };
  },
  random: Math.random,
  releases,
};

const nodes = new Map<string, RdsNode>();
const budgetWaiters = new Set<RdsSocket>();

/** This thread's environment. Loads the addon. */
export function processEnvironment(options: TcpTransportOptions): RdsEnvironment {
  showNodes(() => nodes.values());
  aboutToBegin();
  const transport = tcpTransport(options);
  return {
    runtime: processRuntime,
    transport,
    lending: transport.lending,
    budget: processBudget(),
    memory: { pageBytes: pageBytes(), canLend, lend },
    epochMs: Date.now,
    nodes,
    budgetWaiters,
  };
}
