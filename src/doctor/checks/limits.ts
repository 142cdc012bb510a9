/** Limits on lent memory: of the user, of the socket, and of the datagram. */
import { ZerotxError } from '../../core/errors.ts';
import { native } from '../../sys/binding.ts';
import { readNumber } from '../files.ts';
import { type Check, type Result, result } from '../finding.ts';
import { kib } from '../format.ts';
import { probeFragments } from '../fragments.ts';
import { discard, lendOnce, pages, tcpPair, withSockets } from '../loopback.ts';

const MEMLOCK_REMEDY =
  'raise RLIMIT_MEMLOCK: ulimit -l 65536, LimitMEMLOCK=64M (systemd), --ulimit memlock=67108864 (docker), or give CAP_IPC_LOCK';
/** Two calls of the largest size that the library makes, and their receiver's. */
const MEMLOCK_ENOUGH_BYTES = 2 * 1024 * 1024;
const CALL_BYTES_MAX = 512 * 1024;

/** What one call is charged, in pages, at most (mm_account_pinned_pages, called with the length by msg_zerocopy_alloc). */
const EXTRA_PAGES = 2;

/** The largest call that the limit admits, as long as the user has nothing else lent: 0 if none. */
export function largestCallBytes(limitBytes: number, pageBytes: number): number {
  if (limitBytes < 0) return CALL_BYTES_MAX;
  const pagesLeft = Math.floor(limitBytes / pageBytes) - EXTRA_PAGES;
  return Math.max(0, Math.min(CALL_BYTES_MAX, pagesLeft * pageBytes));
}

async function memlock({ signal }: { signal: AbortSignal }): Promise<Result> {
  const sys = native();
  const limitBytes = sys.memlockLimit();
  const largestBytes = largestCallBytes(limitBytes, sys.pageSize());
  const data = { limitBytes, largestBytes };
  const limit =
    limitBytes < 0 ? 'no limit (unlimited, or CAP_IPC_LOCK)' : `${kib(limitBytes)} for all of this user`;
  if (largestBytes === 0) {
    return result('warn', `${limit}: no call may lend anything`, { remedy: MEMLOCK_REMEDY, data });
  }
  try {
    await withSockets(async (keep) => {
      const { sender, receiver } = await tcpPair(keep, '127.0.0.1', signal);
      const stop = discard(receiver);
      await lendOnce(sender, [pages(largestBytes)], signal).finally(stop);
    });
  } catch (error) {
    if (!(error instanceof ZerotxError) || error.code !== 'ENOBUFS') throw error;
    return refused(`${limit}; lending ${kib(largestBytes)} was refused`, { ...data, refused: true });
  }
  const found = `${limit}; a call of ${kib(largestBytes)} was taken`;
  if (limitBytes >= 0 && limitBytes < MEMLOCK_ENOUGH_BYTES) {
    return result('warn', `${found}; what goes beyond is copied`, { remedy: MEMLOCK_REMEDY, data });
  }
  return result('ok', found, { data });
}

/** ENOBUFS says not which of the two limits it is. */
function refused(found: string, data: Readonly<Record<string, unknown>>): Result {
  if ((readNumber(OPTMEM) ?? Number.POSITIVE_INFINITY) < 2 * RECORD_BYTES) {
    return result('warn', `${found}, by optmem`, { remedy: OPTMEM_REMEDY, data });
  }
  return result('warn', `${found}: other sockets of this user have the rest lent`, {
    remedy: MEMLOCK_REMEDY,
    data,
  });
}

const OPTMEM = '/proc/sys/net/core/optmem_max';
const OPTMEM_REMEDY = 'sysctl -w net.core.optmem_max=131072 (the default since Linux 6.8)';
/** sock_omalloc() of a record: a struct sk_buff with its head. Measured, as its size is no part of any interface. */
const RECORD_BYTES = 850;
const RECORDS_ENOUGH = 64;

/** How many calls of a socket may be unconfirmed, as long as their records do not merge. */
export function recordsIn(optmemBytes: number): number {
  return Math.floor(optmemBytes / RECORD_BYTES);
}

function optmem(): Result {
  const optmemBytes = readNumber(OPTMEM);
  if (optmemBytes === undefined) {
    return result(
      'skip',
      'not shown in this network namespace; before Linux 6.8 the value of the host applies',
    );
  }
  const records = recordsIn(optmemBytes);
  const found = `${kib(optmemBytes)} a socket, about ${records} unconfirmed calls`;
  const data = { optmemBytes, records };
  if (records >= RECORDS_ENOUGH) return result('ok', found, { data });
  const status = records === 0 ? 'fail' : 'warn';
  return result(status, `${found}; further ones are copied`, { remedy: OPTMEM_REMEDY, data });
}

/** What drivers and the library count on (MAX_SKB_FRAGS with 4 KiB pages). */
const USUAL_FRAGMENTS = 17;

async function fragments({ signal }: { signal: AbortSignal }): Promise<Result> {
  const setting = readNumber('/proc/sys/net/core/max_skb_frags');
  const most = await probeFragments(signal);
  const data = { most, ...(setting === undefined ? {} : { setting }) };
  const found = `a datagram takes ${most} separate pieces, one more is refused (EMSGSIZE)`;
  if (most >= USUAL_FRAGMENTS) return result('ok', found, { data });
  return result('warn', `${found}; scattered data is copied more often`, {
    remedy: `sysctl -w net.core.max_skb_frags=${USUAL_FRAGMENTS}`,
    data,
  });
}

export const limitChecks: readonly Check[] = [
  { id: 'memlock', title: 'Memory that may be lent', run: memlock },
  { id: 'optmem', title: 'Records of unconfirmed calls', withoutAddon: true, run: optmem },
  { id: 'fragments', title: 'Pieces of a datagram', run: fragments },
];
