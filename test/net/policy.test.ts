/** When to lend: a table of situations, and then any sequence of events on virtual time. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { TCP_THRESHOLD_BYTES, type ZerocopyMode, ZerocopyPolicy } from '../../src/net/policy.ts';

const seed = process.env.FC_SEED;
if (seed !== undefined) fc.configureGlobal({ seed: Number(seed) });

const KIB = 1024;
const MIB = 1024 * KIB;
const BIG = 64 * KIB;

function policy(mode: ZerocopyMode, loopback = false, thresholdBytes = TCP_THRESHOLD_BYTES): ZerocopyPolicy {
  return new ZerocopyPolicy({ mode, loopback: () => loopback, thresholdBytes });
}

/** `count` completions at time `nowMs`, the first `copied` of them copied. */
function completions(of: ZerocopyPolicy, count: number, copied: number, nowMs = 0): void {
  for (let i = 0; i < count; i++) of.completed(i < copied, nowMs);
}

/** How many calls in a row are refused before the next is lent. */
function copiesInARow(of: ZerocopyPolicy, atMost: number): number {
  for (let i = 0; i < atMost; i++) {
    if (of.why(BIG, 0) === null) return i;
    of.copied(BIG);
  }
  return atMost;
}

describe('first answer', () => {
  const table: [mode: ZerocopyMode, loopback: boolean, bytes: number, lends: boolean][] = [
    ['auto', false, 32 * KIB, true],
    ['auto', false, 32 * KIB - 1, false],
    ['auto', false, 4 * KIB, false],
    ['auto', false, 0, false],
    ['auto', true, MIB, false],
    ['force', true, 32 * KIB, true],
    ['force', true, 32 * KIB - 1, false],
    ['force', false, MIB, true],
    ['off', false, MIB, false],
    ['off', true, MIB, false],
  ];
  for (const [mode, loopback, bytes, lends] of table) {
    const where = loopback ? 'loopback' : 'elsewhere';
    it(`${mode}, ${bytes} bytes to ${where}: ${lends ? 'lend' : 'copy'}`, () => {
      assert.equal(policy(mode, loopback).why(bytes, 0) === null, lends);
    });
  }

  it('has the threshold of its options', () => {
    assert.equal(policy('auto', false, 1).why(1, 0) === null, true);
    assert.equal(policy('auto', false, MIB).why(MIB - 1, 0) === null, false);
  });
});

describe('auto, after completions', () => {
  const table: [copied: number, of: number, lends: boolean][] = [
    [15, 15, true], // too few to judge
    [16, 16, false],
    [15, 16, false], // 94 %
    [14, 16, true], // 88 %
    [0, 16, true],
  ];
  for (const [copied, of, lends] of table) {
    it(`${copied} of ${of} copied: ${lends ? 'goes on lending' : 'stops'}`, () => {
      const auto = policy('auto');
      completions(auto, of, copied);
      assert.equal(auto.why(BIG, 0) === null, lends);
    });
  }

  it('judges each sixteen by themselves: a bad past does not count', () => {
    const auto = policy('auto');
    completions(auto, 16, 14);
    completions(auto, 16, 14);
    assert.equal(auto.why(BIG, 0) === null, true);
    completions(auto, 16, 16);
    assert.equal(auto.why(BIG, 0) === null, false);
  });

  it('tries again after 30 s, and stops again', () => {
    const auto = policy('auto');
    completions(auto, 16, 16, 1000);
    assert.equal(auto.why(BIG, 30_999) === null, false);
    assert.equal(auto.why(BIG, 31_000) === null, true);
    assert.equal(auto.why(BIG, 31_000) === null, true, 'asking changes nothing');
    auto.lent(31_000);
    completions(auto, 16, 16, 40_000);
    assert.equal(auto.why(BIG, 69_999) === null, false);
    assert.equal(auto.why(BIG, 70_000) === null, true);
    auto.lent(70_000);
    completions(auto, 16, 0, 70_001);
    assert.equal(auto.why(BIG, 70_002) === null, true);
  });

  it('tries again after 256 MiB that it copied', () => {
    const auto = policy('auto');
    completions(auto, 16, 16);
    for (let sent = 0; sent < 256 * MIB; sent += MIB) {
      assert.equal(auto.why(MIB, 1) === null, false);
      auto.copied(MIB);
    }
    assert.equal(auto.why(MIB, 1) === null, true);
  });

  it('is not moved by completions of calls that were made before it stopped', () => {
    const auto = policy('auto');
    completions(auto, 16, 16);
    completions(auto, 1000, 0);
    assert.equal(auto.why(BIG, 0) === null, false);
  });

  it('never starts on loopback, whatever the time', () => {
    const local = policy('auto', true);
    for (let i = 0; i < 1000; i++) assert.equal(local.why(MIB, i * 1e6) === null, false);
  });

  it('does not bind force or off', () => {
    const force = policy('force', true);
    completions(force, 1000, 1000);
    assert.equal(force.why(BIG, 0) === null, true);
    const off = policy('off');
    completions(off, 1000, 0);
    assert.equal(off.why(BIG, 1e9) === null, false);
  });
});

