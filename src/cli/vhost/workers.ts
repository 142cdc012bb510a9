/** Pairs in worker threads: each pair wholly in one of them, as descriptors and mapped memory belong to a thread's environment. */
import { Worker } from 'node:worker_threads';
import { ZerotxError } from '../../ports/index.ts';
import type { PortRow } from '../lab/counters.ts';
import type { LabEvent, Tell } from '../lab/events.ts';
import type { Running } from '../lab/life.ts';
import type { PairSettings } from './settings.ts';

/** What a worker is asked to do; `check` is not answered. */
export type Request = 'prepare' | 'open' | 'rows' | 'check' | 'close';

/** What it says: an event, or the answer to the oldest request without one. */
export type Said =
  | { readonly event: LabEvent }
  | { readonly rows: readonly PortRow[] }
  | { readonly code: string; readonly message: string };

interface Waiting {
  resolve(rows: readonly PortRow[]): void;
  reject(error: Error): void;
}

class PairWorker {
  readonly #worker: Worker;
  readonly #waiting: Waiting[] = [];
  readonly #gone: Promise<void>;
  /** Why it has ended, or will. */
  #end: Error | null = null;

  constructor(settings: readonly PairSettings[], tell: Tell, failed: (error: Error) => void) {
    this.#worker = new Worker(new URL('./worker.js', import.meta.url), { workerData: settings });
    this.#worker.on('message', (said: Said) => {
      if ('event' in said) return tell(said.event);
      const waiting = this.#waiting.shift();
      if ('rows' in said) waiting?.resolve(said.rows);
      else waiting?.reject(new ZerotxError(said.code, said.message));
    });
    this.#worker.on('error', (error: Error) => {
      this.#end = error;
      failed(error);
    });
    this.#gone = new Promise((resolve) => {
      this.#worker.on('exit', () => {
        const end = this.#end ?? new ZerotxError('EPIPE', 'a worker has ended');
        this.#end = end;
        for (const { reject } of this.#waiting.splice(0)) reject(end);
        resolve();
      });
    });
  }

  ask(request: Exclude<Request, 'check'>): Promise<readonly PortRow[]> {
    if (this.#end !== null) return Promise.reject(this.#end);
    return new Promise((resolve, reject) => {
      this.#waiting.push({ resolve, reject });
      this.#worker.postMessage(request satisfies Request);
    });
  }

  check(): void {
    this.#worker.postMessage('check' satisfies Request);
  }

  /** Resolves when the thread has ended, which is when everything that it sent was delivered. */
  async close(): Promise<void> {
    // One that has ended does not answer.
    await this.ask('close').catch(() => {});
    await this.#gone;
  }
}

export class WorkerPairs implements Running {
  readonly #workers: readonly PairWorker[];
  readonly #pairs: number;

  /** Deals `settings` out to `count` workers. */
  constructor(settings: readonly PairSettings[], count: number, tell: Tell, failed: (error: Error) => void) {
    this.#pairs = settings.length;
    if (count > settings.length) {
      const pairs = settings.length === 1 ? '1 pair needs' : `${settings.length} pairs need`;
      tell({ event: 'note', text: `--workers ${count}: ${pairs} no more than ${settings.length}` });
    }
    this.#workers = Array.from({ length: Math.min(count, settings.length) }, (_, worker) => {
      const dealt = settings.filter((_pair, i) => i % count === worker);
      return new PairWorker(dealt, tell, failed);
    });
  }

  prepare(): Promise<void> {
    return this.#all('prepare');
  }

  open(): Promise<void> {
    return this.#all('open');
  }

  async rows(): Promise<readonly PortRow[]> {
    return (await Promise.all(this.#workers.map((worker) => worker.ask('rows')))).flat();
  }

  check(): void {
    for (const worker of this.#workers) worker.check();
  }

  survives(lost: number): boolean {
    return lost < this.#pairs;
  }

  async close(): Promise<void> {
    await Promise.all(this.#workers.map((worker) => worker.close()));
  }

  async #all(request: 'prepare' | 'open'): Promise<void> {
    await Promise.all(this.#workers.map((worker) => worker.ask(request)));
  }
}
