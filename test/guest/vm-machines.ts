/**
 * Traffic between machines: guests, and network namespaces of this one. Each helper starts a program at both ends, waits for them,
 * and compares what they say.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import type { Netns } from '../support/netns.ts';
import { GuestJob } from './vm-console.ts';
import { figures, guestPrograms } from './vm-programs.ts';
import { lines } from './vm-qmp.ts';

/** Where shell commands run; a guest (Vm) is one. */
export interface Machine {
  start(command: string, seconds?: number): GuestJob;
  run(command: string, seconds?: number): Promise<string>;
}

const COMMAND_SECONDS = 20;

/** This machine's own network namespace, or another one of it; it has the guests' programs, too. */
export class Host implements Machine {
  readonly #prefix: readonly string[];
  readonly #programs: ReadonlyMap<string, string>;

  static async make(netns?: Netns): Promise<Host> {
    const programs = new Map((await guestPrograms()).map(({ name, path }) => [name, path]));
    // As guests have it; a machine may have none of its own.
    programs.set('ping', 'busybox ping');
    return new Host(netns, programs);
  }

  private constructor(netns: Netns | undefined, programs: ReadonlyMap<string, string>) {
    this.#prefix = netns === undefined ? [] : ['nsenter', '-t', `${netns.pid}`, '-n'];
    this.#programs = programs;
  }

  start(command: string, seconds: number = COMMAND_SECONDS): GuestJob {
    const [program = '', ...words] = command.split(' ');
    const job = new GuestJob(command);
    const shell = [this.#programs.get(program) ?? program, ...words].join(' ');
    const args = [...this.#prefix, 'timeout', '-s', 'KILL', `${seconds}`, 'sh', '-c', shell];
    const child = spawn(args[0] as string, args.slice(1), { stdio: ['ignore', 'pipe', 2] });
    if (child.stdout !== null) lines(child.stdout, (line) => job.printed(line));
    child.on('error', (error) => job.ended(-1, error.message));
    child.on('close', (code, signal) => job.ended(code ?? -1, `exit code ${code ?? signal}`));
    return job;
  }

  run(command: string, seconds?: number): Promise<string> {
    return this.start(command, seconds).done;
  }
}

/** The last line of what it said. */
export async function last(job: GuestJob): Promise<string> {
  return (await job.done).split('\n').at(-1) ?? '';
}

export async function pings(from: Machine, to: string): Promise<void> {
  assert.match(await from.run(`ping -c 3 -i 0.2 -W 5 ${to}`), /3 (packets )?received/);
}

/** Waits for an answer: neighbours that were forgotten, and links that were down, take a moment. */
export async function reaches(from: Machine, to: string, seconds = 60): Promise<void> {
  await from.run(`until ping -c 1 -W 1 ${to} >/dev/null; do :; done`, seconds);
}

export interface BlastOptions {
  readonly from: Machine;
  readonly to: Machine;
  /** ADDRESS:PORT of `to`. */
  readonly at: string;
  readonly bytes: number;
  /** Of each call. */
  readonly write?: number;
  /** With MSG_ZEROCOPY. */
  readonly zerocopy?: boolean;
  readonly seconds?: number;
}

export interface Blasted {
  readonly mbitPerSecond: number;
  readonly calls: number;
  readonly completions: number;
  readonly copied: number;
}

/** A stream of a known content; fails if one byte is wrong, or one call was not completed. */
export async function blast(options: BlastOptions): Promise<Blasted> {
  const { from, to, at, bytes, write = 65_536, zerocopy = false, seconds = 100 } = options;
  const receiver = to.start(`tcp-blast receive at=${at}`, seconds);
  await receiver.line('listening');
  const words = `to=${at} bytes=${bytes} write=${write} zerocopy=${Number(zerocopy)}`;
  const [sent, received] = await Promise.all([
    last(from.start(`tcp-blast send ${words}`, seconds)),
    last(receiver),
  ]).then(([a, b]) => [figures(a), figures(b)] as const);
  assert.deepEqual(
    { bytes: received.bytes, wrong: received.wrong, crc: received.crc },
    { bytes: `${bytes}`, wrong: '-1', crc: sent.crc },
  );
  const [calls, completions, copied] = [sent.calls, sent.completions, sent.copied].map(Number);
  assert.equal(completions, zerocopy ? calls : 0);
  const mbitPerSecond = Math.round((8 * bytes) / 1000 / Math.max(1, Number(sent.ms)));
  return { mbitPerSecond, calls, completions, copied } as Blasted;
}

/** Datagrams of these sizes there and back, `count` of each. */
export async function echoes(
  from: Machine,
  to: Machine,
  at: string,
  sizes: readonly number[],
  count = 3,
): Promise<void> {
  const server = to.start(`udp-echo serve at=${at} count=${sizes.length * count}`, 60);
  await server.line('listening');
  for (const size of sizes) {
    const asked = figures(await last(from.start(`udp-echo ask to=${at} size=${size} count=${count}`, 50)));
    assert.deepEqual([asked.received, asked.wrong], [`${count}`, '0'], `${size} bytes`);
  }
  await server.done;
}
