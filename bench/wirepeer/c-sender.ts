/**
 * The C senders of this folder, and pairs of their slices: what the kernel alone costs, with and without MSG_ZEROCOPY.
 *
 * A sender is asked over its standard input for slices of some messages, lent or copied, and answers each with a line.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface, type Interface } from 'node:readline';
import { progress } from '../harness.ts';
import { compiled } from './compile.ts';

const WARMUPS = 2;

export interface Report {
  count: number;
  cpuNs: number;
  elapsedNs: number;
  zerocopyCalls: number;
  copiedCalls: number;
  /** Since the connection was made; TCP only. */
  retransmits?: number;
}

/** Reports at the same index are neighbours in time. */
export interface Pairs {
  copy: Report[];
  zerocopy: Report[];
}

export class CSender {
  readonly #child: ChildProcess;
  readonly #lines: Interface;
  readonly #ended: Promise<never>;

  /** Starts `<name>.c` with a command before it, e.g. in a network namespace; resolves when it is connected. */
  static async start(
    name: string,
    prefix: readonly string[],
    args: readonly (string | number)[],
  ): Promise<CSender> {
    const sender = new CSender(name, [...prefix, await compiled(name), ...args.map(String)]);
    await sender.#line();
    return sender;
  }

  private constructor(name: string, command: readonly string[]) {
    this.#child = spawn(command[0]!, command.slice(1), { stdio: ['pipe', 'pipe', 'inherit'] });
    this.#child.stdin!.on('error', () => {}); // told by the lines that do not come
    this.#lines = createInterface({ input: this.#child.stdout! });
    this.#ended = once(this.#lines, 'close').then(() => {
      throw new Error(`${name} ended`);
    });
    this.#ended.catch(() => {}); // told to whoever waits for a line
  }

  /** Interleaved slices of `count` messages; which of a pair is first changes from pair to pair. */
  async pairs(label: string, count: number, pairs: number): Promise<Pairs> {
    const copy: Report[] = [];
    const zerocopy: Report[] = [];
    for (let pair = -WARMUPS; pair < pairs; pair++) {
      for (const lent of pair % 2 === 0 ? [false, true] : [true, false]) {
        const report = await this.#run(count, lent);
        if (pair >= 0) (lent ? zerocopy : copy).push(report);
      }
      progress(`${label}: pair ${Math.max(0, pair + 1)} of ${pairs}`);
    }
    return { copy, zerocopy };
  }

  stop(): void {
    this.#child.kill('SIGKILL');
  }

  async #run(count: number, lent: boolean): Promise<Report> {
    this.#child.stdin!.write(`${count} ${lent ? 1 : 0}\n`);
    return JSON.parse(await this.#line()) as Report;
  }

  async #line(): Promise<string> {
    const [line] = await Promise.race([once(this.#lines, 'line'), this.#ended]);
    return line as string;
  }
}

/** CPU of one message. */
export function cpuUs(report: Report): number {
  return report.cpuNs / 1e3 / report.count;
}
