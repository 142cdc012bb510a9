/**
 * Child processes of the benchmark: started, asked over IPC, and gone at the end whatever happens.
 *
 * Every child has a deadline after which it is killed, every request a time limit. Children are only ever killed by
 * their own pid. A child also ends by itself when its IPC channel does, so killing the benchmark leaves none behind.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import type { Request, Response } from './cells/worker.ts';

export interface ProcessSpec {
  /** URL of a cell module, and which of its sides to run. */
  module: string;
  side: string;
  /** Command to start node with, e.g. `['ip', 'netns', 'exec', 'name']`; each must exec, so that the pid stays. */
  prefix?: readonly string[];
  /** Whole life of the child. */
  deadlineMs?: number;
}

type Method<R> = R extends { id: number } ? Omit<R, 'id'> : never;

const DEADLINE_MS = 15 * 60_000;
const REQUEST_TIMEOUT_MS = 60_000;
const CLOSE_TIMEOUT_MS = 5_000;

const living = new Set<ChildProcess>();
process.on('exit', () => {
  for (const child of living) child.kill('SIGKILL');
});

export class CellProcess {
  readonly #child: ChildProcess;
  readonly #name: string;
  readonly #waiting = new Map<
    number,
    { resolve: (value: unknown) => void; reject: (error: Error) => void }
  >();
  #nextId = 1;
  #ended: string | undefined;

  /** Resolves when the child has loaded its module. */
  static async start(spec: ProcessSpec): Promise<CellProcess> {
    const child = new CellProcess(spec);
    try {
      await child.#response(0, REQUEST_TIMEOUT_MS);
    } catch (error) {
      child.#child.kill('SIGKILL');
      throw error;
    }
    return child;
  }

  private constructor(spec: ProcessSpec) {
    this.#name = `${spec.module.replace(/^.*\//, '')} ${spec.side}`;
    const worker = fileURLToPath(new URL('./cells/worker.js', import.meta.url));
    const command = [...(spec.prefix ?? []), process.execPath, worker, spec.module, spec.side];
    // Standard output belongs to the result: what a child prints goes to standard error.
    this.#child = spawn(command[0]!, command.slice(1), { stdio: ['ignore', 2, 2, 'ipc'] });
    living.add(this.#child);
    const deadline = setTimeout(() => this.#child.kill('SIGKILL'), spec.deadlineMs ?? DEADLINE_MS);
    deadline.unref();
    this.#child.on('message', (response: Response) => {
      const waiting = this.#waiting.get(response.id);
      this.#waiting.delete(response.id);
      if ('error' in response) waiting?.reject(new Error(`${this.#name}: ${response.error}`));
      else waiting?.resolve(response.result);
    });
    this.#child.on('error', (error) => this.#end(String(error)));
    this.#child.on('exit', (code, signal) => {
      clearTimeout(deadline);
      this.#end(`ended with ${signal ?? `exit code ${code}`}`);
    });
  }

  async call<T>(request: Method<Request>, timeoutMs: number = REQUEST_TIMEOUT_MS): Promise<T> {
    if (this.#ended !== undefined) throw new Error(`${this.#name} ${this.#ended}`);
    const id = this.#nextId++;
    const response = this.#response(id, timeoutMs);
    this.#child.send({ ...request, id });
    return (await response) as T;
  }

  /** Asks the side to close, then makes sure the process is gone. Never throws. */
  async stop(): Promise<void> {
    if (this.#ended !== undefined) return;
    const exited = new Promise<void>((resolve) => this.#child.once('exit', () => resolve()));
    try {
      await this.call({ method: 'close' }, CLOSE_TIMEOUT_MS);
      this.#child.disconnect();
    } catch {
      this.#child.kill('SIGKILL');
    }
    const late = setTimeout(() => this.#child.kill('SIGKILL'), CLOSE_TIMEOUT_MS);
    await exited;
    clearTimeout(late);
  }

  async #response(id: number, timeoutMs: number): Promise<unknown> {
    let timer: NodeJS.Timeout | undefined;
    try {
      return await new Promise<unknown>((resolve, reject) => {
        this.#waiting.set(id, { resolve, reject });
        timer = setTimeout(() => reject(new Error(`${this.#name}: no answer in ${timeoutMs} ms`)), timeoutMs);
      });
    } finally {
      clearTimeout(timer);
      this.#waiting.delete(id);
    }
  }

  #end(how: string): void {
    this.#ended ??= how;
    living.delete(this.#child);
    for (const { reject } of this.#waiting.values()) reject(new Error(`${this.#name} ${how}`));
    this.#waiting.clear();
  }
}
