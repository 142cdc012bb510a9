/** A transmit queue without frames: chains are taken, lent by hand, and reported. */
import assert from 'node:assert/strict';
import { ReleaseQueue } from '../../src/core/releases.ts';
import type { Ubuf } from '../../src/core/ubuf.ts';
import { type LedgerOptions, TxLedger } from '../../src/vhost/ledger.ts';
import { type RingFeatures, SplitQueue } from '../../src/vhost/queue.ts';
import { Borrowers } from '../../src/vhost/selector.ts';
import { MockDriver, PLAIN } from './vring.ts';

const piece = { address: 0x1000n, length: 60_000 };

export class Scene {
  readonly driver: MockDriver;
  queue: SplitQueue;
  readonly ledger: TxLedger;
  readonly port = {};
  /** Holders of the guest's memory. */
  held = 0;
  /** Calls of onWork. */
  work = 0;
  nowMs = 0;
  readonly #flushes: (() => void)[] = [];

  constructor(size = 256, features: RingFeatures = PLAIN, options: Partial<LedgerOptions> = {}, start = 0) {
    this.driver = new MockDriver(size, features, start);
    this.queue = new SplitQueue(this.driver.memory, size, features, start, start);
    this.ledger = new TxLedger(this.queue, this.memory(), {
      borrowers: new Borrowers(),
      onWork: () => {
        this.work += 1;
      },
      releases: new ReleaseQueue((flush) => this.#flushes.push(flush)),
      ...options,
    });
  }

  memory(): { hold(): void; release(): void } {
    return {
      hold: () => {
        this.held += 1;
      },
      release: () => {
        this.held -= 1;
      },
    };
  }

  /** The driver makes `count` chains, and the ledger takes them. Their slots. */
  take(count = 1): number[] {
    for (let i = 0; i < count; i++)
      assert.ok(this.driver.chain([piece]) >= 0, 'the driver has no descriptors');
    this.driver.show();
    const available = this.queue.available();
    assert.equal(available, count);
    return Array.from({ length: available }, () => {
      const slot = this.ledger.take(this.queue.peekHead(0));
      assert.ok(slot >= 0);
      return slot;
    });
  }

  lend(slot: number, borrower: object = this.port): Ubuf | null {
    return this.ledger.lend(slot, piece.length, borrower, this.nowMs);
  }

  /** Takes, lends and finishes one. */
  lent(borrower: object = this.port): [slot: number, ubuf: Ubuf] {
    const [slot] = this.take(1) as [number];
    const ubuf = this.lend(slot, borrower);
    assert.ok(ubuf !== null);
    this.ledger.finish(slot);
    return [slot, ubuf];
  }

  /** Takes and finishes `count`. */
  copied(count = 1): number[] {
    const slots = this.take(count);
    for (const slot of slots) this.ledger.finish(slot);
    return slots;
  }

  /** The last reference goes, and the owner hears of it. */
  release(ubuf: Ubuf, copied = false): void {
    if (copied) ubuf.copiedBytes = ubuf.byteLength;
    ubuf.unref();
    this.flush();
  }

  flush(): void {
    for (const flush of this.#flushes.splice(0)) flush();
  }

  /** Reports, and returns the heads that the driver then gets. */
  report(): number[] {
    const put = this.ledger.report(this.nowMs);
    this.queue.publish();
    const entries = this.driver.reap();
    assert.equal(entries.length, put);
    for (const [, length] of entries) assert.equal(length, 0);
    return entries.map(([head]) => head);
  }
}
