/**
 * Drops privileges to the identity given as JSON, after threads of all kinds were started, and then does what its other
 * arguments say: `spawned` prints the status of a child process, `list` its own threads; `read FILE` reads it by a thread of the
 * pool; `run PROGRAM` runs it; `root` tries to become root again; `half` drops user and group alone, as a control.
 */
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { isMainThread, Worker } from 'node:worker_threads';
import { dropPrivileges, threadPrivileges } from '../../../src/sys/privileges.ts';

const identity = JSON.parse(process.argv[2] as string);
const wishes = process.argv.slice(3);

if (isMainThread) {
  // The pool, and a worker.
  await Promise.all(Array.from({ length: 8 }, () => readFile('/proc/self/status')));
  const worker = new Worker('require("node:worker_threads").parentPort.on("message", () => {})', {
    eval: true,
  });
  await once(worker, 'online');
}
if (wishes[0] === 'half') {
  process.setgid?.(identity.gid);
  process.setuid?.(identity.uid);
} else {
  dropPrivileges(identity);
}

for (let i = 0; i < wishes.length; i++) {
  switch (wishes[i]) {
    case 'spawned':
      console.log(execFileSync('cat', ['/proc/self/status'], { encoding: 'utf8' }));
      break;
    case 'list':
      for (const { uids, gids, groups, capabilities } of threadPrivileges()) {
        console.log(`${[...uids, ...gids].join(' ')} | ${groups.join(' ')} | ${capabilities}`);
      }
      break;
    case 'read':
      console.log(await readFile(wishes[++i] as string).then(String, (error) => error.code));
      break;
    case 'run':
      console.log(execFileSync(wishes[++i] as string, ['-u'], { encoding: 'utf8' }).trim());
      break;
    case 'root':
      try {
        process.setuid?.(0);
      } catch (error) {
        console.log((error as NodeJS.ErrnoException).code);
      }
  }
}
process.exit();
