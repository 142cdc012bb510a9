/**
 * What a socket of zerotx/net counted, flat, so that the difference of two moments can be taken; sockets of node:net
 * count nothing.
 */
import { type Counters, type Options, textOption } from './cell.ts';

interface Counting {
  stats(): {
    zerocopy: {
      lentCalls: number;
      lentBytes: number;
      kernelCopiedCalls: number;
      fallbackBytes: number;
      copied: Record<string, number>;
    };
  };
}

/** `copied.threshold` and so on: bytes that the library sent by copying calls, by cause. */
export function zerocopyCounters(socket: object): Counters {
  if (!('stats' in socket)) return {};
  const { lentCalls, lentBytes, kernelCopiedCalls, fallbackBytes, copied } = (socket as Counting).stats()
    .zerocopy;
  const causes = Object.entries(copied).map(([cause, bytes]) => [`copied.${cause}`, bytes]);
  return { lentCalls, lentBytes, kernelCopiedCalls, fallbackBytes, ...Object.fromEntries(causes) };
}

export function difference(after: Counters, before: Counters): Counters {
  return Object.fromEntries(Object.entries(after).map(([name, value]) => [name, value - before[name]!]));
}

/** A function that tells what all sockets of this process did, those that are gone included. */
export async function processCounters(options: Options): Promise<() => Counters> {
  if (textOption(options, 'transport') === 'node:net') return () => ({});
  const { stats } = await import('zerotx/net');
  return () => {
    const { lentCalls, pinnedBytes } = stats().zerocopy;
    return { lentCalls, pinnedBytes };
  };
}
