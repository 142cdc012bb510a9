/**
 * A port with a bad line: loses, delays, reorders, repeats and damages frames, and limits their rate, each direction on its own.
 * What the seed brings about once it brings about again, on virtual time to the frame.
 *
 * A direction with faults copies every frame and takes all that is offered, as a network does: its queue drops, it does not push back.
 * So a port with tx faults is not one to lend to. A direction without is passed through untouched.
 *
 * Frames that are still to be segmented count as one frame: one draw of the dice for 64 KiB. Take the offloads away from the guest for
 * the wire's statistics.
 */
import { checkInteger, checkObject } from '../../core/arguments.ts';
import type { Clock } from '../../core/clock.ts';
import { FRAME_BYTES, FRAME_WORDS, type FrameTable } from '../../core/frames.ts';
import { everyFrame } from '../../core/host-table.ts';
import { type Capability, type Port, type PortCounters, portCounters } from '../../core/port.ts';
import { type FaultCounters, FaultPath, type Faults } from './fault-path.ts';
import { Prng } from './prng.ts';
import { Wrapper } from './wrapper.ts';

export interface FaultOptions {
  readonly clock: Clock;
  /** 1 unless told. */
  readonly seed?: number;
  /** Of frames that are sent to the port. */
  readonly tx?: Faults;
  /** Of frames that come out of it. */
  readonly rx?: Faults;
}

export class FaultPort extends Wrapper {
  readonly #tx: FaultPath | null;
  readonly #rx: FaultPath | null;
  readonly #counters: PortCounters = portCounters();
  #lent: Capability | null = null;
  #capability: Capability | null = null;

  constructor(inner: Port, options: FaultOptions) {
    checkObject('options', options);
    super(inner);
    const { clock, seed = 1, tx, rx } = options;
    checkInteger('seed', seed, 0, 0xffff_ffff);
    this.#tx =
      tx === undefined ? null : new FaultPath(tx, clock, new Prng(seed), (table) => this.#transmit(table));
    this.#rx =
      rx === undefined ? null : new FaultPath(rx, clock, new Prng(~seed), (table) => super.received(table));
  }

  override get capability(): Capability {
    const { capability } = this.inner;
    if (this.#tx === null) return capability;
    if (this.#lent !== capability || this.#capability === null) {
      this.#lent = capability;
      this.#capability = { ...capability, zeroCopy: 'never' };
    }
    return this.#capability;
  }

  /** Frames before anything happened to them. */
  override get counters(): PortCounters {
    return this.#counters;
  }

  /** What happened to frames; null for a direction without faults. */
  get faults(): { readonly tx: FaultCounters | null; readonly rx: FaultCounters | null } {
    return { tx: this.#tx?.counters ?? null, rx: this.#rx?.counters ?? null };
  }

  /** Frames that are on their way. */
  get held(): { readonly tx: number; readonly rx: number } {
    return { tx: this.#tx?.held ?? 0, rx: this.#rx?.held ?? 0 };
  }

  override send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    if (this.#tx === null) return super.send(table, which, from, count);
    for (let i = from; i < count; i++) {
      const frame = which[i]!;
      this.counters.txFrames += 1;
      this.counters.txBytes += table.records[frame * FRAME_WORDS + FRAME_BYTES]!;
      this.#tx.take(table, frame);
    }
    this.#tx.pump();
    return count;
  }

  override resume(): void {
    if (this.#rx === null) super.resume();
    else this.#rx.wake();
  }

  override close(): Promise<void> {
    this.#tx?.close();
    this.#rx?.close();
    return super.close();
  }

  protected override received(table: FrameTable): number {
    if (this.#rx === null) return super.received(table);
    for (let frame = 0; frame < table.count; frame++) {
      this.counters.rxFrames += 1;
      this.counters.rxBytes += table.records[frame * FRAME_WORDS + FRAME_BYTES]!;
      this.#rx.take(table, frame);
    }
    this.#rx.pump();
    return table.count;
  }

  protected override writable(): void {
    if (this.#tx === null) super.writable();
    else this.#tx.wake();
  }

  #transmit(table: FrameTable): number {
    return this.inner.send(table, everyFrame, 0, table.count);
  }
}

/** `port` with a bad line to it. Throws for options that make no sense, and `ZTX_PORT_TAKEN` for a port that is joined. */
export function withFaults(port: Port, options: FaultOptions): FaultPort {
  return new FaultPort(port, options);
}
