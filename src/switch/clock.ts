/**
 * Time for switches and links: they hold no timer and read no clock themselves, so that tests run them on virtual time.
 * This is the one file of the folder that owns real ones.
 *
 * What they wait for by the clock keeps no process alive: descriptors of ports do.
 */
import type { Clock } from '../core/clock.ts';

export const systemClock: Clock = {
  epochMs: performance.timeOrigin,
  now: () => performance.now(),
  after(ms, task) {
    const timer = setTimeout(task, ms);
    timer.unref();
    return () => clearTimeout(timer);
  },
  soon(task) {
    const immediate = setImmediate(task);
    immediate.unref();
    return () => clearImmediate(immediate);
  },
};
