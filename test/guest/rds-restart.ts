/**
 * Our process is killed while both sides send, and another takes its place, again and again. The kernel remembers the
 * numbers of each process before, and connections are lost at the worst of times; its messages that were not acknowledged
 * reach the next process.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import type { RdsPeerFlow, RdsPeerOptions } from './children/rds-peer.ts';
import { GUEST, type Lab } from './lab.ts';
import { lines } from './vm-qmp.ts';

const PROCESSES = 4;
const BYTES = 4000;
/** Messages each way, of every socket, before a process is killed. */
const PART = 60;
const SENDER_ROOM = 16 * BYTES;
/** So much that no port of the guest is ever congested: of maps that a 7.x kernel sends on several lanes an old one may come last. */
const RECEIVER_ROOM = 8 * 1024 * 1024;
/** What a process takes with it is what it may read, and what either side has room for: much less than this for each. */
const COUNT = PROCESSES * (PART + 200);
const SECONDS = 50;
/** Of one process, which takes a second or two. */
const PROCESS_MS = 20_000;
/** Of the clock of each process against the one before: its numbers are lower then, by far. */
const CLOCK_BACK_MS = 24 * 3600 * 1000;
const childModule = fileURLToPath(new URL('./children/rds-peer.js', import.meta.url));

/** How far a socket of a process came. */
interface Progress {
  acknowledged: number;
  /** The first number that it received, and how many. */
  first: number;
  received: number;
  done: boolean;
}

export interface RestartOptions {
  /** Of each process, with a program of the guest at either end: with several they are on several lanes. */
  readonly sockets: number;
  /** Each process has an earlier clock than the one before, and the kernel drops all its lanes while it comes up. */
  readonly isUnlucky: boolean;
}

export async function ourRestart(
  lab: Lab,
  address: string,
  dials: boolean,
  { sockets, isUnlucky }: RestartOptions,
): Promise<void> {
  const flows = Array.from({ length: sockets }, () => ({
    port: lab.port(),
    to: { address: GUEST, port: lab.port() },
  }));
  // One pair on one lane meets congestion, and a sender that waits, too. With more the two rules below hold.
  const isPlain = sockets === 1 && !lab.hasLanes;
  const room = isPlain ? '' : ` rcvbuf=${RECEIVER_ROOM}`;
  const receivers = flows.map(({ to }) =>
    lab.guest.start(`rds-guest epochs at=${GUEST}:${to.port} size=${BYTES}${room}`, SECONDS),
  );
  await Promise.all(receivers.map((receiver) => receiver.line('bound')));
  const theirs = { bytes: BYTES, count: COUNT };
  // A 7.x kernel's sender that waits for room on lane 0 while the kernel learns of lanes goes on there, when its next messages may have gone
  // on its own lane. So none of them waits.
  const options = { nonblock: !isPlain, sndbuf: SENDER_ROOM, seconds: SECONDS };
  const senders = flows.map(({ port }) => lab.sender(theirs, { address, port }, options));
  const programs = Promise.all([...receivers, ...senders].map((job) => job.done));
  const all: (readonly Progress[])[] = [];
  let drops = 0;
  for (let epoch = 0; epoch < PROCESSES; epoch++) {
    const running = new PeerProcess(optionsOf(address, flows, epoch, { isUnlucky, isPlain }));
    const far = running.runUntil(epoch === PROCESSES - 1 ? isDone : isFar, programs, () =>
      kernelState(lab, address),
    );
    // Each of its sockets has been through it, and then it has the time that it needs.
    if (isUnlucky && epoch > 0)
      drops += await lab.dropLanesDuring(Promise.race([running.reached(isUp), far]));
    all.push(await far);
  }
  const outputs = (await programs).slice(0, sockets);
  report(lab, dials, all, outputs);
  if (isUnlucky)
    lab.fact(
      dials,
      `the ${sockets} sockets of each process began a day earlier; lanes were dropped ${drops} times`,
    );
}

function optionsOf(
  address: string,
  flows: readonly RdsPeerFlow[],
  epoch: number,
  { isUnlucky, isPlain }: { readonly isUnlucky: boolean; readonly isPlain: boolean },
): RdsPeerOptions {
  const last = epoch === PROCESSES - 1;
  const [sends, reads] = last ? [PART, COUNT] : [isPlain ? 0xffff : 4 * PART, 2 * PART];
  const clockBackMs = isUnlucky ? epoch * CLOCK_BACK_MS : 0;
  const numbers = { epoch, sends, reads, lastNumber: COUNT - 1, last };
  // A kernel that has learnt of another process numbers afresh. If it then loses the connection it repeats what it had sent before, under the
  // numbers from before, which nobody can tell from new ones.
  return { address, flows, bytes: BYTES, ...numbers, clockBackMs, anyOrder: isUnlucky };
}

