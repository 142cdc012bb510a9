/**
 * RDS nodes for tests over real TCP, each with its own idea of what is local, and waits that listen to events and end.
 */
import assert from 'node:assert/strict';
import type { EventEmitter } from 'node:events';
import { FixedBudget, type MemlockBudget } from '../../src/core/budget.ts';
import { ZerotxError } from '../../src/core/errors.ts';
import type { ZerocopyMode } from '../../src/net/policy.ts';
import { processEnvironment } from '../../src/rds/environment.ts';
import { RdsNode } from '../../src/rds/node.ts';
import type { NodeLimits } from '../../src/rds/options.ts';
import type { RdsMessage } from '../../src/rds/received.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { markProtects } from '../../src/sys/lend.ts';

export const DEADLINE_MS = 20_000;

export interface TestNodeOptions {
  readonly mode?: ZerocopyMode;
  readonly thresholdBytes?: number;
  /** Unlimited if left out, so that a test does not depend on the limits of who runs it. */
  readonly budget?: MemlockBudget;
  readonly limits?: Partial<NodeLimits>;
  /** Offered to peers; 8 if left out. */
  readonly lanes?: number;
  /** Nodes that share this map are local to each other; alone if left out. */
  readonly nodes?: Map<string, RdsNode>;
}

export function testNode(address: string, options: TestNodeOptions = {}): RdsNode {
  const { mode = 'auto', thresholdBytes, budget = new FixedBudget(-1), limits, nodes = new Map() } = options;
  const environment = processEnvironment(thresholdBytes === undefined ? { mode } : { mode, thresholdBytes });
  return new RdsNode(address, { ...environment, budget, nodes }, limits, null, options.lanes);
}

/** Memory that can be lent on this runtime: any, where a mark keeps it in place, else shared memory. */
export function lendableBuffer(bytes: number): Buffer {
  return markProtects() ? Buffer.from(new ArrayBuffer(bytes)) : Buffer.from(new SharedArrayBuffer(bytes));
}

/** Resolves once `condition` holds: it is asked now and at each of the events. */
export function eventually(
  emitter: EventEmitter,
  events: readonly string[],
  condition: () => boolean,
): Promise<void> {
  return new Promise((resolve, reject) => {
    if (condition()) {
      resolve();
      return;
    }
    const listener = (): void => {
      let done = true;
      try {
        done = condition();
        if (done) resolve();
      } catch (error) {
        reject(error);
      }
      if (done) stop();
    };
    const stop = (): void => {
      clearTimeout(timer);
      for (const event of events) emitter.off(event, listener);
    };
    const timer = setTimeout(() => {
      stop();
      reject(new Error(`not within ${DEADLINE_MS} ms of ${events.join(', ')}: ${condition}`));
    }, DEADLINE_MS);
    for (const event of events) emitter.on(event, listener);
  });
}

/** For what raises no event: looks again in every turn of the event loop. */
export async function turnsUntil(condition: () => boolean): Promise<void> {
  const end = performance.now() + DEADLINE_MS;
  while (!condition()) {
    if (performance.now() > end) throw new Error(`not within ${DEADLINE_MS} ms: ${condition}`);
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/** A promise with its handles outside (Promise.withResolvers, which Node 20 lacks). */
export function deferred<T>(): { promise: Promise<T>; resolve: (value: T) => void } {
  let resolve!: (value: T) => void;
  const promise = new Promise<T>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}

/** Reads until `count` messages came; completions and news met on the way are dropped. */
export async function receive(socket: RdsSocket, count: number): Promise<RdsMessage[]> {
  const messages: RdsMessage[] = [];
  await eventually(socket, ['readable'], () => {
    while (messages.length < count) {
      const received = socket.recvmsg();
      if (received === null) return false;
      if (received.kind === 'data') messages.push(received);
    }
    return true;
  });
  return messages;
}

/** Reads until `count` cookies came, by either channel; messages met on the way are dropped. */
export async function completions(
  socket: RdsSocket,
  count: number,
  channel: 'control' | 'errqueue' = 'control',
): Promise<number[]> {
  const cookies: number[] = [];
  await eventually(socket, ['readable'], () => {
    while (cookies.length < count) {
      const record = channel === 'control' ? socket.recvmsg() : socket.recvErrqueue();
      if (record === null) return false;
      if (!('cookies' in record)) continue;
      assert.ok(record.cookies.length <= 8, 'at most eight cookies a record');
      cookies.push(...record.cookies);
    }
    return true;
  });
  return cookies;
}

/** The code that `call` fails with; null when it does not fail. */
export function codeOf(call: () => unknown): string | null {
  try {
    call();
  } catch (error) {
    assert.ok(error instanceof ZerotxError, `not a ZerotxError: ${error}`);
    assert.match(error.message, new RegExp(error.code));
    return error.code;
  }
  return null;
}

/** What must be left of a node whose messages are all delivered and read. */
export function assertIdle(node: RdsNode): void {
  const { queuedBytes, lentBytes, heldBytes, budget, zerocopy } = node.stats();
  assert.deepEqual(
    { queuedBytes, lentBytes, heldBytes, usedPages: budget.usedPages, pinnedBytes: zerocopy.pinnedBytes },
    { queuedBytes: 0, lentBytes: 0, heldBytes: 0, usedPages: 0, pinnedBytes: 0 },
  );
}
