/**
 * Message numbers while their rule is in doubt (rds/doubts.ts), against models of the peers that they may come from: each comes on one
 * connection after the other, loses them, and repeats what was not acknowledged.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { ReleaseQueue } from '../../src/core/releases.ts';
import { rdsCounters } from '../../src/rds/counters.ts';
import { LanesDoubt, ProcessDoubt } from '../../src/rds/doubts.ts';
import { BufferPool, ReceiveBuffer } from '../../src/rds/memory.ts';
import type { LaneReceiver } from '../../src/rds/receiver.ts';
import { Expectation, type SequenceRule } from '../../src/rds/sequence.ts';
import type { Arrival, ViewsHost } from '../../src/rds/two-views.ts';

const LANES = 8;

/** One connection: its source port, what is new on it, and what of all comes, and is acknowledged, before it is lost. */
const connection = fc.record({
  port: fc.integer({ min: 1, max: 65_535 }),
  news: fc.nat(4),
  cutBehind: fc.nat(9),
  acked: fc.nat(8),
});
const connections = fc.array(connection, { minLength: 1, maxLength: 6 });
type Connection = typeof connection extends fc.Arbitrary<infer T> ? T : never;

/** Of several lanes, or of the only one. */
const lanesHistory = fc.record({
  hasSeveral: fc.boolean(),
  bases: fc.array(fc.nat(20), { minLength: LANES, maxLength: LANES }),
  connections,
  /** Before which connection a probe tells. */
  toldBefore: fc.nat(7),
});
type LanesHistory = typeof lanesHistory extends fc.Arbitrary<infer T> ? T : never;

/** Of a process that we knew, and perhaps of one behind it. */
const processesHistory = fc.record({
  known: connections,
  next: fc.option(fc.record({ base: fc.nat(20), connections })),
});
type ProcessesHistory = typeof processesHistory extends fc.Arbitrary<infer T> ? T : never;

/** A lane of the peer, by the numbers of its messages. */
class SendingLane {
  next: number;
  /** Behind the last that has come. */
  end: number;
  unacked: number[] = [];

  constructor(base: number) {
    this.next = base;
    this.end = base;
  }

  /** What goes over a connection: all but the first `repeated` for the first time. `isLast`: it is not lost. */
  over(
    { news, cutBehind, acked }: Connection,
    isLast: boolean,
  ): { seqs: number[]; repeated: number; isWhole: boolean } {
    const repeated = this.unacked.length;
    for (let i = 0; i < news; i++) this.unacked.push(this.next++);
    const came = isLast ? this.unacked.length : Math.min(cutBehind, this.unacked.length);
    const seqs = this.unacked.slice(0, came);
    this.end = Math.max(this.end, ...seqs.map((seq) => seq + 1));
    this.unacked.splice(0, Math.min(acked, came));
    return { seqs, repeated, isWhole: isLast || cutBehind > came };
  }
}

class Scene {
  heldBytes = 0;
  readonly counters = rdsCounters();
  readonly arrived: { readonly sender: number; readonly seq: number }[] = [];
  readonly receiver: { rule: SequenceRule } = { rule: new Expectation() };
  readonly host: ViewsHost;
  doubt: LanesDoubt | ProcessDoubt | null = null;
  readonly buffers: ReceiveBuffer[] = [];
  #timer: (() => void) | null = null;
  readonly #pool = new BufferPool(0);
  readonly #releases = new ReleaseQueue((flush) => flush());