/** What the guest's kernel has of us. */
async function kernelState(lab: Lab, address: string): Promise<string> {
  const lists: string[] = [];
  for (const what of ['connections', 'tcp', 'send', 'retrans', 'recv']) {
    const records = (await lab.info(what)).filter(({ faddr }) => faddr === address || faddr === '0.0.0.0');
    lists.push(what, ...records.map((record) => JSON.stringify(record)));
  }
  return lists.join('\n');
}

const isUp = ({ acknowledged, received }: Progress): boolean => acknowledged > 0 && received > 0;
const isFar = ({ acknowledged, received }: Progress): boolean => acknowledged >= PART && received >= PART;
const isDone = ({ done }: Progress): boolean => done;

/** What the guest's programs got of each process is all that it knew to be acknowledged, and they insist that it came once. */
function report(
  lab: Lab,
  dials: boolean,
  all: readonly (readonly Progress[])[],
  outputs: readonly string[],
): void {
  for (const [epoch, flows] of all.entries()) {
    const arrived = outputs.map((output) =>
      Number(new RegExp(`^epoch ${epoch} received (\\d+)$`, 'm').exec(output)?.[1]),
    );
    for (const [i, { acknowledged }] of flows.entries())
      assert.ok(
        (arrived[i] ?? 0) >= acknowledged,
        `${arrived[i]} of epoch ${epoch} arrived, ${acknowledged} were acknowledged`,
      );
    const acknowledged = flows.map((flow) => flow.acknowledged);
    const received = flows.map((flow) => `${flow.received} from number ${flow.first} on`);
    const what = `process ${epoch + 1} of ${all.length}: of its sends ${acknowledged} were acknowledged, ${arrived} arrived;`;
    const end = epoch === all.length - 1 ? 'and said bye' : 'and was killed';
    lab.fact(dials, `${what} it received ${received.join(', ')} ${end}`);
  }
}

/** Runs until it has come far enough, and is killed. */
class PeerProcess {
  readonly progress: readonly Progress[];
  readonly #child: ChildProcess;
  readonly #closed: Promise<unknown>;
  readonly #looks = new Set<() => void>();

  constructor(options: RdsPeerOptions) {
    const stdio = ['ignore', 'pipe', 'inherit'] as const;
    this.#child = spawn(process.execPath, [childModule, JSON.stringify(options)], { stdio: [...stdio] });
    this.progress = options.flows.map(() => ({ acknowledged: 0, first: 0, received: 0, done: false }));
    this.#closed = once(this.#child, 'close');
    this.#follow();
  }

  /** `others` are programs that it needs: if one fails, so does this. `explain` says more while it still runs. */
  async runUntil(
    enough: (progress: Progress) => boolean,
    others: Promise<unknown>,
    explain: () => Promise<string>,
  ): Promise<readonly Progress[]> {
    const failed = new Promise<never>((_, reject) => others.catch(reject));
    try {
      await Promise.race([this.reached(enough), failed]);
    } catch (error) {
      const text = [(error as Error).message, JSON.stringify(this.progress), await explain()].join('\n');
      throw new Error(text);
    } finally {
      this.#child.kill('SIGKILL');
      await this.#closed;
    }
    return this.progress;
  }

  /** Resolves when every socket has; rejects if the process ends before. */
  reached(enough: (progress: Progress) => boolean): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`not within ${PROCESS_MS} ms`)), PROCESS_MS).unref();
      const look = (): void => {
        if (!this.progress.every(enough)) return;
        clearTimeout(timer);
        this.#looks.delete(look);
        resolve();
      };
      this.#looks.add(look);
      this.#child.once('error', reject);
      this.#child.once('close', (code, signal) => reject(new Error(`the process ended: ${code ?? signal}`)));
      look();
    });
  }

  #follow(): void {
    if (this.#child.stdout === null) throw new Error('no stdout');
    lines(this.#child.stdout, (line) => {
      const [word, flow, first, second] = line.split(' ');
      const progress = this.progress[Number(flow)];
      if (progress === undefined) return;
      if (word === 'acknowledged') progress.acknowledged = Number(first);
      if (word === 'received') Object.assign(progress, { first: Number(first), received: Number(second) });
      if (word === 'done') progress.done = true;
      for (const look of this.#looks) look();
    });
  }
}
