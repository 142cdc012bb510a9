/**
 * dpdk-vhost.c as a process: the yardstick for taking packets from a vhost-user front-end.
 *
 *   const sink = await DpdkVhost.start(await dpdk(), { path, core: 0 });
 *   // a front-end connects to path
 *   await sink.connected();
 *   const { packets, busyNs } = await sink.slice(300);
 *   await sink.stop();
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { rmSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { compiledWithDpdk, type Dpdk, runtimeFolder } from './dpdk.ts';

export interface DpdkVhostOptions {
  /** Where it listens. */
  readonly path: string;
  /** The processor it polls on. */
  readonly core: number;
  /** Packets it takes at a time. */
  readonly burst?: number;
}

export interface DpdkSlice {
  readonly packets: number;
  readonly bytes: number;
  /** Polls that took something, and all. */
  readonly bursts: number;
  readonly polls: number;
  /** Of all the bytes. */
  readonly sum: number;
  /** In polls that took something; the rest of the CPU time went by with waiting for the front-end. */
  readonly busyNs: number;
  readonly cpuNs: number;
  readonly elapsedNs: number;
}

type Line = Partial<DpdkSlice> & { readonly ready?: boolean; readonly connected?: boolean };

const MEMORY_MIB = 128;
const BURST = 32;
/** Beyond what a slice was to take. */
const ANSWER_MS = 20_000;

export class DpdkVhost {
  readonly #child: ChildProcess;
  readonly #looks = new Set<() => void>();
  #lines: Line[] = [];
  #errors = '';

  /** Resolves when it listens. */
  static async start(dpdk: Dpdk, options: DpdkVhostOptions): Promise<DpdkVhost> {
    const program = await compiledWithDpdk(dpdk, 'dpdk-vhost');
    const sink = new DpdkVhost(dpdk, program, options);
    await sink.#line((line) => line.ready === true, ANSWER_MS);
    return sink;
  }

  private constructor(dpdk: Dpdk, program: string, { path, core, burst = BURST }: DpdkVhostOptions) {
    // One that was killed leaves its socket behind, and the next could not bind it.
    rmSync(path, { force: true });
    const args = [
      `--lcores=0@${core}`,
      '--no-huge',
      '-m',
      `${MEMORY_MIB}`,
      '--no-pci',
      '--no-telemetry',
      '--no-shconf',
    ];
    args.push(...dpdk.drivers, '--log-level=lib.vhost.config:error', '--', path, `${burst}`);
    const runtime = runtimeFolder();
    const env = { ...process.env, ...dpdk.env, ...runtime.env };
    const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'pipe'], env });
    this.#child = child;
    const end = (): void => {
      child.kill('SIGKILL');
      runtime.remove();
    };
    process.once('exit', end);
    createInterface(child.stdout).on('line', (line) => {
      // DPDK prints here, too.
      if (line.startsWith('{')) this.#lines.push(JSON.parse(line) as Line);
      this.#look();
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      this.#errors = (this.#errors + text).slice(-4000);
    });
    child.stdin.on('error', () => {});
    child.on('error', (error) => {
      this.#errors += error.message;
    });
    child.on('close', () => {
      process.off('exit', end);
      runtime.remove();
      this.#look();
    });
  }

  /** Resolves when a front-end's queues have started. */
  async connected(): Promise<void> {
    await this.#line((line) => line.connected === true, ANSWER_MS);
  }

  async slice(milliseconds: number): Promise<DpdkSlice> {
    this.#child.stdin?.write(`${milliseconds}\n`);
    return (await this.#line((line) => line.packets !== undefined, milliseconds + ANSWER_MS)) as DpdkSlice;
  }

  async stop(): Promise<void> {
    if (this.#ended) return;
    const closed = once(this.#child, 'close');
    const late = setTimeout(() => this.#child.kill('SIGKILL'), ANSWER_MS);
    this.#child.stdin?.end();
    await closed;
    clearTimeout(late);
  }

  get #ended(): boolean {
    const { pid, exitCode, signalCode } = this.#child;
    return pid === undefined || exitCode !== null || signalCode !== null;
  }

  /** The first line that suits; it and those before it are not seen again. */
  async #line(suits: (line: Line) => boolean, limitMs: number): Promise<Line> {
    let look: () => void = () => {};
    let timer: NodeJS.Timeout | undefined;
    try {
      return await new Promise<Line>((resolve, reject) => {
        const fail = (why: string): void => reject(new Error(`dpdk-vhost ${why}:\n${this.#errors}`));
        timer = setTimeout(() => fail(`gave no answer within ${limitMs} ms`), limitMs);
        look = () => {
          const index = this.#lines.findIndex(suits);
          const line = this.#lines[index];
          if (line === undefined) {
            if (this.#ended) fail('ended');
            return;
          }
          this.#lines = this.#lines.slice(index + 1);
          resolve(line);
        };
        this.#looks.add(look);
        look();
      });
    } finally {
      clearTimeout(timer);
      this.#looks.delete(look);
    }
  }

  #look(): void {
    for (const look of [...this.#looks]) look();
  }
}
