/**
 * A worker that changes a guest's memory, as fast as it can, while somebody reads it: writes one of several values to one of several
 * places, in an order that nobody knows, until it is told to stop. It counts what it did.
 */
import assert from 'node:assert/strict';
import { openSync } from 'node:fs';
import { parentPort, workerData } from 'node:worker_threads';
import { adopt } from '../../../src/sys/fds.ts';
import { GuestSpace } from '../../../src/sys/space.ts';
import { Random } from '../../support/random.ts';

/** One thing that it does: a place, how many bytes a value has (2 or 4), and the values. */
export interface Flip {
  readonly at: number;
  readonly bytes: 2 | 4;
  readonly values: readonly number[];
}

export interface FlipperData {
  /** The descriptor of the file, which is this process's. */
  readonly file: number;
  readonly memoryBytes: number;
  readonly flips: readonly Flip[];
  readonly seed: number;
  /** Word 0: stop; word 1: flips so far. */
  readonly control: SharedArrayBuffer;
}

const { file, memoryBytes, flips, seed, control } = workerData as FlipperData;
const words = new Int32Array(control);
const own = adopt(openSync(`/proc/self/fd/${file}`, 'r+'));
const space = new GuestSpace();
assert.equal(space.map(own, 0, memoryBytes, 0, 0n), 0);
const view = space.view(0, memoryBytes) as ArrayBuffer;
const [u16, u32] = [new Uint16Array(view), new Uint32Array(view)];
const random = new Random(seed);
// Drawn beforehand: a flip is then one store.
const plan = Array.from({ length: 4096 }, () => {
  const { at, bytes, values } = random.pick(flips);
  return { at: at / bytes, target: bytes === 2 ? u16 : u32, value: random.pick(values) };
});
parentPort?.postMessage('running');
while (Atomics.load(words, 0) === 0) {
  for (const { at, target, value } of plan) target[at] = value;
  Atomics.add(words, 1, plan.length);
}
space.destroy();