describe('refusals', () => {
  it('cost 1, 2, 4, ... 1024 copies, and then 1024 each', () => {
    const auto = policy('auto');
    const expected = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024];
    for (const copies of expected) {
      auto.refused('memlock');
      assert.equal(copiesInARow(auto, 5000), copies);
    }
  });

  it('begin at 1 again after a success', () => {
    const auto = policy('auto');
    for (let i = 0; i < 6; i++) auto.refused('memlock');
    assert.equal(copiesInARow(auto, 5000), 32);
    auto.completed(false, 0);
    auto.refused('memlock');
    assert.equal(copiesInARow(auto, 5000), 1);
  });

  it('are not paid with pieces that would be copied anyway', () => {
    const auto = policy('auto');
    auto.refused('memlock');
    for (let i = 0; i < 100; i++) auto.copied(100);
    assert.equal(auto.why(BIG, 0) === null, false);
    auto.copied(BIG);
    assert.equal(auto.why(BIG, 0) === null, true);
  });

  it('hold under force, too: the kernel would only refuse again', () => {
    const force = policy('force');
    force.refused('memlock');
    assert.equal(force.why(BIG, 0) === null, false);
    force.copied(BIG);
    assert.equal(force.why(BIG, 0) === null, true);
  });
});

it('a socket that cannot lend at all copies for good, in every mode', () => {
  for (const mode of ['auto', 'force', 'off'] as const) {
    const none = policy(mode);
    none.unsupported();
    for (let i = 0; i < 1000; i++) assert.equal(none.why(MIB, i * 60_000) === null, false, mode);
  }
});

/** Time passes with every event, so the sequence is a run on virtual time. */
const event = fc.oneof(
  fc.record({ what: fc.constant('send' as const), bytes: fc.integer({ min: 0, max: 4 * MIB }) }),
  fc.record({ what: fc.constant('completed' as const), copied: fc.boolean() }),
  fc.record({ what: fc.constant('refused' as const) }),
);
const timed = fc.tuple(fc.nat(5000), event);

it('whatever happens, small pieces are copied, off never lends, and auto does not rest for ever', () => {
  const modes = fc.constantFrom<ZerocopyMode>('auto', 'force', 'off');
  fc.assert(
    fc.property(modes, fc.boolean(), fc.array(timed, { maxLength: 300 }), (mode, loopback, events) => {
      const subject = policy(mode, loopback);
      let nowMs = 0;
      for (const [afterMs, happened] of events) {
        nowMs += afterMs;
        if (happened.what === 'completed') subject.completed(happened.copied, nowMs);
        else if (happened.what === 'refused') subject.refused('memlock');
        else {
          const lends = subject.why(happened.bytes, nowMs) === null;
          if (lends) subject.lent(nowMs);
          else subject.copied(happened.bytes);
          if (lends) {
            assert.ok(happened.bytes >= TCP_THRESHOLD_BYTES);
            assert.notEqual(mode, 'off');
            assert.ok(mode === 'force' || !loopback);
          }
        }
      }
      const mayLend = mode === 'force' || (mode === 'auto' && !loopback);
      // A rest is over after 30 s, a penalty after 1024 calls.
      const answers = Array.from({ length: 1025 }, () => {
        const lends = subject.why(BIG, nowMs + 30_000) === null;
        if (!lends) subject.copied(BIG);
        return lends;
      });
      assert.equal(answers.includes(true), mayLend);
    }),
  );
});
