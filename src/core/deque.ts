/**
 * A first-in first-out queue over a power-of-two ring, for paths where Array.shift() would be linear.
 *
 *   slots:  [ . . c d e f . . ]      head = index of c, length = 4; index i lives at (head + i) & mask
 *
 * One that was never used has no slots: there are thousands of them, of connections that do nothing.
 */
const SLOTS_MIN = 4;

export class Deque<T> {
  #slots: (T | undefined)[];
  #head = 0;
  #length = 0;

  constructor(capacity = 0) {
    this.#slots = emptySlots(capacity);
  }

  get length(): number {
    return this.#length;
  }

  push(item: T): void {
    if (this.#length === this.#slots.length) this.#grow();
    this.#slots[(this.#head + this.#length) & (this.#slots.length - 1)] = item;
    this.#length += 1;
  }

  unshift(item: T): void {
    if (this.#length === this.#slots.length) this.#grow();
    this.#head = (this.#head - 1) & (this.#slots.length - 1);
    this.#slots[this.#head] = item;
    this.#length += 1;
  }

  shift(): T | undefined {
    if (this.#length === 0) return undefined;
    const item = this.#slots[this.#head];
    this.#slots[this.#head] = undefined;
    this.#head = (this.#head + 1) & (this.#slots.length - 1);
    this.#length -= 1;
    return item;
  }

  pop(): T | undefined {
    if (this.#length === 0) return undefined;
    this.#length -= 1;
    const index = (this.#head + this.#length) & (this.#slots.length - 1);
    const item = this.#slots[index];
    this.#slots[index] = undefined;
    return item;
  }

  /** The item `index` places behind the head, or undefined. */
  at(index: number): T | undefined {
    if (index < 0 || index >= this.#length) return undefined;
    return this.#slots[(this.#head + index) & (this.#slots.length - 1)];
  }

  get first(): T | undefined {
    return this.at(0);
  }

  get last(): T | undefined {
    return this.at(this.#length - 1);
  }

  clear(): void {
    while (this.#length > 0) this.shift();
  }

  *[Symbol.iterator](): Generator<T> {
    for (let i = 0; i < this.#length; i++) yield this.at(i) as T;
  }

  #grow(): void {
    const old = this.#slots;
    const slots = emptySlots<T>(old.length * 2 || SLOTS_MIN);
    for (let i = 0; i < this.#length; i++) slots[i] = old[(this.#head + i) & (old.length - 1)];
    this.#slots = slots;
    this.#head = 0;
  }
}

/** A power of two of slots, enough for `capacity`; none for 0. */
function emptySlots<T>(capacity: number): (T | undefined)[] {
  if (capacity === 0) return [];
  let size = SLOTS_MIN;
  while (size < capacity) size *= 2;
  return new Array<T | undefined>(size).fill(undefined);
}
