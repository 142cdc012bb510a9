/** The outgoing end by itself, over a simulated kernel: whatever that does, the stream is right and memory comes back once. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import fc from 'fast-check';
import { releases } from '../../src/core/releases.ts';
import type { Outcome } from '../../src/core/ubuf.ts';
import { Outgoing, Piece, TAKEN, type Ticket } from '../../src/net/outgoing.ts';
import { fillBytes, SIM_THRESHOLD_BYTES, SimChannel } from '../support/sim-channel.ts';

fc.configureGlobal({
  includeErrorInReport: true,
  ...(process.env.FC_SEED === undefined ? {} : { seed: Number(process.env.FC_SEED) }),
});

const OVERWRITTEN = 0xee;

type Memory = 'safe' | 'borrowed' | 'foreign';

interface Chunk {
  readonly bytes: number;
  readonly memory: Memory;
  readonly hasTicket: boolean;
}

interface Step {
  readonly name: 'batch' | 'room' | 'confirm' | 'confirmQuietly';
  readonly chunks: readonly Chunk[];
  readonly bytes: number;
}

const T = SIM_THRESHOLD_BYTES;
const chunk = fc.record({
  bytes: fc.constantFrom(0, 1, T - 1, T, T + 1, 5 * T, 40 * T),
  memory: fc.constantFrom<Memory>('safe', 'borrowed', 'foreign'),
  hasTicket: fc.boolean(),
});
const step = fc.record<Step>({
  name: fc.constantFrom('batch', 'batch', 'room', 'confirm', 'confirmQuietly'),
  chunks: fc.array(chunk, { maxLength: 80, size: 'max' }),
  bytes: fc.integer({ min: 1, max: 60 * T }),
});

/** One chunk of the stream and what became of it. */
class Sent {
  readonly from: number;
  readonly bytes: Buffer;
  readonly outcomes: Outcome[] = [];
  readonly failures: Error[] = [];
  lent = 0;
  givenBack = 0;

  constructor(from: number, bytes: number) {
    this.from = from;
    this.bytes = Buffer.allocUnsafeSlow(bytes);
    fillBytes(this.bytes, from);
  }
}

class Model {
  readonly channel: SimChannel;
  readonly outgoing: Outgoing;
  readonly sent: { chunk: Chunk; is: Sent }[] = [];
  readonly dones: (Error | null)[] = [];
  readonly #byMemory = new Map<ArrayBufferLike, { chunk: Chunk; is: Sent }>();
  batches = 0;
  written = 0;

  constructor(channel: SimChannel) {
    this.channel = channel;
    this.outgoing = new Outgoing(channel, (view) => {
      const { chunk, is } = this.#byMemory.get(view.buffer) as { chunk: Chunk; is: Sent };
      assert.notEqual(chunk.memory, 'safe', 'needs no protection');
      if (chunk.memory === 'foreign') return null;
      is.lent += 1;
      return { view, giveBack: () => this.#givenBack(is) };
    });
    channel.handler.writable = () => {
      if (this.outgoing.busy) assert.ok(this.outgoing.flush() <= 0);
    };
  }

  batch(chunks: readonly Chunk[]): number {
    if (this.outgoing.busy) return 0;
    for (const one of chunks) {
      const is = new Sent(this.written, one.bytes);
      this.written += one.bytes;
      this.sent.push({ chunk: one, is });
      this.#byMemory.set(is.bytes.buffer, { chunk: one, is });
      const ticket: Ticket = {
        failed: (error) => is.failures.push(error),
        quarantined: () => assert.fail('nothing was closed'),
        released: (outcome) => this.#released(is, outcome),
      };
      this.outgoing.add(new Piece(is.bytes, one.bytes, one.hasTicket ? ticket : null, one.memory === 'safe'));
    }
    this.batches += 1;
    return this.outgoing.begin((error) => {
      this.dones.push(error);
      if (error === null)
        assert.equal(this.channel.kernel.taken, this.written, 'accepted is accepted by the kernel');
    });
  }

  #released(is: Sent, outcome: Outcome): void {
    assert.equal(is.outcomes.length, 0, 'released twice');
    const isAccepted = this.channel.kernel.taken >= is.from + outcome.bytes;
    assert.equal(is.failures.length, isAccepted ? 0 : 1, 'it fails if it was not accepted');
    is.outcomes.push(outcome);
    this.#free(is);
  }

