/**
 * One send of a UDP socket, from the call to the release of its memory: a datagram, or a payload that is cut into many.
 *
 *   waiting ── calls ──▶ ended ── the kernel lets go ──▶ released: the owner is told, once
 *      │ error, abort      │ abort, quarantine
 *      └──▶ ended          └──▶ told ZTX_STILL_LENT at once; its `released` says when the memory is free
 *
 * Memory is borrowed when the first call is about to lend it, not before: a send that is copied changes nothing about it.
 */
import { ZerotxError } from '../core/errors.ts';
import { releases } from '../core/releases.ts';
import { StillLentError } from '../core/still-lent.ts';
import { type Outcome, Ubuf } from '../core/ubuf.ts';
import { type Borrowed, borrow } from './lending.ts';
import { PieceCursor } from './segments.ts';

const NOT_IN_TIME = 'the kernel did not let go of the memory in time';

export interface TransmissionOptions {
  /** 0: all of it is one datagram. */
  readonly segmentBytes: number;
  /** Told once, when the memory is the owner's again or when nobody waits any longer. Null: nobody wants to know. */
  readonly tell: ((error: Error | null, outcome: Outcome) => void) | null;
  /** The memory cannot be taken away: no need to borrow it. Called at the release. */
  readonly giveBack?: (() => void) | undefined;
}

/** Sends that wait, and their bytes: of one socket. */
export interface Backlog {
  sends: number;
  bytes: number;
}

export class Transmission {
  readonly segmentBytes: number;
  readonly cursor: PieceCursor;
  readonly #tell: TransmissionOptions['tell'];
  readonly #giveBack: (() => void) | undefined;
  #borrowed: Borrowed[] | null = null;
  #foreign = false;
  #ubuf: Ubuf | null = null;
  #ended = false;
  #told = false;
  #error: Error | null = null;
  #freed: ((outcome: Outcome) => void) | null = null;
  #backlog: Backlog | null = null;

  constructor(pieces: readonly Uint8Array[], options: TransmissionOptions) {
    this.segmentBytes = options.segmentBytes;
    this.cursor = new PieceCursor(pieces);
    this.#tell = options.tell;
    this.#giveBack = options.giveBack;
    if (this.#tell !== null || this.#giveBack !== undefined) this.#makeUbuf();
  }

  /** Nothing of it goes to the kernel any more. */
  get ended(): boolean {
    return this.#ended;
  }

  /** The Ubuf that flagged calls refer to; null before the first, if nobody wants to know of the release. */
  get ubuf(): Ubuf | null {
    return this.#ubuf;
  }

  /** Counts as waiting in `backlog` until it ends. */
  join(backlog: Backlog): void {
    this.#backlog = backlog;
    backlog.sends += 1;
    backlog.bytes += this.cursor.remaining;
  }

  /** The kernel has taken the next `bytes`. */
  advance(bytes: number): void {
    this.cursor.advance(bytes);
    if (this.#backlog !== null) this.#backlog.bytes -= bytes;
  }

  /** Puts the memory where the kernel may read it. False: it may not be lent, now and later. */
  lend(pin: boolean): boolean {
    if (this.#foreign) return false;
    if (this.#borrowed === null && this.#giveBack === undefined && !this.#borrow(pin)) {
      this.#foreign = true;
      return false;
    }
    if (this.#ubuf === null) this.#makeUbuf();
    return true;
  }

  /** All was accepted, or `error` stopped it: the owner is told as soon as the kernel has let go of what it took. */
  end(error: Error | null): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#error = error;
    if (this.#backlog !== null) {
      this.#backlog.sends -= 1;
      this.#backlog.bytes -= this.cursor.remaining;
    }
    this.#ubuf?.unref();
  }

  /** Nobody waits any longer: the owner is told now, with `error` as the cause if the kernel still reads the memory. */
  giveUp(error: Error, message: string): void {
    this.end(error);
    if (this.#told || this.#ubuf === null || this.#ubuf.refs === 0) return;
    const outcome = { bytes: this.cursor.byteLength, copiedBytes: this.#ubuf.copiedBytes, exact: false };
    const freed = new Promise<Outcome>((resolve) => {
      this.#freed = resolve;
    });
    this.#told = true;
    this.#tell?.(new StillLentError(message, freed, error), outcome);
  }

  /** All pieces, or none. */
  #borrow(pin: boolean): boolean {
    const all: Borrowed[] = [];
    for (const piece of this.cursor.pieces) {
      const borrowed = borrow(piece, pin);
      if (borrowed === null) {
        for (const one of all) one.giveBack();
        return false;
      }
      all.push(borrowed);
    }
    this.#borrowed = all;
    for (const [i, { view }] of all.entries()) this.cursor.replace(i, view);
    return true;
  }

  /** It refers to the array that the cursor has, and so sees the views that #borrow() puts there. */
  #makeUbuf(): void {
    this.#ubuf = new Ubuf(
      this.cursor.pieces,
      (outcome) => this.#released(outcome),
      releases,
      () => this.giveUp(new ZerotxError('ETIMEDOUT', NOT_IN_TIME), NOT_IN_TIME),
    );
  }

  #released(outcome: Outcome): void {
    for (const borrowed of this.#borrowed ?? []) borrowed.giveBack();
    this.#giveBack?.();
    this.#freed?.(outcome);
    if (this.#told) return;
    this.#told = true;
    this.#tell?.(this.#error, outcome);
  }
}
