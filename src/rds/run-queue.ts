/** What is done to a lane's queue as a whole, when something in it is withdrawn. */
import { Deque } from '../core/deque.ts';
import type { Run, SendOwner } from './run.ts';

/** The same queue, in which the owner's small messages to RDS port `port` are in runs without any other. */
export function separated(queue: Deque<Run>, owner: SendOwner, port: number): Deque<Run> {
  const out = new Deque<Run>(queue.length);
  for (let run of queue) {
    for (let at = run.portChange(port); run.owner === owner && at < run.byteLength; ) {
      const tail = run.split(at);
      out.push(run);
      run = tail;
      at = run.portChange(port);
    }
    out.push(run);
  }
  return out;
}

/** The queue without what `drop` says, which is released, and how many messages that was. */
export function without(
  queue: Deque<Run>,
  drop: (run: Run) => boolean,
): { readonly kept: Deque<Run>; readonly messages: number } {
  let messages = 0;
  const kept = new Deque<Run>(queue.length);
  for (const run of queue) {
    if (drop(run)) {
      messages += run.messages;
      run.release();
    } else kept.push(run);
  }
  return { kept, messages };
}
