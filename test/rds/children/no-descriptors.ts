/** A node in a process without free descriptors: says what it warns of, frees them, and says what it receives then. */
import { closeSync, openSync } from 'node:fs';
import { RdsNode } from '../../../src/rds/index.ts';

const node = await RdsNode.open({ address: process.argv[2] as string });
const socket = node.bind(4000);
const taken: number[] = [];
try {
  for (;;) taken.push(openSync('/dev/null', 'r'));
} catch (error) {
  console.log((error as NodeJS.ErrnoException).code);
}
node.on('warning', ({ event, address, detail }) => {
  console.log(
    event,
    address,
    detail,
    (node as { counters?: { accept_failed: number } }).counters?.accept_failed,
  );
  for (const fd of taken.splice(0)) closeSync(fd);
});
const message = await socket.receive({ timeoutMs: 15_000 });
if (message.kind === 'data') console.log(String(message.data));
await node.close();
