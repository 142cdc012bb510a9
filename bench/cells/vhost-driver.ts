/**
 * The driver side of a vhost-user device: a front-end in a process of its own, which sends frames of one size out of a
 * working set larger than the caches. It never touches them after they were written, so that whoever reads their bytes
 * finds them cold.
 *
 * A slice of variant `idle` lasts `count` milliseconds in which nothing is done; of any other, `count` frames are sent, and it ends
 * when the device has given all of them back.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type { VhostUserFrontend } from 'zerotx/vhost';
import { type CellSide, numberOption, type Options } from './cell.ts';
import { connect, frames, Sender, setBytes } from './vhost-kit.ts';

function driver(): CellSide {
  let nic: VhostUserFrontend;
  let sender: Sender;
  return {
    async open(options: Options): Promise<Options> {
      const workingSetBytes = numberOption(options, 'workingSetBytes');
      nic = await connect({ ...options, memoryBytes: setBytes(workingSetBytes) });
      const set = frames(nic, numberOption(options, 'frameBytes'), workingSetBytes, options.asks === true);
      sender = new Sender(nic, set, options.polled === true);
      return {};
    },
    async run({ count, variant }) {
      if (variant !== 'idle') return sender.send(count);
      await delay(count);
      return {};
    },
    close: () => nic.close(),
  };
}

export const sides: Record<string, () => CellSide> = { driver };
