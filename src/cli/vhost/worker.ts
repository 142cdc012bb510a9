/** A worker thread of `zerotx vhost --workers`: does what workers.ts asks, one request after the other. */
import { parentPort, workerData } from 'node:worker_threads';
import type { PortRow } from '../lab/counters.ts';
import { LocalPairs } from './pair.ts';
import type { PairSettings } from './settings.ts';
import type { Request, Said } from './workers.ts';

const parent = parentPort;
if (parent === null) throw new Error('this is a worker thread of zerotx vhost');
const say = (said: Said): void => parent.postMessage(said);

const pairs = new LocalPairs(workerData as readonly PairSettings[], (event) => say({ event }));

async function serve(request: Exclude<Request, 'check'>): Promise<readonly PortRow[]> {
  if (request === 'rows') return pairs.rows();
  await pairs[request]();
  return [];
}

/** Answers come in the order of the requests. */
let answered: Promise<void> = Promise.resolve();

async function answer(request: Exclude<Request, 'check'>): Promise<void> {
  try {
    say({ rows: await serve(request) });
    // Nothing more is asked: the thread ends when its last descriptor is closed.
    if (request === 'close') parent?.close();
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    // Without a code it is a bug, which ends the thread and is shown by the main one.
    if (code === undefined) throw error;
    say({ code, message });
  }
}

parent.on('message', (request: Request) => {
  if (request === 'check') pairs.check();
  else answered = answered.then(() => answer(request));
});
