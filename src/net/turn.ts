/**
 * What is left to do at the end of the program's turn: before anything else happens, and at the latest when it exits.
 *
 * A write that the kernel takes at once is reported to the stream here instead of inside write(). Until then the stream
 * queues what the program writes next, and hands it over as one batch: sixteen small writes cost two system calls instead of
 * sixteen. The first one leaves at once, so nothing waits that could be alone.
 */
let waiting: (() => void)[] = [];
let left = 0;
let watchesExit = false;

/**
 * Runs `finish` when the program's current piece of work is over, in its asynchronous context. It may be called early and by
 * others, and does nothing the second time.
 */
export function atEndOfTurn(finish: () => void): void {
  if (!watchesExit) {
    watchesExit = true;
    // process.exit() ends a turn, too: what was written before it is sent, as by net.Socket.
    process.on('exit', () => {
      for (const one of waiting) one();
    });
  }
  waiting.push(finish);
  left += 1;
  process.nextTick(run, finish);
}

function run(finish: () => void): void {
  left -= 1;
  if (left === 0) waiting = [];
  finish();
}
