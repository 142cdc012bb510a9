/**
 * Which memory may be lent to the kernel.
 *
 * The kernel reads lent pages until it says otherwise. If JavaScript can take the memory away meanwhile, by transferring
 * its ArrayBuffer, and the new owner is collected, then whatever the allocator puts there next goes out on the wire. A
 * reference does not help: it keeps the emptied shell. So:
 *
 *   slab of ours           lend      native memory, unmapped only with its last reference
 *   window of a unit       refuse    closed when its holder wants the unit back; who knows the holder lends the unit itself
 *   SharedArrayBuffer      lend      cannot be detached, does not move when it grows
 *   resizable ArrayBuffer  refuse    shrinking takes pages away
 *   WebAssembly memory     refuse    growing detaches it whatever was marked, and a mark makes that fatal; with `pin` no mark
 *   detached, empty        refuse    there is nothing
 *   marked by others       refuse    see below; also with `pin` it is not marked again
 *   other ArrayBuffer      lend if a mark keeps it where it is on this runtime; else only when the program vouches for
 *                          it with `pin`
 *
 * The mark is markAsUntransferable(). Node 20 then copies instead of transferring, and knows no ArrayBuffer.transfer();
 * Node 24 and later make every transfer throw; on Node 22 transfer() still takes a marked buffer. No version list: it is
 * tried once, on a buffer made for it. The mark cannot be taken back, and marked buffers must never be detached
 * natively (Node 24 and later abort the process).
 *
 * A buffer that somebody else marked is left alone where that can be seen (Node 21 and later), because one that another addon
 * made from memory of its own looks the same. Such a buffer is not fixed in place, and fixing it is fatal: at the end of
 * the environment Node detaches those that are left, and with the key that a mark sets on Node 24 and later, it aborts.
 *
 * One way stays open on Node 20: a byte stream (ReadableStream of type `bytes`) detaches what is enqueued into it or read
 * into by a BYOB reader, marked or not. Lent memory must not be given to one there.
 */
import workerThreads from 'node:worker_threads';
import { isSlabMemory } from './slab.ts';
import { windowHolder } from './window.ts';

export interface LendOptions {
  /** The program promises not to transfer the memory while it is lent. */
  readonly pin?: boolean;
}

/** ArrayBuffer as newer runtimes have it. */
interface ModernArrayBuffer extends ArrayBuffer {
  readonly resizable?: boolean;
  transfer?(): ArrayBuffer;
  transferToFixedLength?(): ArrayBuffer;
}

const { markAsUntransferable } = workerThreads;
/** Missing on Node 20. */
const { isMarkedAsUntransferable } = workerThreads as {
  isMarkedAsUntransferable?: (memory: ArrayBufferLike) => boolean;
};

const marked = new WeakSet<ArrayBufferLike>();
let markHolds: boolean | undefined;

/** Whether lend() would accept `view`. Changes nothing. */
export function canLend(view: Uint8Array, options: LendOptions = {}): boolean {
  return judge(view, options.pin === true) !== 'no';
}

/** Fixes the memory behind `view` in place, once per ArrayBuffer and for good; false: it must be copied instead. */
export function lend(view: Uint8Array, options: LendOptions = {}): boolean {
  const verdict = judge(view, options.pin === true);
  if (verdict === 'mark') {
    markAsUntransferable(view.buffer as ArrayBuffer);
    marked.add(view.buffer);
  }
  return verdict !== 'no';
}

function judge(view: Uint8Array, pin: boolean): 'no' | 'as it is' | 'mark' {
  const memory = view.buffer;
  if (view.byteLength === 0) return 'no'; // detached memory shows as empty views, too
  if (isSlabMemory(memory) || memory instanceof SharedArrayBuffer) return 'as it is';
  if (windowHolder(memory) !== undefined) return 'no';
  if ((memory as ModernArrayBuffer).resizable === true) return 'no';
  if (!pin && !markProtects()) return 'no';
  if (marked.has(memory)) return 'as it is';
  if (isMarkedAsUntransferable?.(memory) === true || isWasmMemory(memory)) return pin ? 'as it is' : 'no';
  return 'mark';
}

const WASM_PAGE_BYTES = 65_536;
let usualRefusal: string | undefined;

/**
 * Nothing says so, but such memory is refused by transfers in another way. Asked with a list that has it twice, which is refused
 * before anything is transferred. Of memory whose size is that of WebAssembly memory alone: it takes microseconds.
 */
function isWasmMemory(memory: ArrayBufferLike): boolean {
  if (memory.byteLength % WASM_PAGE_BYTES !== 0) return false;
  usualRefusal ??= refusal(new ArrayBuffer(8));
  return usualRefusal === '' || refusal(memory) !== usualRefusal;
}

function refusal(memory: ArrayBufferLike): string {
  try {
    structuredClone(undefined, { transfer: [memory as ArrayBuffer, memory as ArrayBuffer] });
    return '';
  } catch (error) {
    return (error as Error).message;
  }
}

/** Whether markAsUntransferable() stops every way this runtime has to take a buffer's memory. Tried on first use. */
export function markProtects(): boolean {
  markHolds ??= takers.every((take) => staysAfter(take));
  return markHolds;
}

type Taker = (memory: ModernArrayBuffer) => unknown;

const takers: readonly Taker[] = [
  (memory) => structuredClone(memory, { transfer: [memory] }),
  (memory) => memory.transfer?.(),
  (memory) => memory.transferToFixedLength?.(),
];

function staysAfter(take: Taker): boolean {
  const memory = new ArrayBuffer(64);
  markAsUntransferable(memory);
  try {
    take(memory);
  } catch {
    // Refusing is one way to protect; what counts is whether the memory is still there.
  }
  return memory.byteLength === 64;
}
