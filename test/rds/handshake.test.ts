/** What probes say and are taken to say (rds/handshake.ts), and where connections of a lane come from (rds/source-port.ts). */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { ZerotxError } from '../../src/core/errors.ts';
import { HANDSHAKE_TIMEOUT_MS, Handshake } from '../../src/rds/handshake.ts';
import { dialFromLane, groupsOf } from '../../src/rds/source-port.ts';
import { EXTHDR_BYTES } from '../../src/wire/rds.ts';
import { encodeExtensions, type ProbeExtensions, parseExtensions } from '../../src/wire/rds-exthdr.ts';

const GEN = 0x01020304;

function area(extensions: ProbeExtensions): Uint8Array {
  const bytes = new Uint8Array(EXTHDR_BYTES);
  encodeExtensions(bytes, 0, extensions);
  return bytes;
}

describe('what we say', () => {
  it('names lanes only where that is asked for, and always the generation and SPORT_IDX', () => {
    const { neutral, single, full } = new Handshake(GEN, 8, false);
    const common = { genNum: GEN, sportIdx: true, unknownTypes: [] };
    assert.deepEqual(parseExtensions(neutral, 0), common);
    assert.deepEqual(parseExtensions(single, 0), { npaths: 1, ...common });
    assert.deepEqual(parseExtensions(full, 0), { npaths: 8, ...common });
  });

  it('offers a power of two', () => {
    const offered = [1, 2, 3, 4, 5, 6, 7, 8].map((lanes) => new Handshake(GEN, lanes, false).offered);
    assert.deepEqual(offered, [1, 2, 2, 4, 4, 4, 4, 8]);
  });

  it('with one lane, is what peers of one lane have always heard', () => {
    const { neutral, single, full } = new Handshake(GEN, 1, false);
    assert.deepEqual([neutral, full], [single, single]);
    assert.equal(parseExtensions(neutral, 0).npaths, 1);
  });
});

describe('what follows from an answer', () => {
  const answers = {
    lanes8: { npaths: 8, sportIdx: true },
    lanes1: { npaths: 1, sportIdx: true },
    legacy: { npaths: 8 },
  };

  /** What is told and whether lanes are agreed, for one answer on lane 0 after the other. */
  function steps(dials: boolean, said: readonly (keyof typeof answers | 'ping')[], hadOne = false): string[] {
    const handshake = new Handshake(GEN, 8, dials);
    handshake.opening(true);
    const names = new Map([
      [handshake.single, 'single'],
      [handshake.full, 'full'],
    ]);
    return said.map((name) => {
      const news = handshake.read(area({ genNum: 7, ...answers[name === 'ping' ? 'lanes8' : name] }), 0, 1);
      if (name === 'ping') return names.get(handshake.pong(news, true)) ?? 'neutral';
      handshake.answered(news, true);
      const { tell, isAgreed } = handshake.next(news, hadOne);
      return `${tell === null ? 'nothing' : names.get(tell)}, ${isAgreed ? 'agreed' : 'not yet'}`;
    });
  }

  for (const [what, dials, said, hadOne, expected] of [
    [
      'a dialler settles when the peer has shown that it knows',
      true,
      ['lanes8', 'lanes8'],
      false,
      ['full, not yet', 'nothing, agreed'],
    ],
    ['whoever is dialled tells it, and need not wait', false, ['lanes8'], false, ['full, agreed']],
    [
      'and not twice, if its pong has told already',
      false,
      ['ping', 'lanes8'],
      false,
      ['full', 'nothing, agreed'],
    ],
    ['one lane needs no more words', true, ['lanes1'], false, ['nothing, agreed']],
    ['a peer without SPORT_IDX is told one, whatever it names', true, ['legacy'], false, ['single, agreed']],
    ['unless one was agreed before', false, ['legacy'], true, ['nothing, agreed']],
  ] as const) {
    it(what, () => assert.deepEqual(steps(dials, said, hadOne), expected));
  }

  it('a peer that has one lane is told so at once on the next connection; lane 0 alone begins anew', () => {
    const handshake = new Handshake(GEN, 8, true);
    assert.equal(handshake.opening(true), handshake.neutral);
    handshake.answered(handshake.read(area({ npaths: 8 }), 0, 1), true);
    assert.equal(handshake.opening(true), handshake.single);
    const several = handshake.read(area(answers.lanes8), 0, 1);
    handshake.answered(several, true);
    assert.equal(handshake.opening(true), handshake.neutral);
    assert.equal(handshake.next(several, false).tell, handshake.full);
    assert.equal(handshake.opening(false), handshake.neutral);
    handshake.answered(several, true);
    assert.deepEqual(handshake.next(several, false), { tell: null, isAgreed: true });
    handshake.restarted();
    assert.equal(handshake.next(several, false).isAgreed, false);
  });

  it('a peer that was mute is not waited for again, until it answers', () => {
    const handshake = new Handshake(GEN, 8, true);
    const waits = [handshake.patienceMs];
    handshake.unanswered();
    waits.push(handshake.patienceMs);
    handshake.answered(handshake.read(area(answers.lanes1), 0, 1), false);
    waits.push(handshake.patienceMs);
    assert.deepEqual(waits, [HANDSHAKE_TIMEOUT_MS, 0, HANDSHAKE_TIMEOUT_MS]);
  });
});

