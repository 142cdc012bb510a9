/**
 * A TcpSocket over a simulated kernel, under any sequence of what a program and a peer can do. However it goes: the kernel gets
 * a prefix of what was written, in order; every callback and every promise is settled once; and none while the kernel reads
 * the memory that it is about. The program uses its memory for something else right afterwards.
 */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import fc from 'fast-check';
import { TcpSocket } from '../../src/net/socket.ts';
import type { TcpHandler } from '../../src/net/tcp.ts';
import { fillBytes, SIM_THRESHOLD_BYTES, SimChannel } from '../support/sim-channel.ts';

fc.configureGlobal({
  includeErrorInReport: true,
  ...(process.env.FC_SEED === undefined ? {} : { seed: Number(process.env.FC_SEED) }),
});

const T = SIM_THRESHOLD_BYTES;
const OVERWRITTEN = 0xee;

type Name =
  | 'write'
  | 'writeWithoutCallback'
  | 'send'
  | 'sendParts'
  | 'cork'
  | 'uncork'
  | 'pause'
  | 'resume'
  | 'end'
  | 'endWith'
  | 'destroy'
  | 'destroySoon'
  | 'resetAndDestroy'
  | 'peerResets'
  | 'peerIsGone'
  | 'room'
  | 'confirm'
  | 'confirmQuietly'
  | 'turn'
  | 'microtask';

interface Step {
  readonly name: Name;
  readonly bytes: number;
}

/** More of what goes on than of what ends it. */
const OFTEN: readonly Name[] = [
  ...(['write', 'write', 'write', 'write', 'send', 'send', 'writeWithoutCallback', 'sendParts'] as const),
  ...(['room', 'room', 'room', 'confirm', 'confirm', 'confirmQuietly', 'turn', 'turn', 'microtask'] as const),
  ...(['cork', 'uncork', 'uncork', 'pause', 'resume'] as const),
];
const LAST: readonly Name[] = [
  'end',
  'endWith',
  'destroy',
  'destroySoon',
  'resetAndDestroy',
  'peerResets',
  'peerIsGone',
];

const bytes = fc.constantFrom(0, 1, T - 1, T, T + 1, 5 * T, 80 * T);
const steps = fc
  .tuple(
    fc.array(fc.record<Step>({ name: fc.constantFrom(...OFTEN), bytes }), { maxLength: 30 }),
    fc.array(fc.record<Step>({ name: fc.constantFrom(...LAST, ...OFTEN), bytes }), { maxLength: 6 }),
  )
  .map(([first, last]) => [...first, ...last]);
const kernels = fc.record({
  seed: fc.integer(),
  limitPages: fc.constantFrom(-1, 0, 4, 40),
  refusedPercent: fc.constantFrom(0, 0, 10, 60),
});

/** Bytes that the program wrote, and what it heard of them. */
interface Wrote {
  readonly from: number;
  readonly parts: readonly Buffer[];
  readonly bytes: number;
  /** Undefined: it wants to hear nothing. */
  readonly heard: (Error | null)[] | undefined;
}

class Program {
  readonly channel: SimChannel;
  readonly socket: TcpSocket;
  readonly wrote: Wrote[] = [];
  readonly errors: Error[] = [];
  readonly faults: unknown[] = [];
  written = 0;
  /** Ended, or destroyed: what is written from now on is no part of the stream. */
  over = false;
  finished = false;
  closed = 0;
  gone = 0;

