/**
 * Records of a socket's error queue, as `drainErrors` lays them out: six u32 words each, in the order of
 * `struct sock_extended_err` (include/uapi/linux/errqueue.h).
 *
 *   word   0         1          2        3        4        5
 *          ee_errno  ee_origin  ee_type  ee_code  ee_info  ee_data
 *
 * The queue is shared: ICMP errors (with IP_RECVERR) and transmit timestamps come the same way, and the code of an
 * ICMP "port unreachable", 3, has the bit that means COPIED on a zero-copy record. So origin and errno come first.
 *
 * A zero-copy record confirms the calls numbered ee_info to ee_data, both included, modulo 2^32: ee_data < ee_info is
 * right at the wrap. The kernel merges records, and a merged one keeps the code of its first part: COPIED is a hint
 * for the range, not a count (skb_zerocopy_notify_extend and __msg_zerocopy_callback in net/core/skbuff.c).
 */

/** Words of one record. */
export const ERRQUEUE_WORDS = 6;

/** ee_origin of a zero-copy record. */
const SO_EE_ORIGIN_ZEROCOPY = 5;
/** Bit of ee_code in one: the kernel copied after all. */
const SO_EE_CODE_ZEROCOPY_COPIED = 1;

/** Inclusive numbers modulo 2^32: `hi < lo` at the wrap. */
export interface CompletionRange {
  readonly lo: number;
  readonly hi: number;
}

/** Record `i` confirms zero-copy calls; anything else in the queue is not about lent memory. */
export function isZerocopyCompletion(words: Uint32Array, i: number): boolean {
  return word(words, i, 1) === SO_EE_ORIGIN_ZEROCOPY && word(words, i, 0) === 0;
}

/** Whether the kernel copied the (first part of the) calls of record `i`; only for zero-copy completions. */
export function isCopied(words: Uint32Array, i: number): boolean {
  return (word(words, i, 3) & SO_EE_CODE_ZEROCOPY_COPIED) !== 0;
}

/** Numbers confirmed by record `i`; only for zero-copy completions. */
export function completionRange(words: Uint32Array, i: number): CompletionRange {
  return { lo: word(words, i, 4), hi: word(words, i, 5) };
}

function word(words: Uint32Array, i: number, field: number): number {
  const value = words[i * ERRQUEUE_WORDS + field];
  if (value === undefined) throw new RangeError(`error record ${i} is outside the array`);
  return value;
}
