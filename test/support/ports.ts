/** Ports for tests: opened here, closed by closePorts(), and waits for their link. */
import type { Port } from '../../src/core/port.ts';
import { deferred, GuestFrames, type GuestOptions } from './frames.ts';

const ends: (() => unknown)[] = [];

/** Runs `end` at the end of the test, the last one first. */
export function atEnd(end: () => unknown): void {
  ends.push(end);
}

export async function closePorts(): Promise<void> {
  for (const end of ends.splice(0).reverse()) await end();
}

export async function opened<T extends Port>(port: T): Promise<T> {
  atEnd(() => port.close());
  await port.open();
  return port;
}

/** Resolves when the port has a carrier, or has none any more. */
export function isUp(port: Port, up = true): Promise<void> {
  if (port.isUp === up) return Promise.resolve();
  const { promise, resolve } = deferred<void>();
  port.onChange = () => {
    if (port.isUp === up) resolve();
  };
  return promise;
}

export function guest(options: GuestOptions = {}): GuestFrames {
  const one = new GuestFrames(options);
  atEnd(() => one.end());
  return one;
}

/** All that was lent is back. */
export async function settled(source: GuestFrames): Promise<void> {
  while (source.outstanding > 0) await new Promise((resolve) => setImmediate(resolve));
}
