/** Memory that comes and goes under a guest's traffic: see vm-switch.guest.test.ts. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { cabled, type Pair } from './vm-cabling.ts';
import { blast } from './vm-machines.ts';

const MB = 1_000_000;
const MIB = 2 ** 20;

/** The left guest has room for more memory. */
export function memoryTests(pair: Pair, path: (name: string) => string): void {
  describe('memory that is plugged in', () => {
    // QEMU tells of it once for each queue pair.
    const made = cabled(pair, { name: 'memory', net: 30, path, left: { queuePairs: 2 } });

    const toRight = (bytes: number): Promise<unknown> =>
      blast({
        ...{ from: pair.left, to: pair.right, at: `${made.cabling.address('right')}:5000` },
        ...{ bytes, zerocopy: true },
      });
    const toLeft = (bytes: number): Promise<unknown> =>
      blast({ from: pair.right, to: pair.left, at: `${made.cabling.address('left')}:5001`, bytes });
    /** Of the piece of that size: what the switch has touched. */
    const touched = (mebibytes: number): number =>
      made.cabling.lab.memory().find(({ bytes }) => bytes === mebibytes * MIB)?.touchedBytes ?? -1;

    it('comes under traffic, and is sent from', { timeout: 150_000 }, async () => {
      assert.equal(touched(256), -1);
      await Promise.all([toRight(100 * MB), toLeft(50 * MB), pair.left.addMemory('dimm0', 256)]);
      // Memory of programs is taken from there first, as it is movable.
      await toRight(20 * MB);
      console.log(`of 256 MiB plugged in ${touched(256) / MIB} MiB were sent from`);
      assert.ok(touched(256) > MIB / 2);
    });

    it('comes under traffic, and is received into', { timeout: 150_000 }, async () => {
      // The kernel's own memory, too.
      await pair.left.run('echo online_kernel >/sys/devices/system/memory/auto_online_blocks');
      await Promise.all([toRight(50 * MB), toLeft(100 * MB), pair.left.addMemory('dimm1', 384)]);
      await toLeft(20 * MB);
      console.log(`of 384 MiB plugged in ${touched(384) / MIB} MiB were received into, or sent from`);
      assert.ok(touched(384) > MIB / 2);
    });

    it('goes under traffic', { timeout: 150_000 }, async () => {
      await Promise.all([toRight(100 * MB), toLeft(50 * MB), pair.left.removeMemory('dimm0')]);
      assert.equal(touched(256), -1);
      await toRight(20 * MB);
      const { left } = await made.cabling.lab.counters();
      assert.deepEqual([left?.device?.details.chains.address, left?.device?.details.ringsBroken], [0, 0]);
    });
  });
}
