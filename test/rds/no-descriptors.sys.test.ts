/** A node whose process has no descriptors left: that is told, and peers are served when there are some again. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { PORT, TestNode } from '../support/tcp-nodes.ts';

test('out of descriptors, a node warns, counts, and takes the connection later', {
  timeout: 30_000,
}, async (t) => {
  const module = fileURLToPath(new URL('./children/no-descriptors.js', import.meta.url));
  const [own, theirs] = ['127.77.15.1', '127.77.15.2'];
  const script = 'ulimit -n 64; exec "$0" "$@"';
  const child = spawn('sh', ['-c', script, process.execPath, module, theirs], { timeout: 20_000 });
  child.stderr.pipe(process.stderr);
  const peer = new TestNode(own);
  t.after(() => peer.close());
  const said: string[] = [];
  for await (const line of createInterface({ input: child.stdout })) {
    said.push(line);
    if (line === 'EMFILE') peer.socket.sendmsg(Buffer.from('hello'), { address: theirs, port: PORT });
  }
  if (child.exitCode === null) await once(child, 'exit');
  const [full, warning, message, ...more] = said;
  assert.equal(full, 'EMFILE');
  assert.match(warning ?? '', /^accept failed 127\.77\.15\.2 .*EMFILE.* [1-9]\d*$/);
  assert.deepEqual([message, ...more], ['hello']);
  assert.equal(child.exitCode, 0);
});
