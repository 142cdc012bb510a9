/** The tests of guests behind a switch: see vm-switch.guest.test.ts. */
import { after, before, describe } from 'node:test';
import { loopbackUp, socketPaths } from './namespace.ts';
import { Vm } from './vm.ts';
import type { Pair } from './vm-cabling.ts';
import { lifeTests } from './vm-switch-life.ts';
import { memoryTests } from './vm-switch-memory.ts';
import { trafficTests } from './vm-switch-traffic.ts';
import { uplinkTests } from './vm-switch-uplinks.ts';

const path = socketPaths();

loopbackUp();

describe('guests behind a switch', () => {
  const pair = {} as { -readonly [K in keyof Pair]: Pair[K] };
  before(
    async () => {
      const begun = performance.now();
      const [left, right] = await Promise.all([
        Vm.boot({ nics: [], processors: 2, hotMemoryMiB: 1024 }),
        Vm.boot({ nics: [], processors: 2 }),
      ]);
      Object.assign(pair, { left, right });
      console.log(`both have booted after ${Math.round(performance.now() - begun)} ms`);
    },
    { timeout: 180_000 },
  );
  after(async () => {
    await Promise.all([pair.left?.stop(), pair.right?.stop()]);
  });

  trafficTests(pair, path);
  uplinkTests(pair, path);
  memoryTests(pair, path);
  // The last of these leaves one guest.
  lifeTests(pair, path);
});
