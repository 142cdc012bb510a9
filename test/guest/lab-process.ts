/**
 * `zerotx switch` as its users run it: a process of its own, with a lab file, that says what happens as a document a line.
 *
 *   const lab = await LabProcess.start(path('lab.yaml'), { vm1: { vhost: 'vm1.sock' }, lan: { tap: 'tap0' } });
 *   await lab.up('vm1');
 *   const { vm1 } = await lab.counters();
 *   await lab.stop();
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Netns } from '../support/netns.ts';
import { ROOT } from '../support/sources.ts';
import { lines } from './vm-qmp.ts';

export interface LabDocument {
  readonly event: string;
  readonly port?: string;
  readonly up?: boolean;
  readonly [key: string]: unknown;
}

type Numbers = Readonly<Record<string, number>>;

/** What is looked at here of a port's counters. */
export interface LabCounters {
  readonly up: boolean;
  readonly rxFrames: number;
  readonly rxBytes: number;
  readonly rxDropped: number;
  readonly rxErrors: number;
  readonly txFrames: number;
  readonly txBytes: number;
  readonly txDropped: number;
  readonly txErrors: number;
  readonly txLentBytes: number;
  readonly txKernelCopiedBytes: number;
  readonly rxLost: Numbers;
  readonly txLost: Numbers;
  /** Of a vhost-user device. */
  readonly device?: {
    readonly lentNow: number;
    readonly details: {
      readonly ringsBroken: number;
      readonly kicks: number;
      readonly signals: number;
      readonly chains: Numbers;
      readonly ledger: Numbers;
      readonly rx: Numbers;
    };
  };
}

const ANSWER_MS = 30_000;
const TOOL = join(ROOT, 'dist/cli/zerotx.js');

export class LabProcess {
  readonly #child: ChildProcess;
  readonly #documents: LabDocument[] = [];
  readonly #looks = new Set<() => void>();
  #errors = '';
  #killed = false;
  #exit: { readonly code: number | null; readonly signal: string | null } | null = null;

  /**
   * Writes the lab file, where relative paths in it begin, and resolves when the ports are open: the guests' commands are told then; a
   * lab without guests has a tap. YAML takes JSON as it is. `netns`: where it runs, if not here.
   */
  static async start(
    file: string,
    ports: Readonly<Record<string, object>>,
    netns?: Netns,
  ): Promise<LabProcess> {
    writeFileSync(file, JSON.stringify({ ports }));
    const lab = new LabProcess(file, netns);
    const isOpen = Object.values(ports).some((port) => 'vhost' in port)
      ? ({ event }: LabDocument) => event === 'guest'
      : ({ event, up }: LabDocument) => event === 'link' && up === true;
    try {
      await lab.document('its ports are open', isOpen);
      return lab;
    } catch (error) {
      await lab.kill();
      throw error;
    }
  }

