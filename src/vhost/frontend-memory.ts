/**
 * The memory that a front-end shares with its back-end: one sealed memory file, laid out once, mapped by both.
 *
 *   ring 0: desc | avail | used | indirect tables     ring 1: ...     a part each, on pages of its own
 *   buffers of ring 0, of ring 1, ...
 *   frames that are prepared for sending again and again (allocate())
 *
 * It lives as long as the front-end: a back-end that dies and comes back gets the same file, with the rings as they stand.
 * What is in it is written by both sides, so nothing that this side relies on is kept there.
 *
 * Addresses: the device knows memory by guest addresses and rings by user addresses. They differ here, as they do in a virtual
 * machine, and lie beyond 2^32: a back-end that mixes them up, or cuts them, is found out.
 */
import { errnoError, ZerotxError } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import { F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, memfd } from '../sys/fds.ts';
import { GuestSpace } from '../sys/space.ts';
import type { MemoryRegion } from '../wire/vhost-user.ts';
import { availBytes, descBytes, usedBytes, VRING_DESC_BYTES } from '../wire/virtio.ts';
import type { IndirectTables } from './driver-queue.ts';
import type { RingMemory } from './queue.ts';

const GUEST_BASE = 5 * 2 ** 30;
const USER_BASE = 0x7a00_0000_0000n;
const PAGE_BYTES = 4096;
/** Buffers begin on cache lines. */
const LINE_BYTES = 64;
/** Of a native view, and of one message's region: enough for any ring, and for working sets beyond all caches. */
export const MEMORY_BYTES_MAX: number = 2 ** 30;

export interface MemoryPlanOptions {
  readonly rings: number;
  readonly size: number;
  /** Entries of each indirect table. */
  readonly tableEntries: number;
  /** Of each ring. */
  readonly buffers: number;
  readonly bufferBytes: number;
  /** For allocate(). */
  readonly extraBytes: number;
}

/** Where one ring is: offsets in the file. */
export interface RingPlace {
  readonly desc: number;
  readonly avail: number;
  readonly used: number;
  readonly tables: number;
  readonly buffers: number;
}

export interface Layout {
  readonly rings: readonly RingPlace[];
  /** Where allocate() begins. */
  readonly extra: number;
  readonly bytes: number;
}

/** Pure: what goes where. */
export function layOut(options: MemoryPlanOptions): Layout {
  const { size, buffers, bufferBytes } = options;
  let end = 0;
  const part = (bytes: number): number => {
    const at = end;
    end = alignUp(end + bytes, PAGE_BYTES);
    return at;
  };
  const places = Array.from({ length: options.rings }, (_, index) => ({
    desc: part(descBytes(size)),
    avail: part(availBytes(size, true)),
    used: part(usedBytes(size, true)),
    tables: part(hasTables(index) ? size * options.tableEntries * VRING_DESC_BYTES : 0),
  }));
  const rings = places.map((place) => ({ ...place, buffers: part(buffers * stride(bufferBytes)) }));
  const extra = part(options.extraBytes);
  return { rings, extra, bytes: end };
}

/** Odd rings transmit. What is received comes in buffers of one piece. */
function hasTables(index: number): boolean {
  return (index & 1) === 1;
}

/** From one buffer to the next. */
export function stride(bufferBytes: number): number {
  return alignUp(bufferBytes, LINE_BYTES);
}

export class FrontendMemory {
  readonly bytes: number;
  readonly space: GuestSpace;
  /** All of it; empty when closed. */
  readonly u8: Uint8Array;
  readonly layout: Layout;
  readonly #options: MemoryPlanOptions;
  readonly #fd: number;
  #end: number;

  /** Throws ENOMEM, EMFILE, and ERR_OUT_OF_RANGE when all that is asked for is more than MEMORY_BYTES_MAX. */
  constructor(options: MemoryPlanOptions) {
    this.layout = layOut(options);
    this.bytes = this.layout.bytes;
    this.#options = options;
    this.#end = this.layout.extra;
    if (this.bytes > MEMORY_BYTES_MAX) {
      throw new ZerotxError(
        'ERR_OUT_OF_RANGE',
        `rings, buffers and memoryBytes come to ${this.bytes} bytes; the most is ${MEMORY_BYTES_MAX}`,
      );
    }
    // As QEMU seals its own: a back-end may rely on pages that are there to stay.
    this.#fd = memfd('zerotx-frontend', this.bytes, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW);
    try {
      this.space = new GuestSpace();
    } catch (error) {
      native().close(this.#fd);
      throw error;
    }
    try {
      check(this.space.map(this.#fd, GUEST_BASE, this.bytes, 0, USER_BASE), 'mmap');
      this.u8 = new Uint8Array(this.#view(0, this.bytes));
    } catch (error) {
      this.close();
      throw error;
    }
  }

  /** What SET_MEM_TABLE says of it. */
  get regions(): MemoryRegion[] {
    return [
      { guestAddress: BigInt(GUEST_BASE), bytes: BigInt(this.bytes), userAddress: USER_BASE, mmapOffset: 0n },
    ];
  }

  /** Descriptors of the regions. */
  get fds(): number[] {
    return [this.#fd];
  }

  /** Bytes that allocate() has left. */
  get freeBytes(): number {
    return this.bytes - this.#end;
  }

  guestAddress(offset: number): number {
    return GUEST_BASE + offset;
  }

  userAddress(offset: number): bigint {
    return USER_BASE + BigInt(offset);
  }

  ring(index: number): RingMemory {
    const { desc, avail, used } = this.#place(index);
    const { size } = this.#options;
    return {
      desc: this.#view(desc, descBytes(size)),
      avail: this.#view(avail, availBytes(size, true)),
      used: this.#view(used, usedBytes(size, true)),
    };
  }

  tables(index: number): IndirectTables | null {
    const { size, tableEntries: entries } = this.#options;
    if (entries < 2 || !hasTables(index)) return null;
    const { tables } = this.#place(index);
    const memory = this.#view(tables, size * entries * VRING_DESC_BYTES);
    return { memory, address: this.guestAddress(tables), entries };
  }

  /** Room for frames, to stay allocated; its offset, or -1 when there is no more. */
  allocate(bytes: number): number {
    const at = this.#end;
    if (bytes > this.freeBytes) return -1;
    this.#end = alignUp(at + bytes, LINE_BYTES);
    return at;
  }

  /** Unmaps it and takes all views away; a second time does nothing. */
  close(): void {
    if (this.space.destroyed) return;
    this.space.destroy();
    native().close(this.#fd);
  }

  #place(index: number): RingPlace {
    return this.layout.rings[index] as RingPlace;
  }

  #view(offset: number, bytes: number): ArrayBuffer {
    const view = this.space.view(GUEST_BASE + offset, bytes);
    if (typeof view === 'number') throw errnoError(view, 'napi_create_external_arraybuffer');
    return view;
  }
}

function alignUp(value: number, to: number): number {
  return Math.ceil(value / to) * to;
}

function check(result: number, syscall: string): void {
  if (result < 0) throw errnoError(result, syscall);
}
