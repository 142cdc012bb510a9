/** A device that lends what it can and never gives back: lending-device.js PATH. Says `open` when it listens, and goes on until it is killed. */
import { writeSync } from 'node:fs';
import { VhostUserDevice } from '../../../src/vhost/device.ts';

const device = new VhostUserDevice({ path: process.argv[2] as string, holdMs: 5 });
const loans: unknown[] = [];
let frames = 0;
device.receiver = (table) => {
  for (let i = 0; i < table.count; i++) {
    // To somebody new each time, of whom nothing bad is known.
    if (frames++ % 5 === 0) loans.push(table.owner.lend(i, {}));
  }
  return table.count;
};
await device.open();
writeSync(1, 'open');
