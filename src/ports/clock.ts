/** The system's time for ports: the one file here that owns timers and reads the clock. */
import type { Clock } from '../core/clock.ts';

export const systemClock: Clock = {
  epochMs: performance.timeOrigin,
  now: () => performance.now(),
  after(ms, task) {
    const timer = setTimeout(task, ms);
    return () => clearTimeout(timer);
  },
  soon(task) {
    const immediate = setImmediate(task);
    return () => clearImmediate(immediate);
  },
};

/** Milliseconds that all threads of this process have used of the processors. */
export function processCpuMs(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e3;
}
