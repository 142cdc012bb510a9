/**
 * The memory table of one front-end: which pieces of guest memory there are, mapped in a native space.
 *
 * A whole table (SET_MEM_TABLE) gets a space of its own, so that it comes as a whole or not at all: when a region cannot be mapped, the
 * old table stays. A table that is the one we have, of the same files, changes nothing: QEMU sends it again
 * whenever some device comes or goes, and mapping anew would stop all rings for it. Single regions come into the current space
 * (ADD_MEM_REG); when one goes (REM_MEM_REG), those that stay go on in a copy of it. What was lent before lasts as long as its
 * lease (lease.ts), and nothing else finds what has gone. QEMU 7.2 adds and removes each region once for each queue pair.
 *
 * Limits: REGIONS_MAX regions, `bytesMax` bytes together. A front-end that changes its table again and again while frames of
 * it are stuck on their way could keep many old spaces alive: the oldest of more than SPACES_KEPT is destroyed under its
 * frames. That is safe (the native layer looks every address up, and finds no such space) and counted.
 */
import { constants } from 'node:os';
import type { MemoryRegion } from '../wire/vhost-user.ts';
import { Lease, type MemoryLease } from './lease.ts';

const { EINVAL, ENOMEM, ENOSPC, ENOENT, EFAULT } = constants.errno;

/**
 * What GET_MAX_MEM_SLOTS answers, for the life of the process. A guest of KVM on x86 has as many user slots, so memory can be
 * plugged into it for as long as KVM itself takes more.
 */
export const REGIONS_MAX = 509;
/** In one table: as many descriptors as come with a message (framing.ts). */
const TABLE_REGIONS_MAX = 32;
/** Addresses go through JavaScript as doubles; beyond this a sum of two could be rounded into a region. */
const ADDRESS_MAX = 1n << 52n;
const SPACES_KEPT = 4;
const USER_ALIGN = 16n;

/** A native space, as sys/space.ts has it: calls give 0 or a value, or a negative errno. */
export interface Space {
  readonly id: number;
  map(fd: number, guestAddress: number, bytes: number, fdOffset: number, userAddress: bigint): number;
  unmap(guestAddress: number, bytes: number): number;
  /** With the same regions, at the same memory. */
  copy(): Space | number;
  view(guestAddress: number, bytes: number): ArrayBuffer | number;
  detach(view: ArrayBuffer): number;
  read(guestAddress: number, out: Uint8Array): number;
  write(guestAddress: number, bytes: Uint8Array): number;
  /** A file was truncated under us: what is read of it is zeros. */
  readonly poisoned: boolean;
  destroy(): void;
}

export interface MemoryCalls {
  /** A new space, or a negative errno. */
  createSpace(): Space | number;
  /** What tells files apart, whichever descriptor they are open on; null when it is not open. */
  fileOf(fd: number): string | null;
  close(fd: number): void;
}

interface Region extends MemoryRegion {
  /** Null is no file's: such a region is never taken for one that came before. */
  readonly file: string | null;
  /** How many times it was added, less removed. */
  claims: number;
}

export class GuestMemory {
  readonly #calls: MemoryCalls;
  readonly #bytesMax: bigint;
  #lease: Lease | null = null;
  #regions: Region[] = [];
  /** Spaces of former tables, oldest first. */
  readonly #old = new Set<Space>();
  /** Old spaces that were destroyed while frames of them were on their way. */
  forced = 0;

  constructor(calls: MemoryCalls, bytesMax: number) {
    this.#calls = calls;
    this.#bytesMax = BigInt(bytesMax);
  }

  /** The current lease: another one after every change that took something away; null before the first table. */
  get lease(): MemoryLease | null {
    return this.#lease;
  }

  get regionCount(): number {
    return this.#regions.length;
  }

