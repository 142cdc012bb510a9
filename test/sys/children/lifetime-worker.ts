/**
 * A worker with a server, a client, and zero-copy sends to a peer that never reads. It says when it is ready, and then
 * ends in the way it was told.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { native } from '../../../src/sys/binding.ts';
import * as calls from '../../../src/sys/calls.ts';
import {
  AF_INET,
  EPOLLOUT,
  SO_ZEROCOPY,
  SOCK_DGRAM,
  SOCK_STREAM,
  SOL_SOCKET,
} from '../../../src/sys/constants.ts';
import { reactor } from '../../../src/sys/reactor.ts';
import { discard, drain, fillZerocopy, lendable, tcpPair, waitFor } from '../../support/sockets.ts';

export type WorkerEnd = 'terminated' | 'exit' | 'return' | 'throw';

export interface WorkerInput {
  readonly end: WorkerEnd;
  /** Port of a peer on 127.0.0.1; without it the worker brings its own. */
  readonly port?: number;
  /** Instead: an address to send datagrams to, whose neighbour the kernel has to look for in vain. */
  readonly unreachable?: string;
  /** Keeps sending, to a peer that reads, so that the end comes in the middle of events. */
  readonly busy?: boolean;
}

/** What the worker sends, so that the peer can tell it from anything else. */
export const PATTERN = 0x11;
export const BUDGET_PAGES = 100;
/** More than the peer takes; little of what an ordinary user may lock, as tests run side by side. */
export const SLAB_BYTES: number = 1 << 20;

async function connectTo(port: number): Promise<number> {
  const fd = calls.socket(AF_INET, SOCK_STREAM);
  calls.setOption(fd, SOL_SOCKET, SO_ZEROCOPY, 1);
  calls.connect(fd, '127.0.0.1', port);
  await waitFor(fd, EPOLLOUT, (events) => (events & EPOLLOUT) !== 0);
  return fd;
}

/** Datagrams wait in the neighbour's queue, for seconds, and nothing that the socket does gets them out of there. */
function sendToNobody(address: string, memory: Uint8Array): number {
  const fd = calls.socket(AF_INET, SOCK_DGRAM);
  calls.setOption(fd, SOL_SOCKET, SO_ZEROCOPY, 1);
  calls.connect(fd, address, 9);
  fillZerocopy(fd, memory.subarray(0, 4096), 2);
  return fd;
}

async function connectAndFill(input: WorkerInput, memory: Uint8Array): Promise<number> {
  if (input.unreachable !== undefined) return sendToNobody(input.unreachable, memory);
  const fd =
    input.port === undefined
      ? (await tcpPair({ zerocopy: true, receiveBytes: 4096 })).client
      : await connectTo(input.port);
  fillZerocopy(fd, memory, 1);
  return fd;
}

async function sendForever(memory: Uint8Array): Promise<void> {
  const pair = await tcpPair({ zerocopy: true });
  discard(pair.server);
  reactor().add(pair.client, EPOLLOUT, () => {
    drain(pair.client);
    fillZerocopy(pair.client, memory.subarray(0, 16 * 1024), 4);
  });
}

async function run(input: WorkerInput): Promise<void> {
  native().budgetCharge(BUDGET_PAGES, -1);
  const slab = lendable(SLAB_BYTES).fill(PATTERN);
  const fd = await connectAndFill(input, slab);
  if (native().outstanding(fd) === 0) throw new Error('nothing is pending');
  if (input.busy === true) await sendForever(slab);
  parentPort?.postMessage('ready');
  if (input.end === 'exit') process.exit(0);
  if (input.end === 'throw') throw new Error('thrown on purpose');
  // Sockets alone do not keep a worker alive; an interval does.
  if (input.end === 'terminated') setInterval(() => slab[0], 1000);
}

if (parentPort !== null) await run(workerData as WorkerInput);
