/**
 * The numbers of a peer that may have several lanes or one, against a model of either: it knew our former process, comes on one
 * connection after the other, loses them, and repeats what was not acknowledged.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { ReleaseQueue } from '../../src/core/releases.ts';
import { rdsCounters } from '../../src/rds/counters.ts';
import { type Arrival, FirstContact } from '../../src/rds/first-contact.ts';
import { BufferPool, ReceiveBuffer } from '../../src/rds/memory.ts';

const LANES = 8;

/** One connection: its source port, what comes of its lane, and what of that is acknowledged before the connection is lost. */
const connection = fc.record({
  port: fc.integer({ min: 1, max: 65_535 }),
  news: fc.nat(4),
  cutBehind: fc.nat(8),
  acked: fc.nat(8),
});

const history = fc.record({
  hasSeveral: fc.boolean(),
  bases: fc.array(fc.nat(20), { minLength: LANES, maxLength: LANES }),
  connections: fc.array(connection, { minLength: 1, maxLength: 6 }),
  /** Before which connection it is told what the peer has. */
  decidedBefore: fc.nat(7),
});

type History = typeof history extends fc.Arbitrary<infer T> ? T : never;

/** A lane of the peer, by the numbers of its messages. */
class SendingLane {
  next: number;
  unacked: number[] = [];
  sent = 0;

  constructor(base: number) {
    this.next = base;
  }
}

class Scene {
  heldBytes = 0;
  readonly counters = rdsCounters();
  readonly arrived: { readonly lane: number; readonly seq: number }[] = [];
  readonly contact: FirstContact;
  readonly #pool = new BufferPool(0);
  readonly #releases = new ReleaseQueue((flush) => flush());
  readonly buffers: ReceiveBuffer[] = [];

  constructor() {
    this.contact = new FirstContact(
      { source: { address: '10.0.0.1', held: this.#held }, lanes: LANES, hasSeveral: null },
      this.counters,
      { pass: this.#pass, timer: () => ({ cancel: () => {} }) },
    );
  }

  /** Message `seq` of `lane`, which say so themselves, as receiver and peer treat it. */
  receive(lane: number, seq: number, flagged: boolean): void {
    if (this.contact.isDuplicate(0, seq, flagged)) return;
    const buffer = new ReceiveBuffer(this.#pool.acquire(4096), this.#pool, this.#releases);
    this.buffers.push(buffer);
    const arrival = { sport: lane + 1, dport: seq + 1, payload: { buffer, offset: 0, length: 0 } };
    if (this.contact.isHolding) this.contact.hold(arrival);
    else this.#pass(arrival);
    buffer.unref();
  }

  readonly #pass = ({ sport, dport }: Arrival): void => {
    this.arrived.push({ lane: sport - 1, seq: dport - 1 });
  };

  readonly #held = (deltaBytes: number): void => {
    this.heldBytes += deltaBytes;
  };
}

/** Where each lane of the peer got to. */
function run(scene: Scene, given: History, told: boolean): number[] {
  const { hasSeveral, bases, connections, decidedBefore } = given;
  const lanes = bases.map((base) => new SendingLane(base));
  for (const [i, { port, news, cutBehind, acked }] of connections.entries()) {
    if (i === decidedBefore) scene.contact.decide(told);
    scene.contact.comesFrom(port);
    const index = hasSeveral ? port % LANES : 0;
    const lane = lanes[index] as SendingLane;
    const repeated = lane.unacked.length;
    for (let n = 0; n < news; n++) lane.unacked.push(lane.next++);
    // The last connection is not lost.
    const came =
      i === connections.length - 1 ? lane.unacked.length : Math.min(cutBehind, lane.unacked.length);
    for (const [n, seq] of lane.unacked.slice(0, came).entries()) {
      scene.receive(index, seq, n < repeated);
      lane.sent = Math.max(lane.sent, seq + 1);
    }
    // What was never written is new when it is sent; what came may or may not be acknowledged.
    lane.unacked.splice(0, Math.min(acked, came));
  }
  scene.contact.decide(told);
  return lanes.map(({ sent }) => sent);
}

describe('numbers at first contact', () => {
  it('are taken rightly once the peer has told: every message once, and in order', () => {
    fc.assert(
      fc.property(history, (given) => {
        const scene = new Scene();
        const ends = run(scene, given, given.hasSeveral);
        for (const [lane, base] of given.bases.entries()) {
          const seqs = scene.arrived.filter((message) => message.lane === lane).map(({ seq }) => seq);
          const end = Math.max(base, ends[lane] as number);
          assert.deepEqual(
            seqs,
            Array.from({ length: end - base }, (_, i) => base + i),
          );
        }
        assert.equal(scene.heldBytes, 0);
        assert.ok(scene.buffers.every(({ refs }) => refs === 0));
      }),
    );
  });

  it('lose nothing when it is time to guess', () => {
    fc.assert(
      fc.property(history, (given) => {
        const scene = new Scene();
        const ends = run(scene, given, true);
        for (const [lane, base] of given.bases.entries()) {
          const seqs = new Set(
            scene.arrived.filter((message) => message.lane === lane).map(({ seq }) => seq),
          );
          for (let seq = base; seq < (ends[lane] as number); seq++)
            assert.ok(seqs.has(seq), `${lane}: ${seq}`);
        }
      }),
    );
  });

  it('hold nothing back on which the views agree', () => {
    const scene = new Scene();
    scene.contact.comesFrom(3);
    scene.receive(0, 5, true);
    scene.contact.comesFrom(4);
    scene.receive(0, 6, false);
    scene.receive(0, 6, true);
    assert.deepEqual([scene.arrived.length, scene.counters.recv_held_unclear], [2, 0]);
    scene.contact.comesFrom(3);
    scene.receive(0, 6, true);
    scene.receive(0, 7, false);
    assert.deepEqual([scene.arrived.length, scene.counters.recv_held_unclear], [2, 2]);
    scene.contact.decide(false);
    assert.deepEqual([scene.arrived.map(({ seq }) => seq), scene.counters.recv_drop_old_seq], [[5, 6, 7], 1]);
  });
});
