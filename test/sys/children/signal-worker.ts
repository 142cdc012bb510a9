/** Signals an eventfd of its own, tells the count, and leaves all to the end of the worker. */
import { readSync } from 'node:fs';
import { parentPort } from 'node:worker_threads';
import { native } from '../../../src/sys/binding.ts';
import { eventfd } from '../../../src/sys/fds.ts';

const fd = eventfd();
for (let i = 0; i < 1000; i++) native().eventfdSignal(fd);
const count = new BigUint64Array(1);
readSync(fd, new Uint8Array(count.buffer));
parentPort?.postMessage(count[0]);
