/**
 * How many separate pieces a lent datagram may have. The number is the kernel's (MAX_SKB_FRAGS, a choice of its builder,
 * and net.core.max_skb_frags below it) and shown nowhere in a network namespace, so it is tried: single bytes on pages
 * apart never merge into one piece.
 */
import { ZerotxError } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import { lendOnce, pages, udpPair, withSockets } from './loopback.ts';

/** Entries that the addon takes in one call; kernels are built for 17 to 45. */
const PIECES_MAX = 64;

/** The largest number of pieces that is taken, between 1 and 64; throws if none is, or if another limit is in the way. */
export function probeFragments(signal: AbortSignal): Promise<number> {
  return withSockets(async (keep) => {
    const { sender } = await udpPair(keep, '127.0.0.1');
    const pageBytes = native().pageSize();
    const memory = pages(2 * PIECES_MAX * pageBytes);
    const views = Array.from({ length: PIECES_MAX }, (_, i) =>
      memory.subarray(2 * i * pageBytes, 2 * i * pageBytes + 1),
    );
    // Taken below, refused above: the answer lies between.
    let taken = 0;
    let refused = PIECES_MAX + 1;
    while (refused - taken > 1) {
      const middle = (taken + refused) >> 1;
      if (await takes(sender, views.slice(0, middle), signal)) taken = middle;
      else refused = middle;
    }
    if (taken === 0) throw new ZerotxError('EMSGSIZE', 'no datagram of one piece is taken');
    return taken;
  });
}

async function takes(fd: number, views: readonly Uint8Array[], signal: AbortSignal): Promise<boolean> {
  try {
    await lendOnce(fd, views, signal);
    return true;
  } catch (error) {
    if (error instanceof ZerotxError && error.code === 'EMSGSIZE') return false;
    throw error;
  }
}
