/**
 * Keeps a number of sends under way until the time is over, somebody interrupts, or something fails; then waits for
 * the memory of those that are left.
 *
 * One turn of the event loop goes by between any two rounds: over loopback sends may be done as soon as they are made, and
 * nothing else would run.
 */
import { ZerotxError } from '../../index.ts';
import type { Outcome } from '../../net/index.ts';
import type { Sender } from './sender.ts';

export interface Pumped {
  /** Sends begun, and those whose memory came back. */
  readonly sends: number;
  readonly completed: number;
  /** Of those that are complete. */
  readonly bytes: number;
  readonly copiedBytes: number;
  readonly exact: boolean;
  readonly seconds: number;
  readonly cpuUserSeconds: number;
  readonly cpuSystemSeconds: number;
  readonly endedBy: 'time' | 'interrupt' | 'failure';
  readonly error: unknown;
}

export interface PumpOptions {
  readonly limit: number;
  readonly seconds: number;
  readonly signal: AbortSignal;
  /** Called about once a second. */
  readonly progress: ((bytes: number, seconds: number) => void) | undefined;
}

/** How long the last sends may take to come back. */
const LINGER_MS = 5000;
const PROGRESS_MS = 1000;

export class Pump {
  readonly #sender: Sender;
  readonly #options: PumpOptions;
  #sends = 0;
  #completed = 0;
  #underWay = 0;
  #bytes = 0;
  #copiedBytes = 0;
  #exact = true;
  #error: unknown = null;
  #over = false;
  #wake: () => void = () => {};

  constructor(sender: Sender, options: PumpOptions) {
    this.#sender = sender;
    this.#options = options;
  }

  async run(): Promise<Pumped> {
    const { seconds, signal, progress } = this.#options;
    const begun = performance.now();
    const cpu = process.cpuUsage();
    const elapsed = (): number => (performance.now() - begun) / 1000;
    const ending = setTimeout(() => this.#stop(), seconds * 1000);
    const ticks = setInterval(() => progress?.(this.#bytes, elapsed()), PROGRESS_MS);
    const interrupted = (): void => this.#stop();
    signal.addEventListener('abort', interrupted);
    if (signal.aborted) this.#stop();
    this.#sender.onFailure((error) => this.#fail(error));
    try {
      await this.#pump();
      await this.#drain();
    } finally {
      clearTimeout(ending);
      clearInterval(ticks);
      signal.removeEventListener('abort', interrupted);
    }
    const { user, system } = process.cpuUsage(cpu);
    return {
      sends: this.#sends,
      completed: this.#completed,
      bytes: this.#bytes,
      copiedBytes: this.#copiedBytes,
      exact: this.#exact,
      seconds: elapsed(),
      cpuUserSeconds: user / 1e6,
      cpuSystemSeconds: system / 1e6,
      endedBy: this.#error !== null ? 'failure' : signal.aborted ? 'interrupt' : 'time',
      error: this.#error,
    };
  }

  async #pump(): Promise<void> {
    const { limit } = this.#options;
    while (!this.#over) {
      for (let room = limit - this.#underWay; room > 0 && !this.#over; room--) this.#send();
      await new Promise((resolve) => setImmediate(resolve));
      if (this.#underWay >= limit && !this.#over) await this.#change();
    }
  }

  async #drain(): Promise<void> {
    const late = setTimeout(() => {
      const text = `the memory of ${this.#underWay} sends was still lent ${LINGER_MS} ms after the last one`;
      this.#fail(new ZerotxError('ZTX_STILL_LENT', text));
      this.#sender.abandon();
    }, LINGER_MS);
    while (this.#underWay > 0 && this.#error === null) await this.#change();
    clearTimeout(late);
  }

  #send(): void {
    this.#sends += 1;
    this.#underWay += 1;
    this.#sender.send().then(
      (outcome) => this.#done(outcome),
      (error) => {
        this.#underWay -= 1;
        this.#fail(error);
      },
    );
  }

  #done({ bytes, copiedBytes, exact }: Outcome): void {
    this.#underWay -= 1;
    this.#completed += 1;
    this.#bytes += bytes;
    this.#copiedBytes += copiedBytes;
    this.#exact &&= exact;
    this.#wake();
  }

  #stop(): void {
    this.#over = true;
    this.#wake();
  }

  /** The first failure is the reason; what follows from it is not told. */
  #fail(error: unknown): void {
    this.#error ??= error;
    this.#stop();
  }

  /** The next completion, failure or end. */
  #change(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve;
    });
  }
}