  constructor(channel: SimChannel) {
    this.channel = channel;
    const open = (_options: unknown, handler: TcpHandler) => {
      channel.handler = handler;
      return channel.asTcpChannel;
    };
    const remote = { address: '127.0.0.1', port: 2, family: 2, scopeId: 0 };
    const options = {
      paused: false,
      writableHighWaterMark: 4 * T,
      zerocopy: { mode: 'force', pin: true, thresholdBytes: T },
    } as const;
    this.socket = TcpSocket.accepted(open, remote, options, () => {
      this.gone += 1;
    });
    this.socket.on('error', (error) => this.errors.push(error));
    this.socket.on('drain', () => this.#everythingIsAccepted());
    this.socket.on('finish', () => {
      this.finished = true;
      this.#everythingIsAccepted();
    });
    this.socket.on('close', () => {
      this.closed += 1;
    });
  }

  step({ name, bytes }: Step): void | Promise<void> {
    const { socket, channel } = this;
    switch (name) {
      case 'write': {
        const wrote = this.#prepare([bytes], true);
        socket.write(wrote.parts[0]!, (error) => this.#settled(wrote, error ?? null));
        return;
      }
      case 'writeWithoutCallback':
        socket.write(this.#prepare([bytes], false).parts[0]!);
        return;
      case 'send':
        return this.#send(this.#prepare([bytes], true));
      case 'sendParts':
        return this.#send(this.#prepare([bytes, 3, T, bytes], true));
      case 'end':
        this.over = true;
        socket.end();
        return;
      case 'endWith': {
        const wrote = this.#prepare([bytes], false);
        this.over = true;
        socket.end(wrote.parts[0]!);
        return;
      }
      case 'destroy':
      case 'destroySoon':
      case 'resetAndDestroy':
        this.over = true;
        socket[name]();
        return;
      case 'peerResets':
        if (!channel.kernel.isDead) channel.kill();
        return;
      case 'peerIsGone':
        // No event yet: the next call is the first to hear of it.
        channel.kernel.isDead = true;
        return;
      case 'room':
        channel.makeRoom(bytes + 1);
        return;
      case 'confirm':
      case 'confirmQuietly':
        channel.confirm(name === 'confirm');
        return;
      case 'turn':
        return new Promise((resolve) => setImmediate(resolve));
      case 'microtask':
        return Promise.resolve();
      default:
        socket[name]();
    }
  }

  #prepare(sizes: readonly number[], isHeard: boolean): Wrote {
    const from = this.written;
    const counts = !this.over && this.socket.writable;
    const parts = sizes.map((size) => Buffer.allocUnsafeSlow(size));
    const bytes = sizes.reduce((sum, size) => sum + size, 0);
    let at = from;
    for (const part of parts) {
      fillBytes(part, at);
      at += part.length;
    }
    if (counts) this.written = at;
    const wrote = { from, parts, bytes: counts ? bytes : 0, heard: isHeard ? [] : undefined };
    this.wrote.push(wrote);
    return wrote;
  }

  #send(wrote: Wrote): void {
    const data = wrote.parts.length === 1 ? (wrote.parts[0]! as Buffer) : wrote.parts;
    this.socket.send(data).then(
      (outcome) => {
        this.#settled(wrote, outcome.bytes === wrote.bytes ? null : new Error(`${outcome.bytes} bytes`));
      },
      (error) => this.#settled(wrote, error),
    );
  }

  /** Checked at once, told by check(): an error thrown here would be the socket's. */
  #settled(wrote: Wrote, error: Error | null): void {
    try {
      this.#checkSettled(wrote, error);
    } catch (fault) {
      this.faults.push(fault);
    }
  }

  #checkSettled(wrote: Wrote, error: Error | null): void {
    assert.equal(wrote.heard?.length, 0, 'told twice');
    wrote.heard?.push(error);
    const { kernel } = this.channel;
    assert.ok(!kernel.reads(wrote.from, wrote.bytes), 'told while the kernel reads the memory');
    if (error === null) assert.ok(kernel.taken >= wrote.from + wrote.bytes, 'told before it was accepted');
    for (const part of wrote.parts) part.fill(OVERWRITTEN);
  }

  #everythingIsAccepted(): void {
    const { taken } = this.channel.kernel;
    // stream.Writable may still say 'drain' in the turn that follows a failure.
    if (this.socket.errored !== null) return;
    if (taken !== this.written || this.socket.bytesWritten !== this.written) {
      this.faults.push(new Error(`'drain' or 'finish' at ${taken} of ${this.written} bytes`));
    }
  }

  /** Lets everything come to its end. */
  async finish(): Promise<void> {
    while (this.socket.writableCorked > 0) this.socket.uncork();
    for (let i = 0; i < 2_000; i++) {
      this.channel.makeRoom(1 << 20);
      this.channel.confirm(true);
      await this.step({ name: 'turn', bytes: 0 });
      const idle = this.socket.destroyed || this.socket.writableLength === 0;
      if (idle && this.channel.engine.outstanding === 0 && (!this.socket.destroyed || this.closed > 0)) break;
    }
    await this.step({ name: 'turn', bytes: 0 });
  }

  check(): void {
    const { channel, socket } = this;
    for (const fault of this.faults) throw fault;
    assert.ok(channel.kernel.taken <= this.written);
    for (const { heard } of this.wrote) assert.equal(heard?.length ?? 1, 1, 'told once');
    if (!socket.destroyed) assert.equal(channel.kernel.taken, this.written);
    if (socket.destroyed) assert.deepEqual([this.closed, this.gone], [1, 1]);
    assert.equal(channel.ended !== null, socket.destroyed);
    assert.ok(this.errors.length <= 1, String(this.errors));
    assert.equal(channel.finSent, this.finished);
    const { lentBytes, fallbackBytes, pinnedBytes, unexpectedCompletions } = channel.counters;
    assert.equal(lentBytes + fallbackBytes, channel.kernel.taken);
    assert.deepEqual([pinnedBytes, unexpectedCompletions, channel.pagesCharged], [0, 0, 0]);
  }
}

it('any sequence of calls and events keeps the order, and settles everything once', {
  timeout: 60_000,
}, async () => {
  await fc.assert(
    fc.asyncProperty(kernels, steps, async (kernel, steps) => {
      const program = new Program(new SimChannel(kernel));
      for (const step of steps) await program.step(step);
      await program.finish();
      program.check();
      program.socket.destroy();
      await program.finish();
      program.check();
    }),
    { numRuns: 600 },
  );
});
