/**
 * Our process is killed while both sides send, and another takes its place, again and again. The kernel remembers the
 * numbers of each process before, and connections are lost at the worst of times; its messages that were not acknowledged
 * reach the next process.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import type { RdsPeerOptions } from './children/rds-peer.ts';
import { GUEST, type Lab } from './lab.ts';
import { lines } from './vm-qmp.ts';

const PROCESSES = 4;
const BYTES = 4000;
/** Messages each way before a process is killed. */
const PART = 60;
const SENDER_ROOM = 16 * BYTES;
const childModule = fileURLToPath(new URL('./children/rds-peer.js', import.meta.url));

/** How far a process came. */
interface Progress {
  acknowledged: number;
  /** The first number that it received, and how many. */
  first: number;
  received: number;
  done: boolean;
}

export async function ourRestart(lab: Lab, address: string, dials: boolean): Promise<void> {
  const port = lab.port();
  const to = { address: GUEST, port: lab.port() };
  const receiver = lab.guest.start(`rds-guest epochs at=${GUEST}:${to.port} size=${BYTES}`, 50);
  await receiver.line('bound');
  // What a process takes with it is what it may read, and what either side has room for: much less than this for each.
  const count = PROCESSES * (PART + 200);
  const sender = lab.sender({ bytes: BYTES, count }, { address, port }, { sndbuf: SENDER_ROOM, seconds: 50 });
  const all: Progress[] = [];
  for (let epoch = 0; epoch < PROCESSES; epoch++) {
    const last = epoch === PROCESSES - 1;
    const [sends, reads] = last ? [PART, count] : [0xffff, 2 * PART];
    const options = { address, port, to, bytes: BYTES, epoch, sends, reads, lastNumber: count - 1, last };
    all.push(
      await runUntil(options, ({ acknowledged, received, done }) =>
        last ? done : acknowledged >= PART && received >= PART,
      ),
    );
  }
  const output = await receiver.done;
  await sender.done;
  for (const [epoch, { acknowledged, first, received }] of all.entries()) {
    const arrived = Number(new RegExp(`^epoch ${epoch} received (\\d+)$`, 'm').exec(output)?.[1]);
    assert.ok(
      arrived >= acknowledged,
      `${arrived} of epoch ${epoch} arrived, ${acknowledged} were acknowledged`,
    );
    const what = `process ${epoch + 1} of ${PROCESSES}: ${acknowledged} sends acknowledged, ${arrived} arrived;`;
    const end = epoch === PROCESSES - 1 ? 'and said bye' : 'and was killed';
    lab.fact(dials, `${what} it received numbers ${first} to ${first + received - 1} in order ${end}`);
  }
}

/** Runs a process until it has come far enough, and kills it. */
async function runUntil(options: RdsPeerOptions, enough: (progress: Progress) => boolean): Promise<Progress> {
  const child = spawn(process.execPath, [childModule, JSON.stringify(options)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const progress = { acknowledged: 0, first: 0, received: 0, done: false };
  const closed = once(child, 'close');
  try {
    await new Promise<void>((resolve, reject) => {
      child.on('error', reject);
      child.on('close', () => reject(new Error(`the process ended: ${child.exitCode ?? child.signalCode}`)));
      follow(child, progress, () => {
        if (enough(progress)) resolve();
      });
    });
  } finally {
    child.kill('SIGKILL');
    await closed;
  }
  return progress;
}

function follow(child: ChildProcess, progress: Progress, look: () => void): void {
  if (child.stdout === null) throw new Error('no stdout');
  lines(child.stdout, (line) => {
    const [word, first, second] = line.split(' ');
    if (word === 'acknowledged') progress.acknowledged = Number(first);
    if (word === 'received') Object.assign(progress, { first: Number(first), received: Number(second) });
    if (word === 'done') progress.done = true;
    look();
  });
}
