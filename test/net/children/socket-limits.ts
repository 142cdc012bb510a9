/**
 * Sockets of the public door under a limit that the parent set for this process. Run as `node socket-limits.js <mode> ...`; prints
 * what became of it as JSON, and ends with 0 if everything arrived.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { stats, type TcpSocket, type ZerocopyStats } from '../../../src/net/index.ts';
import {
  closeDoor,
  FORCE,
  KIB,
  MIB,
  numbers,
  type RawPeer,
  rawPair,
  turn,
  turnsUntil,
} from '../../support/door.ts';

const PIECE = 64 * KIB;
const zerocopy = { ...FORCE, thresholdBytes: 32 * KIB };
/** A peer that does not read, and holds what was lent. */
const stalled = { zerocopy, receiveBytes: 16 * KIB };

function print(result: object): void {
  process.stdout.write(JSON.stringify(result));
}

/** So much in pieces of such a size, each in a call of its own, to a peer that reads. */
async function send(mib: string, pieceBytes: string): Promise<void> {
  const { client, peer } = await rawPair({ zerocopy });
  const total = Number(mib) * MIB;
  const piece = Number(pieceBytes);
  const sends = [];
  const startMs = performance.now();
  const reading = peer.read(total);
  for (let at = 0; at < total; at += piece) {
    sends.push(client.send(numbers(Math.min(piece, total - at), at)));
    if (client.writableNeedDrain) await once(client, 'drain');
  }
  const outcomes = await Promise.all(sends);
  await reading;
  print({
    elapsedMs: performance.now() - startMs,
    copiedBytes: outcomes.reduce((sum, { copiedBytes }) => sum + copiedBytes, 0),
    zerocopy: client.stats().zerocopy,
    memlockUsedPages: stats().memlockUsedPages,
  });
}

/** Goes on with the stream by so much, one piece after the other. */
async function sendMore(client: TcpSocket, peer: RawPeer, bytes: number): Promise<void> {
  const end = peer.total + bytes;
  for (let at = peer.total; at < end; at += PIECE) {
    await Promise.all([client.send(numbers(PIECE, at)), peer.read(at + PIECE)]);
  }
}

interface Holder {
  readonly client: TcpSocket;
  readonly peer: RawPeer;
  readonly bytes: number;
}

/** Lends as much as may be lent, to a peer that does not read. */
async function hold(): Promise<Holder> {
  const { client, peer } = await rawPair(stalled);
  let bytes = 0;
  // Newer versions of Node have some pages of the kernel's account themselves (io_uring): the end is where it refuses.
  const isRefused = ({ copied }: ZerocopyStats): boolean => copied.memlock + copied.optmem > 0;
  while (!isRefused(client.stats().zerocopy)) {
    client.write(numbers(48 * KIB, bytes));
    bytes += 48 * KIB;
    await turn();
    assert.equal(client.writableLength, 0, 'the send buffer has room for all of it');
  }
  return { client, peer, bytes };
}

/** One socket holds the whole budget of the process; another goes on by copying, and lends again when it is given back. */
async function shared(): Promise<void> {
  const holder = await hold();
  const { client, peer } = await rawPair({ zerocopy });
  const held = stats();
  await sendMore(client, peer, 4 * MIB);
  const meanwhile = client.stats().zerocopy;
  await holder.peer.read(holder.bytes);
  await turnsUntil('releases', () => holder.client.stats().zerocopy.pinnedBytes === 0);
  await sendMore(client, peer, 4 * MIB);
  print({ held, meanwhile, afterwards: client.stats().zerocopy, memlockUsedPages: stats().memlockUsedPages });
}

/**
 * Other processes of the same user hold what the kernel allows; this one does not know of it. One of them leaves what a process
 * reserves, and another one takes that.
 */
async function neighbour(): Promise<void> {
  const others = [];
  for (let i = 0; i < 2; i++) {
    const other = spawn(process.execPath, [fileURLToPath(import.meta.url), 'holder'], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    await once(other.stdout, 'data');
    others.push(other);
  }
  const { client, peer } = await rawPair({ zerocopy });
  await sendMore(client, peer, 4 * MIB);
  const meanwhile = client.stats().zerocopy;
  for (const other of others) {
    const ended = once(other, 'exit');
    other.stdin.end();
    assert.deepEqual(await ended, [0, null]);
  }
  await sendMore(client, peer, 128 * MIB);
  print({ meanwhile, afterwards: client.stats().zerocopy, memlockUsedPages: stats().memlockUsedPages });
}

async function holder(): Promise<void> {
  await hold();
  process.stdout.write('holding');
  process.stdin.resume();
  await once(process.stdin, 'end');
}

const modes: Record<string, (...args: string[]) => Promise<void>> = { send, shared, neighbour, holder };
const [mode = '', ...args] = process.argv.slice(2);
assert.ok(modes[mode]);
await modes[mode](...args);
closeDoor();
process.exit();
