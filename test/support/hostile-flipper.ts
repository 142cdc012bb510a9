/** The other thread of a guest: changes its memory under the device. */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import type { Flip, FlipperData } from '../vhost/children/flipper.ts';
import type { HostileGuest } from './hostile-guest.ts';

export type { Flip };

export class Flipper {
  readonly #worker: Worker;
  readonly #words: Int32Array;

  private constructor(worker: Worker, words: Int32Array) {
    this.#worker = worker;
    this.#words = words;
  }

  static async start(guest: HostileGuest, flips: readonly Flip[], seed = 1): Promise<Flipper> {
    const control = new SharedArrayBuffer(8);
    const data: FlipperData = { file: guest.ram, memoryBytes: guest.memoryBytes, flips, seed, control };
    const worker = new Worker(new URL('../vhost/children/flipper.js', import.meta.url), { workerData: data });
    await once(worker, 'message');
    return new Flipper(worker, new Int32Array(control));
  }

  /** How many, modulo 2^32. */
  get flips(): number {
    return Atomics.load(this.#words, 1) >>> 0;
  }

  async stop(): Promise<void> {
    const exit = once(this.#worker, 'exit');
    Atomics.store(this.#words, 0, 1);
    await exit;
  }
}