  constructor() {
    const held = (deltaBytes: number): void => {
      this.heldBytes += deltaBytes;
    };
    const source = { address: '10.0.0.1', held };
    const timer: ViewsHost['timer'] = (task) => {
      this.#timer = task;
      return {
        cancel: () => {
          this.#timer = null;
        },
      };
    };
    this.host = { source, counters: this.counters, timer, pass: this.#pass };
  }

  /** Message `seq` of `sender`, as receiver and peer treat it. */
  receive(sender: number, seq: number, flagged: boolean): void {
    if (this.receiver.rule.isDuplicate(0, seq, flagged)) return;
    const buffer = new ReceiveBuffer(this.#pool.acquire(4096), this.#pool, this.#releases);
    this.buffers.push(buffer);
    const arrival = { sport: sender, dport: seq, payload: { buffer, offset: 0, length: 0 } };
    if (this.doubt?.views.isHolding) this.doubt.views.hold(arrival);
    else this.#pass(arrival);
    buffer.unref();
  }

  lanes(port: number): LanesDoubt {
    const peer = { count: LANES, hasSeveral: null, port };
    const doubt = new LanesDoubt(this.host, this.receiver as LaneReceiver, peer);
    this.doubt = doubt;
    return doubt;
  }

  reconnects(): void {
    this.doubt ??= new ProcessDoubt(this.host, this.receiver as LaneReceiver);
  }

  toldProcess(hasRestarted: boolean): void {
    (this.doubt as ProcessDoubt | null)?.told(hasRestarted);
    this.doubt = null;
  }

  /** It was waited for long enough. */
  waited(): void {
    const task = this.#timer;
    this.#timer = null;
    task?.();
  }

  from(sender: number): number[] {
    return this.arrived.filter((message) => message.sender === sender).map(({ seq }) => seq);
  }

  checkEnd(): void {
    assert.equal(this.heldBytes, 0);
    assert.ok(this.buffers.every(({ refs }) => refs === 0));
  }

  readonly #pass = ({ sport, dport }: Arrival): void => {
    this.arrived.push({ sender: sport, seq: dport });
  };
}

function upTo(from: number, end: number): number[] {
  return Array.from({ length: end - from }, (_, i) => from + i);
}

/** `ends` the doubt on the way, and at the end once more. Returns the peer's lanes as they are then. */
function runLanes(scene: Scene, given: LanesHistory, ends: (doubt: LanesDoubt) => void): SendingLane[] {
  const { hasSeveral, bases, toldBefore } = given;
  const lanes = bases.map((base) => new SendingLane(base));
  const doubt = scene.lanes(0);
  for (const [i, one] of given.connections.entries()) {
    if (i === toldBefore) ends(doubt);
    doubt.comesFrom(one.port);
    const index = hasSeveral ? one.port % LANES : 0;
    const { seqs, repeated } = (lanes[index] as SendingLane).over(one, i === given.connections.length - 1);
    for (const [n, seq] of seqs.entries()) scene.receive(index, seq, n < repeated);
  }
  ends(doubt);
  return lanes;
}

describe('while nobody knows how many lanes there are', () => {
  it('messages come once, and in order, when the peer has told', () => {
    fc.assert(
      fc.property(lanesHistory, (given) => {
        const scene = new Scene();
        const lanes = runLanes(scene, given, (doubt) => doubt.told(given.hasSeveral));
        for (const [i, base] of given.bases.entries())
          assert.deepEqual(scene.from(i), upTo(base, (lanes[i] as SendingLane).end));
        const count = given.hasSeveral ? LANES : 1;
        const current = (given.connections.at(-1) as Connection).port % count;
        const { next } = (scene.doubt as LanesDoubt).end(count, current).get(current) as SequenceRule;
        const end = (lanes[current] as SendingLane).end;
        // A rule that has heard of nothing expects anything.
        if (scene.from(current).length > 0) assert.equal(next.lo, end);
        scene.checkEnd();
      }),
    );
  });

  it('nothing is lost when it is time to guess', () => {
    fc.assert(
      fc.property(lanesHistory, (given) => {
        const scene = new Scene();
        const lanes = runLanes(scene, given, () => scene.waited());
        for (const [i, base] of given.bases.entries()) {
          const seqs = new Set(scene.from(i));
          for (const seq of upTo(base, (lanes[i] as SendingLane).end))
            assert.ok(seqs.has(seq), `${i}: ${seq}`);
        }
        scene.checkEnd();
      }),
    );
  });

  it('nothing is held on which the views agree', () => {
    const scene = new Scene();
    const doubt = scene.lanes(3);
    scene.receive(0, 5, true);
    doubt.comesFrom(4);
    scene.receive(0, 6, false);
    scene.receive(0, 6, true);
    assert.deepEqual([scene.arrived.length, scene.counters.recv_held_unclear], [2, 0]);
    doubt.comesFrom(3);
    scene.receive(0, 6, true);
    scene.receive(0, 7, false);
    assert.deepEqual([scene.arrived.length, scene.counters.recv_held_unclear], [2, 2]);
    doubt.told(false);
    assert.deepEqual([scene.from(0), scene.counters.recv_drop_old_seq], [[5, 6, 7], 1]);
  });
});

/** The connections of one process; its probe is behind all that it sends again and some of what is new. */
function runProcess(
  scene: Scene,
  sender: number,
  lane: SendingLane,
  given: readonly Connection[],
  isNew: boolean,
): void {
  let hasTold = false;
  for (const [i, one] of given.entries()) {
    scene.reconnects();
    const { seqs, repeated, isWhole } = lane.over(one, i === given.length - 1);
    for (const [n, seq] of seqs.entries()) scene.receive(sender, seq, n < repeated);
    if (!isWhole) continue;
    scene.toldProcess(isNew && !hasTold);
    hasTold = true;
  }
}

function runProcesses(scene: Scene, { known, next }: ProcessesHistory): SendingLane[] {
  const first = new SendingLane(1_000);
  runProcess(scene, 0, first, known, false);
  if (next === null) return [first];
  const second = new SendingLane(next.base);
  runProcess(scene, 1, second, next.connections, true);
  return [first, second];
}

describe('while nobody knows whether the peer has started again', () => {
  it('messages of either process come once, and in order', () => {
    fc.assert(
      fc.property(processesHistory, (given) => {
        const scene = new Scene();
        const [first, second] = runProcesses(scene, given) as [SendingLane, SendingLane | undefined];
        assert.deepEqual(scene.from(0), upTo(1_000, first.end));
        if (second !== undefined) assert.deepEqual(scene.from(1), upTo(given.next?.base ?? 0, second.end));
        const last = second ?? first;
        if (scene.from(second === undefined ? 0 : 1).length > 0)
          assert.equal(scene.receiver.rule.next.lo, last.end);
        scene.checkEnd();
      }),
    );
  });

  it('what is new by its number is not held', () => {
    const scene = new Scene();
    scene.receive(0, 5, false);
    scene.reconnects();
    scene.receive(0, 6, true);
    assert.deepEqual([scene.from(0), scene.counters.recv_held_unclear], [[5, 6], 0]);
    scene.receive(0, 4, true);
    assert.deepEqual([scene.from(0), scene.counters.recv_held_unclear], [[5, 6], 0], 'old by either');
    scene.toldProcess(false);
    scene.reconnects();
    scene.receive(0, 3, true);
    scene.receive(0, 4, true);
    assert.deepEqual([scene.from(0), scene.counters.recv_held_unclear], [[5, 6], 2]);
    scene.toldProcess(true);
    assert.deepEqual([scene.from(0), scene.receiver.rule.next.lo], [[5, 6, 3, 4], 5]);
  });
});