  /** Of all regions in the table. */
  get bytes(): number {
    return Number(total(this.#regions));
  }

  /** Spaces that are only kept for what is held. */
  get keptCount(): number {
    return this.#old.size;
  }

  /** SET_MEM_TABLE. Closes `fds`, however it ends. 0 or an errno. */
  setTable(regions: readonly MemoryRegion[], fds: readonly number[]): number {
    try {
      return this.#setTable(regions, fds);
    } finally {
      for (const fd of fds) this.#calls.close(fd);
    }
  }

  #setTable(regions: readonly MemoryRegion[], fds: readonly number[]): number {
    if (regions.length === 0 || regions.length > TABLE_REGIONS_MAX || regions.length !== fds.length)
      return EINVAL;
    if (total(regions) > this.#bytesMax) return ENOMEM;
    const table: Region[] = [];
    for (const [i, region] of regions.entries()) {
      table.push({ ...region, file: this.#calls.fileOf(fds[i] as number), claims: 1 });
    }
    if (this.#isCurrent(table)) return 0;
    const space = this.#calls.createSpace();
    if (typeof space === 'number') return 0 - space;
    for (const [i, region] of table.entries()) {
      const error = mapRegion(space, region, fds[i] as number);
      if (error === 0) continue;
      space.destroy();
      return error;
    }
    this.#retire();
    this.#lease = new Lease(space);
    this.#regions = table;
    return 0;
  }

  /** ADD_MEM_REG. Closes `fd`, however it ends. 0 or an errno. */
  add(region: MemoryRegion, fd: number): number {
    try {
      return this.#add(region, fd);
    } finally {
      this.#calls.close(fd);
    }
  }

  #add(region: MemoryRegion, fd: number): number {
    const added: Region = { ...region, file: this.#calls.fileOf(fd), claims: 1 };
    const known = this.#regions.find((one) => isAgain(added, one));
    if (known !== undefined) {
      known.claims += 1;
      return 0;
    }
    if (this.#regions.length >= REGIONS_MAX) return ENOSPC;
    if (total(this.#regions) + region.bytes > this.#bytesMax) return ENOMEM;
    if (this.#lease === null) {
      const space = this.#calls.createSpace();
      if (typeof space === 'number') return 0 - space;
      this.#lease = new Lease(space);
    }
    const error = mapRegion(this.#lease.space, region, fd);
    if (error === 0) this.#regions.push(added);
    return error;
  }

  /** REM_MEM_REG: guest address, user address and size must be those of a region; the offset need not. 0 or an errno. */
  remove({ guestAddress, userAddress, bytes }: MemoryRegion): number {
    const at = this.#regions.findIndex(
      (region) =>
        region.guestAddress === guestAddress && region.userAddress === userAddress && region.bytes === bytes,
    );
    const lease = this.#lease;
    const region = this.#regions[at];
    if (region === undefined || lease === null) return ENOENT;
    if (region.claims > 1) {
      region.claims -= 1;
      return 0;
    }
    const rest = lease.space.copy();
    if (typeof rest === 'number') return 0 - rest;
    rest.unmap(Number(guestAddress), Number(bytes));
    this.#regions.splice(at, 1);
    this.#retire();
    this.#lease = new Lease(rest);
    return 0;
  }

  /**
   * The guest address of a range of the front-end's addresses, within one region of the table; -1 when there is none. Not asked of the
   * space, which may still have what has left the table.
   */
  find(userAddress: bigint, bytes: number): number {
    for (const region of this.#regions) {
      const offset = userAddress - region.userAddress;
      if (offset >= 0n && offset + BigInt(bytes) <= region.bytes) return Number(region.guestAddress + offset);
    }
    return -1;
  }

  /** The connection is over. What is held stays mapped until it is released. */
  close(): void {
    this.#retire();
    this.#regions = [];
  }

  #isCurrent(table: readonly Region[]): boolean {
    return (
      table.length === this.#regions.length &&
      table.every((region, i) => sameRegion(region, this.#regions[i] as Region))
    );
  }

  #retire(): void {
    const lease = this.#lease;
    if (lease === null) return;
    this.#lease = null;
    const { space } = lease;
    this.#old.add(space);
    lease.close(() => this.#destroy(space));
    if (this.#old.size <= SPACES_KEPT) return;
    const [oldest] = this.#old;
    this.forced++;
    this.#destroy(oldest as Space);
  }

  #destroy(space: Space): void {
    if (this.#old.delete(space)) space.destroy();
  }
}

function total(regions: readonly MemoryRegion[]): bigint {
  return regions.reduce((sum, { bytes }) => sum + bytes, 0n);
}

function sameRegion(a: Region, b: Region): boolean {
  return sameRange(a, b) && a.file !== null && a.file === b.file;
}

/** At one address the front-end has one file at a time: where files cannot be told apart, the address has to do. */
function isAgain(a: Region, b: Region): boolean {
  return sameRange(a, b) && (a.file === null || b.file === null || a.file === b.file);
}

function sameRange(a: Region, b: Region): boolean {
  return (
    a.guestAddress === b.guestAddress &&
    a.bytes === b.bytes &&
    a.userAddress === b.userAddress &&
    a.mmapOffset === b.mmapOffset
  );
}

/** Numbers are checked before they become doubles; alignment, overlaps and the file are the native layer's to check. */
function mapRegion(
  space: Space,
  { guestAddress, bytes, userAddress, mmapOffset }: MemoryRegion,
  fd: number,
): number {
  if (bytes === 0n || guestAddress + bytes > ADDRESS_MAX || mmapOffset + bytes > ADDRESS_MAX) return EINVAL;
  if (userAddress + bytes > 1n << 64n) return EFAULT;
  // As guest addresses are: what is aligned for the front-end (a ring) is aligned for us.
  if (userAddress % USER_ALIGN !== 0n) return EINVAL;
  return 0 - space.map(fd, Number(guestAddress), Number(bytes), Number(mmapOffset), userAddress);
}