  private constructor(file: string, netns: Netns | undefined) {
    const command = [process.execPath, TOOL, 'switch', file, '--json'];
    if (netns !== undefined) command.unshift('nsenter', '-t', `${netns.pid}`, '-n');
    this.#child = spawn(command[0] as string, command.slice(1), { stdio: ['ignore', 'pipe', 'pipe'] });
    const { stdout, stderr } = this.#child;
    if (stdout !== null) lines(stdout, (line) => this.#line(line));
    stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.#errors += text;
    });
    this.#child.on('error', (error) => {
      this.#errors += error.message;
    });
    this.#child.on('close', (code, signal) => {
      this.#exit = { code, signal };
      this.#look();
    });
  }

  get pid(): number {
    return this.#child.pid ?? -1;
  }

  /** All it has said, by port and in order: `link up`, `socket listening`, `ring 1 ...`. */
  story(port: string): string[] {
    return this.#documents
      .filter((document) => document.port === port)
      .map(({ event, up, state, ring, reason }) =>
        [event, up === undefined ? state : up ? 'up' : 'down', ring, reason]
          .filter((word) => word !== undefined)
          .join(' '),
      );
  }

  /** Resolves when the port has a carrier. */
  async up(...ports: readonly string[]): Promise<void> {
    for (const port of ports) await this.#until(`${port} is up`, () => this.#isUp(port));
  }

  async down(port: string): Promise<void> {
    await this.#until(`${port} is down`, () => !this.#isUp(port));
  }

  /** Of all ports, as they are now. */
  async counters(): Promise<Readonly<Record<string, LabCounters>>> {
    const before = this.#documents.length;
    this.#child.kill('SIGUSR1');
    const counters = await this.document(
      'its counters',
      ({ event }, index) => event === 'counters' && index >= before,
    );
    return counters.ports as Record<string, LabCounters>;
  }

  /** The first document that suits, come or to come. */
  async document(
    what: string,
    suits: (document: LabDocument, index: number) => boolean,
  ): Promise<LabDocument> {
    await this.#until(what, () => this.#documents.some(suits));
    return this.#documents.find(suits) as LabDocument;
  }

  descriptors(): number {
    return readdirSync(`/proc/${this.pid}/fd`).length;
  }

  /** Guest memory that it has mapped, and how much of each piece it has touched. */
  memory(): { readonly bytes: number; readonly touchedBytes: number }[] {
    const smaps = readFileSync(`/proc/${this.pid}/smaps`, 'utf8');
    return [...smaps.matchAll(/memfd:memory-backend-memfd.*\nSize: *(\d+) kB[\s\S]*?\nRss: *(\d+) kB/g)].map(
      ([, size, rss]) => ({ bytes: Number(size) * 1024, touchedBytes: Number(rss) * 1024 }),
    );
  }

  /** Pieces of memory that anybody shares with it. */
  mappings(): number {
    return readFileSync(`/proc/${this.pid}/maps`, 'utf8')
      .split('\n')
      .filter((line) => /memfd:/.test(line)).length;
  }

  /** By SIGTERM; throws if it does not end as it should. */
  async stop(): Promise<void> {
    if (this.#killed) return;
    await this.#end('SIGTERM');
    if (this.#exit?.code !== 0)
      throw new Error(`zerotx ended with ${JSON.stringify(this.#exit)}\n${this.#errors}`);
  }

  /** As one that crashes. */
  async kill(): Promise<void> {
    this.#killed = true;
    await this.#end('SIGKILL');
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    if (this.#exit !== null) return;
    const closed = once(this.#child, 'close');
    const late = setTimeout(() => this.#child.kill('SIGKILL'), ANSWER_MS);
    this.#child.kill(signal);
    await closed;
    clearTimeout(late);
  }

  #isUp(port: string): boolean {
    return this.#documents.findLast((one) => one.event === 'link' && one.port === port)?.up === true;
  }

  #line(line: string): void {
    this.#documents.push(JSON.parse(line) as LabDocument);
    this.#look();
  }

  #look(): void {
    for (const look of [...this.#looks]) look();
  }

  #until(what: string, isSo: () => boolean): Promise<void> {
    return new Promise((resolve, reject) => {
      const done = (end: () => void): void => {
        clearTimeout(timer);
        this.#looks.delete(look);
        end();
      };
      const fail = (why: string): void => {
        const said = this.#documents.map((document) => JSON.stringify(document)).slice(-20);
        done(() => reject(new Error(`zerotx, ${what}: ${why}\n${said.join('\n')}\n${this.#errors}`)));
      };
      const look = (): void => {
        if (isSo()) done(resolve);
        else if (this.#exit !== null) fail(`it ended with ${JSON.stringify(this.#exit)}`);
      };
      const timer = setTimeout(() => fail(`not within ${ANSWER_MS} ms`), ANSWER_MS);
      this.#looks.add(look);
      look();
    });
  }
}
