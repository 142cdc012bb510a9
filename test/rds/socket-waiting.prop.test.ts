/**
 * ReceiveWaiters against a model: whatever comes, times out, is aborted and ends in whatever order, each thing goes to one waiter, to
 * the first that can use it, and each waiter is told one thing.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { ZerotxError } from '../../src/core/errors.ts';
import { ReleaseQueue } from '../../src/core/releases.ts';
import { ReceiveWaiters } from '../../src/rds/socket-waiting.ts';
import type { Runtime } from '../../src/rds/transport.ts';
import { scaled } from '../support/counts.ts';

/** Even things are for everybody, odd ones for those who take all. */
type Step =
  | { kind: 'wait'; takesAll: boolean; timeoutMs: number | undefined; aborts: boolean }
  | { kind: 'comes'; thing: number }
  | { kind: 'time'; ms: number }
  | { kind: 'abort' }
  | { kind: 'end' };

const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 5,
    arbitrary: fc.record({
      kind: fc.constant('wait' as const),
      takesAll: fc.boolean(),
      timeoutMs: fc.option(fc.integer({ min: 0, max: 30 }), { nil: undefined }),
      aborts: fc.boolean(),
    }),
  },
  { weight: 5, arbitrary: fc.record({ kind: fc.constant('comes' as const), thing: fc.nat(1000) }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('time' as const), ms: fc.nat(20) }) },
  { weight: 1, arbitrary: fc.constant({ kind: 'abort' as const }) },
  { weight: 1, arbitrary: fc.constant({ kind: 'end' as const }) },
);

class Clock implements Runtime {
  readonly releases: ReleaseQueue = new ReleaseQueue(() => {});
  readonly #timers = new Set<{ atMs: number; task: () => void }>();
  #now = 0;
  readonly now = (): number => this.#now;
  readonly defer = (): void => assert.fail('waiting needs no turns');
  readonly yield = (): void => assert.fail('waiting needs no turns');
  readonly random = (): number => 0;
  readonly timer = (task: () => void, delayMs: number): { cancel(): void } => {
    const timer = { atMs: this.#now + delayMs, task };
    this.#timers.add(timer);
    return { cancel: () => this.#timers.delete(timer) };
  };

  get timers(): number {
    return this.#timers.size;
  }

  pass(ms: number): void {
    const end = this.#now + ms;
    for (;;) {
      const [next] = [...this.#timers].sort((x, y) => x.atMs - y.atMs);
      if (next === undefined || next.atMs > end) break;
      this.#now = next.atMs;
      this.#timers.delete(next);
      next.task();
    }
    this.#now = end;
  }
}

interface Waiting {
  readonly takesAll: boolean;
  readonly endsAtMs: number;
  readonly aborts: boolean;
  /** What the model says it is told: a thing, or a word. */
  expected: string | null;
  told: string[];
}

class Trial {
  readonly clock = new Clock();
  readonly waiters = new ReceiveWaiters(this.clock);
  readonly all: Waiting[] = [];
  readonly #things: number[] = [];
  readonly #model: number[] = [];
  #controller = new AbortController();

  take(step: Step): void {
    switch (step.kind) {
      case 'wait':
        this.#wait(step.takesAll, step.timeoutMs, step.aborts);
        return;
      case 'comes':
        this.#things.push(step.thing);
        this.#model.push(step.thing);
        this.waiters.serve();
        for (const waiting of this.open()) this.#serveModel(waiting);
        return;
      case 'time':
        this.clock.pass(step.ms);
        for (const waiting of this.open())
          if (waiting.endsAtMs <= this.clock.now()) waiting.expected = 'late';
        return;
      case 'abort':
        this.#controller.abort('no more');
        this.#controller = new AbortController();
        for (const waiting of this.open()) if (waiting.aborts) waiting.expected = 'aborted';
        return;
      case 'end':
        this.waiters.end(new ZerotxError('ECANCELED', 'ended'));
        for (const waiting of this.open()) waiting.expected = 'ended';
    }
  }

  open(): Waiting[] {
    return this.all.filter(({ expected }) => expected === null);
  }

  #wait(takesAll: boolean, timeoutMs: number | undefined, aborts: boolean): void {
    const endsAtMs = timeoutMs === undefined ? Number.POSITIVE_INFINITY : this.clock.now() + timeoutMs;
    const waiting: Waiting = { takesAll, endsAtMs, aborts, expected: null, told: [] };
    this.all.push(waiting);
    // Nobody goes before those who wait, and what none of them can use is for the one who comes.
    for (const each of this.open()) this.#serveModel(each);
    const take = (): number | null => first(this.#things, takesAll);
    const options = aborts ? { timeoutMs, signal: this.#controller.signal } : { timeoutMs };
    this.waiters.add(take, options).then(
      (thing) => waiting.told.push(`${thing}`),
      (error) =>
        waiting.told.push(error === 'no more' ? 'aborted' : error.code === 'ETIMEDOUT' ? 'late' : 'ended'),
    );
  }

  #serveModel(waiting: Waiting): void {
    const thing = first(this.#model, waiting.takesAll);
    if (thing !== null) waiting.expected = `${thing}`;
  }
}

/** Takes the first thing out, if it is one for this waiter. */
function first(things: number[], takesAll: boolean): number | null {
  const [thing] = things;
  if (thing === undefined || (thing % 2 === 1 && !takesAll)) return null;
  things.shift();
  return thing;
}

describe('who waits to receive', () => {
  it('is served in order, once, and leaves nothing behind', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 60 }), async (steps) => {
        const trial = new Trial();
        for (const one of steps) trial.take(one);
        await new Promise((resolve) => setImmediate(resolve));
        assert.deepEqual(
          trial.all.map(({ told }) => told),
          trial.all.map(({ expected }) => (expected === null ? [] : [expected])),
        );
        assert.equal(trial.waiters.length, trial.open().length);
        const timed = trial.open().filter(({ endsAtMs }) => endsAtMs !== Number.POSITIVE_INFINITY);
        assert.equal(trial.clock.timers, timed.length);
      }),
      { numRuns: scaled(300, 20_000) },
    );
  });

  it('is told what goes wrong when something comes', async () => {
    const clock = new Clock();
    const waiters = new ReceiveWaiters(clock);
    let isBroken = false;
    const take = (): null => {
      if (isBroken) throw new ZerotxError('EIO', 'broken');
      return null;
    };
    const waiting = waiters.add(take, { timeoutMs: 5 });
    isBroken = true;
    waiters.serve();
    await assert.rejects(waiting, { code: 'EIO' });
    assert.deepEqual([waiters.length, clock.timers], [0, 0]);
  });
});
