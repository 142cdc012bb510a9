/**
 * A listener in a process whose descriptors are used up. Run under a small RLIMIT_NOFILE. Prints lines of JSON, and answers
 * each line of input: `connected` with the number of timers, `retried` when the listener has tried once more in vain, `free`
 * by closing what it holds; and it tells of each connection it accepts.
 */
import { closeSync, openSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { zerocopyCounters } from '../../../src/net/counters.ts';
import { TcpChannel } from '../../../src/net/tcp.ts';
import { listenTcp } from '../../../src/net/tcp-listener.ts';

const [address, port] = [process.argv[2] as string, Number(process.argv[3])];
const say = (what: object): boolean => process.stdout.write(`${JSON.stringify(what)}\n`);
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** The listener's, as nothing else here sets timers; it looks for the global one each time. */
let timerSet = (): void => {};
const { setTimeout: startTimer } = globalThis;
globalThis.setTimeout = ((task: () => void, delayMs: number) => {
  timerSet();
  return startTimer(task, delayMs);
}) as typeof setTimeout;

const ignore = { readable() {}, writable() {}, released() {} };
let accepted = 0;
const listener = listenTcp({ address, port, backlog: 16 }, (fd, peer) => {
  accepted += 1;
  TcpChannel.adopt(fd, peer, { mode: 'off', counters: zerocopyCounters() }, ignore).reset();
  say({ accepted });
});
const input = createInterface({ input: process.stdin });

const held: number[] = [];
try {
  for (;;) held.push(openSync('/dev/null', 'r'));
} catch (error) {
  say({ full: (error as NodeJS.ErrnoException).code });
}

for await (const line of input) {
  if (line === 'free') for (const fd of held.splice(0)) closeSync(fd);
  else if (line === 'close') break;
  else if (line === 'retried') {
    await new Promise<void>((resolve) => {
      timerSet = resolve;
    });
    say({ accepted });
  } else {
    // The event of the connection has come by then.
    for (let i = 0; i < 3; i++) await turn();
    say({ timers: process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length, accepted });
  }
}
listener.close();
input.close();
process.stdin.destroy();
