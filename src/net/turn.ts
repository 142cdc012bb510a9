/**
 * What is left to do at the end of the program's turn: before anything else happens, and at the latest when it exits.
 *
 * A write that the kernel takes at once is reported to the stream here instead of inside write(). Until then the stream
 * queues what the program writes next, and hands it over as one batch: sixteen small writes cost two system calls instead of
 * sixteen. The first one leaves at once, so nothing waits that could be alone.
 */
export interface Turn {
  /** Runs at the end of the turn, in the asynchronous context of whoever asked; it does nothing if it was called before. */
  finishTurn(): void;
  /** Its place here; -1: none. */
  turnSlot: number;
}

const waiting: Turn[] = [];
let watchesExit = false;

/** Calls finishTurn() when the program's current piece of work is over. */
export function atEndOfTurn(turn: Turn): void {
  if (!watchesExit) {
    watchesExit = true;
    // process.exit() ends a turn, too: what was written before it is sent, as by net.Socket.
    process.on('exit', finishAll);
  }
  // It was finished early and has something again: the end of the same turn serves.
  if (turn.turnSlot >= 0) return;
  turn.turnSlot = waiting.length;
  waiting.push(turn);
  process.nextTick(run, turn);
}

function run(turn: Turn): void {
  // The last one takes its place: to search, or a Set, would cost more than the write.
  const last = waiting.pop() as Turn;
  if (last !== turn) {
    waiting[turn.turnSlot] = last;
    last.turnSlot = turn.turnSlot;
  }
  turn.turnSlot = -1;
  turn.finishTurn();
}

function finishAll(): void {
  for (const turn of waiting) {
    try {
      turn.finishTurn();
    } catch {
      // A callback of the program threw while the process exits: the others are sent all the same.
    }
  }
}
