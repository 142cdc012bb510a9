import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { Fdb, LEARN_FULL, LEARN_KNOWN, LEARN_MOVED, LEARN_NEW, LEARN_REFUSED } from '../../src/switch/fdb.ts';

const seed = process.env.FC_SEED === undefined ? Date.now() : Number(process.env.FC_SEED);

type Operation =
  | {
      readonly kind: 'learn' | 'find' | 'pin';
      readonly vlan: number;
      readonly lower: number;
      readonly port: number;
    }
  | { readonly kind: 'flush'; readonly port: number; readonly pinned: boolean }
  | { readonly kind: 'wait'; readonly ms: number };

const port = fc.nat(2);
const operation: fc.Arbitrary<Operation> = fc.oneof(
  {
    weight: 12,
    arbitrary: fc.record({
      kind: fc.constantFrom('learn' as const, 'learn' as const, 'find' as const),
      vlan: fc.constantFrom(0, 5),
      lower: fc.integer({ min: -8, max: 8 }),
      port,
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant('pin' as const),
      vlan: fc.constantFrom(0, 5),
      lower: fc.integer({ min: -8, max: 8 }),
      port,
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('flush' as const), port, pinned: fc.boolean() }) },
  {
    weight: 1,
    arbitrary: fc.record({ kind: fc.constant('wait' as const), ms: fc.constantFrom(1, 999, 5001) }),
  },
);

const AGE = 5000;
const LIMIT = 12;
const PORT_LIMIT = 8;

/** What the database should do, with a Map. */
class Model {
  readonly entries = new Map<string, { port: number; seenMs: number }>();
  nowMs = 0;
  sweptMs = Number.NEGATIVE_INFINITY;

  of(port: number): number {
    return [...this.entries.values()].filter((entry) => entry.port === port).length;
  }

  find(key: string): number {
    const entry = this.entries.get(key);
    return entry !== undefined && this.nowMs - entry.seenMs <= AGE ? entry.port : -1;
  }

  hasRoom(port: number): boolean {
    return this.entries.size < LIMIT && this.of(port) < PORT_LIMIT;
  }

  learn(key: string, port: number): number {
    const entry = this.entries.get(key);
    if (entry === undefined) {
      if (!this.hasRoom(port) && this.nowMs - this.sweptMs >= 1000) {
        this.sweptMs = this.nowMs;
        for (const [key, { seenMs }] of this.entries) if (this.nowMs - seenMs > AGE) this.entries.delete(key);
      }
      if (!this.hasRoom(port)) return LEARN_FULL;
      this.entries.set(key, { port, seenMs: this.nowMs });
      return LEARN_NEW;
    }
    if (entry.port === port) {
      entry.seenMs = Math.max(entry.seenMs, this.nowMs);
      return LEARN_KNOWN;
    }
    if (entry.seenMs === Number.POSITIVE_INFINITY) return LEARN_REFUSED;
    if (this.of(port) >= PORT_LIMIT) return LEARN_FULL;
    const isOld = this.nowMs - entry.seenMs > AGE;
    this.entries.set(key, { port, seenMs: this.nowMs });
    return isOld ? LEARN_NEW : LEARN_MOVED;
  }

  pin(key: string, port: number): boolean {
    const entry = this.entries.get(key);
    if (entry !== undefined && entry.port !== port && entry.seenMs === Number.POSITIVE_INFINITY) return false;
    this.entries.delete(key);
    if (this.entries.size >= LIMIT) return false;
    this.entries.set(key, { port, seenMs: Number.POSITIVE_INFINITY });
    return true;
  }

  flush(port: number, pinned: boolean): void {
    for (const [key, entry] of this.entries) {
      if (entry.port === port && (pinned || entry.seenMs !== Number.POSITIVE_INFINITY))
        this.entries.delete(key);
    }
  }
}

describe('the forwarding database', () => {
  it('does what a Map would do', () => {
    const cases = fc.record({
      operations: fc.array(operation, { maxLength: 200, size: 'max' }),
      hash: fc.integer(),
    });
    fc.assert(
      fc.property(cases, ({ operations, hash }) => {
        const fdb = new Fdb({ limit: LIMIT, ageMs: AGE, ports: 3, seed: hash });
        for (let i = 0; i < 3; i++) fdb.setPortLimit(i, PORT_LIMIT);
        const model = new Model();
        fdb.nowMs = model.nowMs;
        for (const one of operations) {
          if (one.kind === 'wait') fdb.nowMs = model.nowMs += one.ms;
          else if (one.kind === 'flush') {
            fdb.flush(one.port, one.pinned);
            model.flush(one.port, one.pinned);
          } else {
            const { kind, vlan, lower, port } = one;
            const key = `${vlan} ${lower}`;
            const result = kind === 'find' ? fdb.find(vlan, 2, lower) : fdb[kind](vlan, 2, lower, port);
            assert.equal(result, kind === 'find' ? model.find(key) : model[kind](key, port));
          }
          assert.equal(fdb.size, model.entries.size);
          for (let i = 0; i < 3; i++) assert.equal(fdb.portSize(i), model.of(i));
        }
        const listed = [...fdb.entries()].map(({ vlan, macUpper, macLower, port }) =>
          [vlan, macUpper, macLower, port].join(),
        );
        const expected = [...model.entries]
          .filter(([key]) => model.find(key) >= 0)
          .map(([key, { port }]) => [...key.split(' ')].toSpliced(1, 0, '2').concat(String(port)).join());
        assert.deepEqual(listed.sort(), expected.sort());
      }),
      { seed, numRuns: 300 },
    );
  });

  it('keeps addresses apart that differ in one bit, in any VLAN', () => {
    const fdb = new Fdb({ limit: 200, ageMs: AGE, ports: 200 });
    const keys = Array.from({ length: 48 + 12 }, (_, bit) => ({
      vlan: bit < 48 ? 0 : 1 << (bit - 48),
      upper: bit >= 32 && bit < 48 ? 1 << (bit - 32) : 0,
      lower: bit < 32 ? 1 << bit : 0,
    }));
    for (const [i, { vlan, upper, lower }] of keys.entries())
      assert.equal(fdb.learn(vlan, upper, lower, i), LEARN_NEW);
    for (const [i, { vlan, upper, lower }] of keys.entries()) assert.equal(fdb.find(vlan, upper, lower), i);
  });
});
