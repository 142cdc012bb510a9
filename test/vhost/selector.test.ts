/** Whom is lent to: the rules about copying and about keeping. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  BACKOFF_MAX_MS,
  BACKOFF_MIN_MS,
  Borrower,
  Borrowers,
  LENT,
  REFUSED_COPIES,
  REFUSED_OVERDUE,
  REFUSED_SHARE,
  SHARE_MIN,
} from '../../src/vhost/selector.ts';

/** Asks and, if it is lent to, takes it. */
function lend(borrower: Borrower, nowMs = 0): boolean {
  if (borrower.ask(nowMs) !== LENT) return false;
  borrower.lent += 1;
  return true;
}

describe('a borrower that copies', () => {
  it('one copy costs 64 packets, two cost 128', () => {
    const borrower = new Borrower();
    assert.ok(lend(borrower));
    borrower.returned(0, false, true);
    let refused = 0;
    while (!lend(borrower)) refused += 1;
    assert.equal(refused, 62, 'packets 2 to 63');
    borrower.returned(0, false, true);
    while (!lend(borrower)) refused += 1;
    assert.equal(refused, 62 + 63, 'packets 65 to 127');
  });

  it('begins anew after 1024 packets', () => {
    const borrower = new Borrower();
    for (let i = 0; i < 100; i++) lend(borrower) && borrower.returned(0, false, false);
    lend(borrower);
    for (let i = 0; i < 100; i++) borrower.returned(0, false, true);
    for (let i = 101; i < 1023; i++) assert.equal(borrower.ask(0), REFUSED_COPIES, `${i}`);
    assert.equal(borrower.ask(0), LENT);
  });

  it('is lent to as long as at most one in 64 was copied', () => {
    const borrower = new Borrower();
    for (let i = 1; i < 1000; i++) {
      assert.ok(lend(borrower), `packet ${i}`);
      borrower.returned(0, false, i % 64 === 63);
    }
  });

  it('one that always copies gets less than one in 60', () => {
    const borrower = new Borrower();
    let lent = 0;
    for (let i = 0; i < 10_240; i++) {
      if (!lend(borrower)) continue;
      lent += 1;
      borrower.returned(0, false, true);
    }
    assert.ok(lent <= 10_240 / 60, `${lent}`);
  });
});

describe('a borrower that keeps what it is lent', () => {
  it('gets nothing while it has an overdue one, however long', () => {
    const borrower = new Borrower();
    lend(borrower, 0);
    borrower.late(5);
    assert.equal(borrower.ask(6), REFUSED_OVERDUE);
    assert.equal(borrower.ask(1e6), REFUSED_OVERDUE);
    borrower.returned(0, true, false);
    assert.equal(borrower.ask(1e6), LENT);
  });

  it('backs off for a time that doubles with each relapse, up to a limit', () => {
    const borrower = new Borrower();
    let now = 0;
    for (let backoff = BACKOFF_MIN_MS; ; backoff = Math.min(BACKOFF_MAX_MS, backoff * 2)) {
      assert.ok(lend(borrower, now));
      borrower.late(now + 5);
      borrower.returned(now, true, false);
      assert.equal(borrower.ask(now + 5 + backoff - 1), REFUSED_OVERDUE);
      assert.equal(borrower.ask(now + 5 + backoff), LENT, `${backoff}`);
      now += 5 + backoff;
      if (backoff === BACKOFF_MAX_MS && now > 5 * BACKOFF_MAX_MS) break;
    }
  });

  it('counts as one relapse what goes late at the same time', () => {
    const borrower = new Borrower();
    for (let i = 0; i < SHARE_MIN; i++) assert.ok(lend(borrower, 0));
    for (let i = 0; i < SHARE_MIN; i++) borrower.late(5 + i / 10);
    for (let i = 0; i < SHARE_MIN; i++) borrower.returned(0, true, false);
    assert.equal(borrower.untilMs, 5 + BACKOFF_MIN_MS);
  });

  it('is forgiven for one in time, lent after the back-off; not for those beside the late one', () => {
    const borrower = new Borrower();
    lend(borrower, 0);
    lend(borrower, 4);
    borrower.late(5);
    borrower.returned(4, false, false);
    borrower.returned(0, true, false);
    const again = 5 + BACKOFF_MIN_MS;
    lend(borrower, again);
    borrower.late(again + 5);
    assert.equal(borrower.untilMs, again + 5 + 2 * BACKOFF_MIN_MS, 'doubled');
    borrower.returned(again, true, false);
    const later = borrower.untilMs;
    lend(borrower, later);
    borrower.returned(later, false, false);
    lend(borrower, later);
    borrower.late(later + 5);
    assert.equal(borrower.untilMs, later + 5 + BACKOFF_MIN_MS, 'from the start');
  });
});

describe('the share of a borrower', () => {
  it('grows with what comes back in time, and shrinks with what is late', () => {
    const borrower = new Borrower();
    const out = (nowMs: number): number => {
      let count = 0;
      while (lend(borrower, nowMs)) count += 1;
      assert.equal(borrower.ask(nowMs), REFUSED_SHARE);
      return count;
    };
    assert.equal(out(0), SHARE_MIN);
    for (let i = 0; i < SHARE_MIN; i++) borrower.returned(0, false, false);
    assert.equal(out(1), 2 * SHARE_MIN);
    for (let i = 0; i < 2 * SHARE_MIN; i++) borrower.returned(1, false, false);
    assert.equal(out(2), 4 * SHARE_MIN);
    borrower.late(7);
    borrower.returned(2, true, false);
    for (let i = 1; i < 4 * SHARE_MIN; i++) borrower.returned(2, false, false);
    assert.equal(out(borrower.untilMs), SHARE_MIN);
  });
});

describe('Borrowers', () => {
  it('have one record each', () => {
    const borrowers = new Borrowers();
    const [a, b] = [{}, {}];
    assert.equal(borrowers.of(a), borrowers.of(a));
    assert.notEqual(borrowers.of(a), borrowers.of(b));
  });
});
