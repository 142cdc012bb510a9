/** A thread that lends memory to a host that is away, and waits to be ended. */
import { parentPort, workerData } from 'node:worker_threads';
import { RdsNode } from '../../../src/rds/node.ts';
import { native } from '../../../src/sys/binding.ts';

const { address, to } = workerData as { address: string; to: { address: string; port: number } };
const node = await RdsNode.open({ transport: 'kernel', address });
const socket = node.bind(0, { zerocopy: true });
const slab = native().slabCreate(300_000, false);
if (typeof slab === 'number') throw new Error(`no slab: ${slab}`);
socket.sendmsg(new Uint8Array(slab, 0, 300_000), to, { zerocopy: true, cookie: 1 });
parentPort?.postMessage([socket.port, socket.lentBytes]);