  #givenBack(is: Sent): void {
    is.givenBack += 1;
    this.#free(is);
  }

  /** The owner uses its memory again at once. */
  #free(is: Sent): void {
    assert.ok(!this.channel.kernel.reads(is.from, is.bytes.length), 'released while the kernel reads it');
    if (is.bytes.length > 0) is.bytes.fill(OVERWRITTEN);
  }

  /** Everything is accepted and confirmed. */
  finish(): void {
    for (let i = 0; this.outgoing.busy; i++) {
      assert.ok(i < 100_000, 'makes no progress');
      this.channel.makeRoom(1 << 20);
      this.channel.confirm(true);
    }
    for (let i = 0; this.channel.engine.outstanding > 0; i++) {
      assert.ok(i < 100_000, 'not confirmed');
      this.channel.confirm(true);
    }
    releases.flush();
  }

  check(): void {
    const { channel } = this;
    assert.equal(this.dones.length, this.batches);
    for (const { chunk: one, is } of this.sent) {
      assert.equal(is.outcomes.length, one.hasTicket ? 1 : 0);
      assert.equal(is.givenBack, is.lent, 'protection ends once for each time that it began');
      assert.ok(is.lent <= 1);
    }
    const { lentBytes, fallbackBytes, pinnedBytes, unexpectedCompletions } = channel.counters;
    assert.equal(lentBytes + fallbackBytes, channel.kernel.taken);
    assert.deepEqual([pinnedBytes, unexpectedCompletions, channel.pagesCharged], [0, 0, 0]);
  }
}

const options = fc.record({
  seed: fc.integer(),
  limitPages: fc.constantFrom(-1, 0, 4, 40),
  refusedPercent: fc.constantFrom(0, 0, 10, 60),
});

function run(model: Model, steps: readonly Step[]): void {
  for (const { name, chunks, bytes } of steps) {
    if (name === 'batch') assert.ok(model.batch(chunks) <= 0);
    else if (name === 'room') model.channel.makeRoom(bytes);
    else model.channel.confirm(name === 'confirm');
    releases.flush();
  }
}

it('all batches arrive in order, and each chunk is released once, when the kernel has let go of it', () => {
  fc.assert(
    fc.property(options, fc.array(step, { maxLength: 30 }), (options, steps) => {
      const model = new Model(new SimChannel(options));
      run(model, steps);
      model.finish();
      model.check();
      assert.equal(model.channel.kernel.taken, model.written);
      for (const { chunk: one, is } of model.sent) {
        const [outcome] = is.outcomes;
        if (outcome === undefined) continue;
        assert.equal(outcome.bytes, one.bytes);
        if (one.memory === 'foreign') assert.equal(outcome.copiedBytes, one.bytes);
      }
    }),
    { numRuns: 150 },
  );
});

it('a connection that is gone gives back what was not accepted at once, and the rest when the kernel does', () => {
  fc.assert(
    fc.property(options, fc.array(step, { maxLength: 20 }), fc.boolean(), (options, steps, dead) => {
      const model = new Model(new SimChannel(options));
      run(model, steps);
      if (dead) model.channel.kernel.isDead = true;
      model.batch([{ bytes: 5 * T, memory: 'safe', hasTicket: true }]);
      const wasBusy = model.outgoing.busy;
      const failure = new Error('gone');
      model.outgoing.abandon(failure);
      model.outgoing.abandon(failure);
      assert.equal(model.outgoing.busy, false);
      if (wasBusy) assert.equal(model.dones.at(-1), failure);
      releases.flush();
      model.finish();
      model.check();
      assert.ok(model.channel.kernel.taken <= model.written);
    }),
    { numRuns: 150 },
  );
});

it('memory that is taken away while it waits stops the stream in front of it', () => {
  fc.assert(
    fc.property(
      options,
      fc.array(chunk, { maxLength: 20 }),
      fc.nat(),
      fc.nat(),
      (options, before, roomA, roomB) => {
        const model = new Model(new SimChannel(options));
        model.channel.makeRoom(roomA % (50 * T));
        const victim: Chunk = { bytes: 3 * T, memory: 'foreign', hasTicket: true };
        model.batch([...before, victim, { bytes: T, memory: 'safe', hasTicket: true }]);
        const { is } = model.sent.at(-2) as { is: Sent };
        if (!model.outgoing.busy || model.channel.kernel.taken >= is.from + is.bytes.length) return;
        structuredClone(is.bytes.buffer, { transfer: [is.bytes.buffer as ArrayBuffer] });
        assert.equal(is.bytes.length, 0);
        let result = 0;
        for (let i = 0; result === 0 && i < 10_000; i++) {
          model.channel.kernel.room += T + (roomB % T);
          model.channel.writable = true;
          result = model.outgoing.flush();
        }
        assert.equal(result, TAKEN);
        assert.ok(model.channel.kernel.taken < is.from + 3 * T, 'nothing behind it was sent');
        model.outgoing.abandon(new Error('taken'));
        model.finish();
      },
    ),
    { numRuns: 150 },
  );
});
