/**
 * A guest's memory, as its front-end describes it: regions of files, by guest address.
 *
 * Nothing here throws for what a front-end says: calls give a value or `-errno`, and whoever speaks the protocol decides.
 * Addresses are numbers, exact below 2^52; those of the front-end's own address space are BigInts, 64 bits long.
 */
import { errnoError, ZerotxError } from '../core/errors.ts';
import { type Native, native } from './binding.ts';

export class GuestSpace {
  /** What segments of a frame table carry. */
  readonly id: number;
  readonly #sys: Native;
  #destroyed = false;

  /** Throws EMFILE with 1,023 spaces in this environment, and ENOMEM. `original`: it begins as a copy of that. */
  constructor(original?: GuestSpace) {
    this.#sys = native();
    this.id = original === undefined ? this.#sys.spaceCreate() : this.#sys.spaceCopy(original.id);
    if (this.id < 0) throw errnoError(this.id, original === undefined ? 'spaceCreate' : 'spaceCopy');
  }

  /** Another space with the same regions and memory, or `-errno`. */
  copy(): GuestSpace | number {
    try {
      return new GuestSpace(this);
    } catch (error) {
      if (error instanceof ZerotxError && error.errno < 0) return error.errno;
      throw error;
    }
  }

  /** Maps part of a file, which may be closed afterwards; 0 or `-errno` (see Native.spaceMap). */
  map(fd: number, guestAddress: number, bytes: number, fdOffset: number, userAddress: bigint): number {
    return this.#sys.spaceMap(this.id, fd, guestAddress, bytes, fdOffset, userAddress);
  }

  /** Unmaps the region with these ends. Its views are detached, when no copy has it any more. */
  unmap(guestAddress: number, bytes: number): number {
    return this.#sys.spaceUnmap(this.id, guestAddress, bytes);
  }

  /** The guest address of a front-end's range that lies in one region, or `-EFAULT`. */
  find(userAddress: bigint, bytes: number): number {
    return this.#sys.spaceFind(this.id, userAddress, bytes);
  }

  /** Memory of one region to look at, until the region is unmapped; or `-errno`. */
  view(guestAddress: number, bytes: number): ArrayBuffer | number {
    return this.#sys.spaceView(this.id, guestAddress, bytes);
  }

  /** Takes a view away, from all that look through it. */
  detach(view: ArrayBuffer): number {
    return this.#sys.spaceViewDetach(this.id, view);
  }

  /** The whole range, or `-EFAULT`. */
  read(guestAddress: number, out: Uint8Array): number {
    return this.#sys.spaceRead(this.id, guestAddress, out);
  }

  write(guestAddress: number, bytes: Uint8Array): number {
    return this.#sys.spaceWrite(this.id, guestAddress, bytes);
  }

  /** A file was truncated: what is read is zeros, and the guest is to be closed. To be asked after every batch. */
  get poisoned(): boolean {
    return this.#sys.spacePoisoned(this.id) === 1;
  }

  get destroyed(): boolean {
    return this.#destroyed;
  }

  /** Unmaps everything; a second time does nothing. What the kernel still reads stays until it is done. */
  destroy(): void {
    if (this.#destroyed) return;
    this.#destroyed = true;
    this.#sys.spaceDestroy(this.id);
  }
}