describe('what the peer says', () => {
  it('counts for lanes only with SPORT_IDX, and within both offers', () => {
    const read = (own: number, extensions: ProbeExtensions): number =>
      new Handshake(GEN, own, false).read(area(extensions), 0, 1).lanes;
    assert.equal(read(8, { npaths: 8 }), 1, '6.x');
    assert.equal(read(8, { npaths: 8, sportIdx: true }), 8);
    assert.equal(read(8, { npaths: 65_535, sportIdx: true }), 8);
    assert.equal(read(8, { npaths: 3, sportIdx: true }), 2);
    assert.equal(read(2, { npaths: 8, sportIdx: true }), 2);
    assert.equal(read(8, { npaths: 0, sportIdx: true }), 1);
    assert.equal(read(8, { sportIdx: true }), 1);
  });

  it('is a restart when it is another number, on a connection that came later than those of the process before', () => {
    const handshake = new Handshake(GEN, 8, false);
    const hear = (age: number, genNum?: number): string => {
      const { hasRestarted, isLate } = handshake.read(area(genNum === undefined ? {} : { genNum }), 0, age);
      return hasRestarted ? 'restarted' : isLate ? 'late' : 'the same';
    };
    for (const [age, genNum, expected] of [
      [1, undefined, 'the same'],
      [2, 7, 'the same'],
      [2, 7, 'the same'],
      [2, 0, 'the same'],
      [5, 8, 'restarted'],
      [3, 7, 'late'],
      [1, 8, 'the same'],
      [6, 9, 'restarted'],
      [5, 8, 'late'],
      [4, 7, 'late'],
      [9, 9, 'the same'],
      // Taken for a process of its own, as it may be one; and corrected by the next connection.
      [10, 8, 'restarted'],
      [9, 9, 'late'],
      [11, 9, 'restarted'],
    ] as const) {
      assert.equal(hear(age, genNum), expected, `${genNum} on connection ${age}`);
    }
    assert.equal(handshake.peerGeneration, 9);
  });

  it('is a restart, too, when SPORT_IDX comes or goes: another kernel was started', () => {
    const handshake = new Handshake(GEN, 8, false);
    const hear = (age: number, extensions: ProbeExtensions): [boolean, boolean, number] => {
      const { hasRestarted, isLate } = handshake.read(area(extensions), 0, age);
      return [hasRestarted, isLate, handshake.peerGeneration];
    };
    const of7 = { npaths: 8, genNum: 7, sportIdx: true };
    const of6 = { npaths: 8 };
    assert.deepEqual(hear(1, of7), [false, false, 7]);
    assert.deepEqual(hear(2, of6), [true, false, 0]);
    assert.deepEqual(hear(1, of7), [false, true, 0]);
    assert.deepEqual(hear(2, of6), [false, false, 0]);
    assert.deepEqual(hear(3, { ...of7, genNum: 8 }), [true, false, 8]);
    assert.deepEqual(hear(2, of6), [false, true, 8]);
    assert.equal(handshake.hasSeveralLanes, true);
  });

  it('may be any bytes', () => {
    fc.assert(
      fc.property(fc.uint8Array({ minLength: EXTHDR_BYTES, maxLength: EXTHDR_BYTES }), (bytes) => {
        const { lanes } = new Handshake(GEN, 8, false).read(bytes, 0, 1);
        assert.ok([1, 2, 4, 8].includes(lanes));
      }),
    );
  });
});

describe('source ports', () => {
  it('have the lane as the rest modulo eight, and another group each time', () => {
    const ports = Array.from({ length: 32 }, (_, i) => dialFromLane(i % 8, (port) => port));
    for (const [i, port] of ports.entries()) assert.equal(port % 8, i % 8);
    assert.equal(new Set(ports.map((port) => port >> 3)).size, 32);
  });

  it('are tried one after the other while they are taken, and not for ever', () => {
    const taken = new ZerotxError('EADDRINUSE', 'taken', { syscall: 'bind' });
    const tried: number[] = [];
    const port = dialFromLane(3, (candidate) => {
      tried.push(candidate);
      if (tried.length < 5) throw taken;
      return candidate;
    });
    assert.deepEqual([tried.length, new Set(tried).size, port % 8], [5, 5, 3]);
    let attempts = 0;
    const never = (): never => {
      attempts += 1;
      throw taken;
    };
    assert.throws(() => dialFromLane(0, never), taken);
    assert.ok(attempts > 1 && attempts <= 64);
  });

  it('are not searched for when it is the address that is wrong', () => {
    let attempts = 0;
    const wrong = new ZerotxError('EADDRNOTAVAIL', 'no such address', { syscall: 'bind' });
    const dial = (): never => {
      attempts += 1;
      throw wrong;
    };
    assert.throws(() => dialFromLane(0, dial), wrong);
    assert.equal(attempts, 1);
  });

  it('lie in whole groups inside the range', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 65_535 }), fc.integer({ min: 0, max: 65_535 }), (low, more) => {
        const high = Math.min(65_535, low + more);
        const { first, groups } = groupsOf([low, high]);
        assert.ok(first % 8 === 0 && first >= low);
        assert.ok(groups === 0 || first + 8 * groups - 1 <= high);
        assert.ok(first + 8 * (groups + 1) - 1 > high, 'none is left out');
      }),
    );
  });
});
