/**
 * What the kernel's own RDS says along with a message, and about itself.
 *
 * rdsRecvmsg() fills an array of words; native/rds.c has the same list. Numbers of 64 bits are two words, the lower half first.
 */
import { errnoError, errnoOf } from '../core/errors.ts';
import { native } from './binding.ts';

/** msg_flags. */
export const WORD_FLAGS = 0;
/** Bytes of the source address; 0 when no message came, only cookies or news. */
export const WORD_ADDRESS_BYTES = 1;
/** How many cookies came; they follow, in eight places. */
export const WORD_COOKIES = 2;
/** 1 with news of ports that may be free again; the mask follows. */
export const WORD_HAS_NEWS = 11;
export const WORD_NEWS = 12;
/** 1 with a time of arrival: seconds (64 bits) and microseconds follow. */
export const WORD_HAS_TIME = 14;
export const WORD_SECONDS = 15;
export const WORD_MICROSECONDS = 17;
/** How many stages of the receive path were timed; which they are (three places) and nanoseconds (64 bits each) follow. */
export const WORD_TRACES = 18;
export const WORD_TRACE_POSITIONS = 19;
export const WORD_TRACE_TIMES = 22;
export const RDS_RECEIVED_WORDS = 28;

const ENOSPC = -errnoOf('ENOSPC');
const ENOPROTOOPT = -errnoOf('ENOPROTOOPT');
/** Between two calls more may have come; a table that grows faster than it is read is given up. */
const ATTEMPTS = 8;

export interface RdsInfoRecords {
  /** Bytes of one record. */
  readonly recordBytes: number;
  readonly bytes: Uint8Array;
}

/**
 * All records of one kind (RDS_INFO_...); null when this kernel has none of that kind (ENOPROTOOPT). Source: rds_info_getsockopt
 * (net/rds/info.c).
 */
export function rdsInfo(fd: number, name: number): RdsInfoRecords | null {
  const needed = new Uint32Array(1);
  let room = new Uint8Array(0);
  for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
    const result = native().rdsInfo(fd, name, room, needed);
    if (result >= 0) return { recordBytes: result, bytes: room.subarray(0, needed[0]) };
    if (result === ENOPROTOOPT) return null;
    if (result !== ENOSPC) throw errnoError(result, 'getsockopt');
    // A quarter more, for what comes meanwhile.
    room = new Uint8Array(Math.ceil((needed[0] ?? 0) * 1.25) + 4096);
  }
  throw errnoError(ENOSPC, 'getsockopt');
}
