/** Turns and rests of queues, on an event loop of the test's own. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { type Polled, Poller } from '../../src/vhost/poller.ts';

/** An event loop: one round at a time. */
class Loop {
  readonly poller: Poller;
  #next: (() => void) | null = null;

  constructor() {
    this.poller = new Poller((round) => {
      assert.equal(this.#next, null, 'one round is scheduled at a time');
      this.#next = round;
    });
  }

  get isIdle(): boolean {
    return this.#next === null;
  }

  round(): void {
    const next = this.#next;
    this.#next = null;
    next?.();
  }
}

/** A queue with so many turns of work. */
class Work implements Polled {
  readonly device: object;
  turns = 0;
  rests = 0;
  left: number;
  readonly #onTurn: () => void;

  constructor(left: number, onTurn: () => void = () => {}, device: object = {}) {
    this.device = device;
    this.left = left;
    this.#onTurn = onTurn;
  }

  turn(): boolean {
    this.turns += 1;
    this.#onTurn();
    if (this.left === 0) return false;
    this.left -= 1;
    return true;
  }

  rest(): boolean {
    this.rests += 1;
    return false;
  }
}

describe('turns', () => {
  it('one queue has several before the event loop has its own; many have one each', () => {
    for (const [count, expected] of [
      [1, 4],
      [2, 2],
      [3, 2],
      [4, 1],
      [9, 1],
    ] as const) {
      const loop = new Loop();
      const queues = Array.from({ length: count }, () => new Work(100));
      for (const queue of queues) loop.poller.wake(queue);
      loop.round();
      assert.deepEqual(
        queues.map(({ turns }) => turns),
        queues.map(() => expected),
      );
    }
  });

  it('a queue without work is asked once a round, and rests after eight', () => {
    const loop = new Loop();
    const queue = new Work(1);
    loop.poller.wake(queue);
    loop.round();
    assert.equal(queue.turns, 2, 'one with work, and one that finds no more');
    for (let i = 0; i < 7; i++) loop.round();
    assert.deepEqual([queue.turns, queue.rests], [9, 0]);
    loop.round();
    assert.deepEqual([queue.turns, queue.rests], [10, 1]);
    assert.ok(loop.isIdle);
    loop.poller.wake(queue);
    assert.ok(!loop.isIdle);
  });

  it('a turn may remove its queue, wake another, or throw: the others go on', () => {
    const loop = new Loop();
    const other = new Work(100);
    const removed: Work = new Work(100, () => loop.poller.remove(removed));
    const waking = new Work(100, () => loop.poller.wake(other));
    loop.poller.wake(removed);
    loop.poller.wake(waking);
    loop.round();
    loop.round();
    assert.equal(removed.turns, 1);
    assert.ok(other.turns > 0);
    const faulty = new Work(100, () => {
      throw new Error('a receiver');
    });
    loop.poller.wake(faulty);
    const before = other.turns;
    assert.throws(() => loop.round(), /a receiver/);
    loop.poller.remove(faulty);
    loop.round();
    assert.ok(other.turns > before);
  });

  it('are of devices: one with sixteen queues has as many as one with a single queue', () => {
    const loop = new Loop();
    const [many, single] = [{}, {}];
    const queues = Array.from({ length: 16 }, () => new Work(1000, () => {}, many));
    const other = new Work(1000, () => {}, single);
    for (const queue of [...queues, other]) loop.poller.wake(queue);
    for (let i = 0; i < 64; i++) loop.round();
    const turns = queues.map((queue) => queue.turns);
    assert.equal(other.turns, 128);
    assert.deepEqual(
      turns,
      turns.map(() => 8),
      'each of its queues in turn',
    );
  });

  it('of a device go to those of its queues that have work; the others rest', () => {
    const loop = new Loop();
    const device = {};
    const idle = Array.from({ length: 5 }, () => new Work(0, () => {}, device));
    const busy = [new Work(1000, () => {}, device), new Work(1000, () => {}, device)];
    const other = new Work(1000);
    for (const queue of [...idle, ...busy, other]) loop.poller.wake(queue);
    for (let i = 0; i < 20; i++) loop.round();
    assert.deepEqual(
      idle.map(({ rests }) => rests),
      [1, 1, 1, 1, 1],
    );
    assert.ok(
      idle.every(({ turns }) => turns >= 8 && turns <= 20),
      `${idle.map(({ turns }) => turns)}`,
    );
    assert.deepEqual(
      [...busy, other].map(({ turns }) => turns),
      [20, 20, 40],
    );
  });

  it('may remove queues of their own device, also the last', () => {
    const loop = new Loop();
    const device = {};
    const queues: Work[] = [];
    for (let i = 0; i < 3; i++) {
      const queue: Work = new Work(
        100,
        () => {
          for (const one of queues) loop.poller.remove(one);
        },
        device,
      );
      queues.push(queue);
      loop.poller.wake(queue);
    }
    loop.round();
    assert.ok(loop.isIdle);
    assert.equal(
      queues.reduce((sum, { turns }) => sum + turns, 0),
      1,
    );
    for (const queue of queues) loop.poller.wake(queue);
    loop.round();
    assert.equal(
      queues.reduce((sum, { turns }) => sum + turns, 0),
      2,
    );
  });
});
