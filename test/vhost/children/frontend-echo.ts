/** A device at the socket of the first argument that sends back what it gets, until its process is ended. */
import { VhostUserDevice } from '../../../src/vhost/device.ts';

const [path = ''] = process.argv.slice(2);
const device = new VhostUserDevice({ path });
const all = Uint32Array.from({ length: 4096 }, (_, i) => i);
device.receiver = (table) => {
  device.send(table, all, 0, table.count);
  return table.count;
};
device.on('broken', (ring, reason) => process.stderr.write(`ring ${ring}: ${reason}\n`));
device.on('failure', (error) => process.stderr.write(`${error}\n`));
await device.open();
process.stdout.write('ready\n');
