/** What this host can do, short and for programs: the same trials as doctor()'s, without words. */
import { native } from '../sys/binding.ts';
import { markProtects } from '../sys/lend.ts';
import { type Family, lendingFamilies, tryFamily } from './families.ts';
import { readNumber } from './files.ts';
import { probeFragments } from './fragments.ts';
import { tryGro, trySegment } from './segments.ts';

export interface Features {
  /** Whether MSG_ZEROCOPY works on sockets of this kind: tried over loopback. */
  readonly zerocopy: Readonly<Record<Exclude<Family, 'unix'>, boolean>>;
  /** Many datagrams by one call, and many received as one. */
  readonly udpSegment: boolean;
  readonly udpGro: boolean;
  /** What all processes of this user may have lent; -1: no limit. */
  readonly memlockBytes: number;
  /** net.core.optmem_max; undefined if this network namespace does not show it. */
  readonly optmemBytes: number | undefined;
  /** Separate pieces that a lent datagram may have; undefined if it could not be tried. */
  readonly maxSkbFrags: number | undefined;
  /** io_uring may be set up. */
  readonly ioUring: boolean;
  /** Buffers of any origin are lent; else only those of a Pool, and others with `pin`. */
  readonly lendsForeign: boolean;
  readonly pageBytes: number;
}

const LIMIT_MS = 2000;

/** Tries it out, in some milliseconds; throws ZTX_NO_ADDON if the addon is not there. */
export async function features(): Promise<Features> {
  const sys = native();
  const signal = AbortSignal.timeout(LIMIT_MS);
  const zerocopy = { tcp4: false, tcp6: false, udp4: false, udp6: false, vsock: false };
  for (const family of lendingFamilies) {
    if (family === 'unix') continue;
    zerocopy[family] = (await orUndefined(tryFamily(family, signal)))?.lends ?? false;
  }
  return {
    zerocopy,
    udpSegment: ((await orUndefined(trySegment(signal))) ?? 0) > 1,
    udpGro: ((await orUndefined(tryGro(signal))) ?? 0) > 0,
    memlockBytes: sys.memlockLimit(),
    optmemBytes: readNumber('/proc/sys/net/core/optmem_max'),
    maxSkbFrags: await orUndefined(probeFragments(signal)),
    ioUring: sys.ioUringProbe() === 0,
    lendsForeign: markProtects(),
    pageBytes: sys.pageSize(),
  };
}

/** A trial that fails is an answer here: it does not work. */
async function orUndefined<T>(trial: Promise<T>): Promise<T | undefined> {
  try {
    return await trial;
  } catch {
    return undefined;
  }
}
