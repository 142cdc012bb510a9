/**
 * What a vhost-user session needs, without a system: files that are only numbers, memory that is only a list, and a host that
 * writes down what it is told and insists on what it was promised.
 */
import assert from 'node:assert/strict';
import type { MemoryLease } from '../../src/vhost/lease.ts';
import type { Space } from '../../src/vhost/memory.ts';
import type { RingMemory } from '../../src/vhost/queue.ts';
import type { Answer, RingStart, SessionHost } from '../../src/vhost/session-host.ts';
import type { SessionCalls } from '../../src/vhost/session-state.ts';
import { bitsOf, type Features } from '../../src/wire/virtio.ts';

const EFAULT = 14;
const EINVAL = 22;
const EBADF = 9;

/** Descriptors that are open, each of a file with a name; closing what is not open fails the test. */
export class FakeFiles {
  readonly #open = new Map<number, string>();
  #next = 100;

  open(name = 'file'): number {
    this.#next += 1;
    this.#open.set(this.#next, name);
    return this.#next;
  }

  close(fd: number): void {
    assert.ok(this.#open.delete(fd), `descriptor ${fd} is closed, but not open`);
  }

  nameOf(fd: number): string | null {
    return this.#open.get(fd) ?? null;
  }

  get count(): number {
    return this.#open.size;
  }
}

export interface FakeRegion {
  readonly guest: bigint;
  readonly bytes: bigint;
  readonly user: bigint;
}

/** Mapping of a file called `unmappable` fails. Views are memory of their own. */
export class FakeSpace implements Space {
  readonly id: number;
  readonly regions: FakeRegion[] = [];
  readonly views: Set<ArrayBuffer> = new Set();
  readonly poisoned: boolean = false;
  destroyed: boolean = false;
  readonly #calls: FakeCalls;

  constructor(id: number, calls: FakeCalls) {
    this.id = id;
    this.#calls = calls;
  }

  map(fd: number, guestAddress: number, bytes: number, _offset: number, user: bigint): number {
    assert.equal(this.destroyed, false);
    const name = this.#calls.files.nameOf(fd);
    if (name === null) return -EBADF;
    if (name === 'unmappable') return -EINVAL;
    const region = { guest: BigInt(guestAddress), bytes: BigInt(bytes), user };
    const clash = this.regions.some(
      (other) =>
        overlaps(region.guest, other.guest, region, other) || overlaps(user, other.user, region, other),
    );
    if (clash) return -EINVAL;
    this.regions.push(region);
    return 0;
  }

  unmap(guestAddress: number, bytes: number): number {
    assert.equal(this.destroyed, false);
    const at = this.regions.findIndex(
      ({ guest, bytes: size }) => guest === BigInt(guestAddress) && size === BigInt(bytes),
    );
    assert.ok(at >= 0, 'a region that is unmapped is there');
    this.regions.splice(at, 1);
    return 0;
  }

  copy(): Space | number {
    assert.equal(this.destroyed, false);
    const made = this.#calls.createSpace();
    if (typeof made !== 'number') (made as FakeSpace).regions.push(...this.regions);
    return made;
  }

  view(_guestAddress: number, bytes: number): ArrayBuffer {
    assert.equal(this.destroyed, false);
    const made = new ArrayBuffer(bytes);
    this.views.add(made);
    return made;
  }

  detach(view: ArrayBuffer): number {
    return this.views.delete(view) ? 0 : -EINVAL;
  }

  read(): number {
    return -EFAULT;
  }

  write(): number {
    return -EFAULT;
  }

  destroy(): void {
    assert.equal(this.destroyed, false, 'a space is destroyed once');
    this.destroyed = true;
    this.views.clear();
    this.regions.length = 0;
  }
}

function overlaps(a: bigint, b: bigint, one: FakeRegion, other: FakeRegion): boolean {
  return a < b + other.bytes && b < a + one.bytes;
}

export class FakeCalls implements SessionCalls {
  readonly files: FakeFiles = new FakeFiles();
  readonly spaces: FakeSpace[] = [];
  readonly notified: [fd: number, bytes: Uint8Array][] = [];
  /** What createSpace() gives next instead of a space. */
  spaceError = 0;

  createSpace(): Space | number {
    if (this.spaceError !== 0) return this.spaceError;
    const space = new FakeSpace(this.spaces.length + 1, this);
    this.spaces.push(space);
    return space;
  }

  fileOf(fd: number): string | null {
    return this.files.nameOf(fd);
  }

  close(fd: number): void {
    this.files.close(fd);
  }

  notify(fd: number, bytes: Uint8Array): void {
    this.notified.push([fd, bytes]);
  }

  get liveSpaces(): FakeSpace[] {
    return this.spaces.filter(({ destroyed }) => !destroyed);
  }
}

export interface HeldStop {
  readonly index: number;
  resolve(base: number): void;
}

export interface Running {
  readonly start: RingStart;
  memory: RingMemory;
  lease: MemoryLease;
}

/** Keeps a log, and fails the test when the session breaks a promise of SessionHost. */
export class RecordingHost implements SessionHost {
  readonly log: string[] = [];
  readonly running: Map<number, Running> = new Map();
  readonly #calls: FakeCalls;
  readonly #fds = new Map<string, number>();
  /** What a ring's base is when it stops. */
  bases: Record<number, number> = {};
  /** Stops and disables wait until the test resolves them. */
  holdStops = false;
  readonly held: HeldStop[] = [];
  /** Errnos to answer with, by method. */
  refuse: Partial<Record<'setFeatures' | 'setKick' | 'setMtu' | 'sendRarp', number>> = {};
  features: Features | null = null;
  error: Error | null | undefined;

  constructor(calls: FakeCalls) {
    this.#calls = calls;
  }

  get isClosed(): boolean {
    return this.error !== undefined;
  }

  #note(text: string): void {
    assert.equal(this.isClosed, false, `${text} after closed()`);
    assert.equal(this.held.length, 0, `${text} while a stop waits`);
    this.log.push(text);
  }

  setFeatures(features: Features): number {
    this.#note(`features ${bitsOf(features).join(',')}`);
    assert.equal(this.running.size, 0, 'features change while a ring runs');
    if (this.refuse.setFeatures !== undefined) return this.refuse.setFeatures;
    this.features = features;
    return 0;
  }

  startRing(ring: RingStart): void {
    this.#note(`start ${ring.index} size ${ring.size} base ${ring.base}${ring.enabled ? '' : ' disabled'}`);
    assert.notEqual(this.features, null, 'a ring starts before features are set');
    assert.equal(this.running.has(ring.index), false, 'a running ring is started');
    this.#checkMemory(ring.memory, ring.lease);
    this.running.set(ring.index, { start: ring, memory: ring.memory, lease: ring.lease });
  }

  ringMoved(index: number, memory: RingMemory, lease: MemoryLease): void {
    this.#note(`moved ${index}`);
    const ring = this.running.get(index);
    assert.ok(ring, 'a stopped ring is moved');
    this.#checkMemory(ring.memory, ring.lease);
    this.#checkMemory(memory, lease);
    ring.memory = memory;
    ring.lease = lease;
  }

  stopRing(index: number): number | Promise<number> {
    this.#note(`stop ${index}`);
    const ring = this.running.get(index);
    assert.ok(ring, 'a stopped ring is stopped');
    this.#checkMemory(ring.memory, ring.lease);
    const base = (): number => this.bases[index] ?? ring.start.base;
    if (!this.holdStops) {
      this.running.delete(index);
      return base();
    }
    return new Promise((resolve) => {
      this.held.push({
        index,
        resolve: (given) => {
          this.running.delete(index);
          resolve(given);
        },
      });
    });
  }

  enableRing(index: number, on: boolean): Answer {
    this.#note(`${on ? 'enable' : 'disable'} ${index}`);
    assert.ok(this.running.has(index), 'a stopped ring is switched');
    if (on || !this.holdStops) return 0;
    return new Promise((resolve) => {
      this.held.push({ index, resolve: () => resolve(0) });
    });
  }

  /** Lets the oldest of those that wait go on. */
  release(base = 0): void {
    const held = this.held.shift();
    assert.ok(held, 'something waits');
    held.resolve(base);
  }

  setKick(index: number, fd: number): number {
    if (fd >= 0) this.#note(`kick ${index}`);
    const error = fd < 0 ? 0 : (this.refuse.setKick ?? 0);
    this.#keep(`kick ${index}`, error === 0 ? fd : -1);
    if (error !== 0) this.#calls.files.close(fd);
    return error;
  }

  setCall(index: number, fd: number): number {
    this.#note(`call ${index}${fd < 0 ? ' none' : ''}`);
    this.#keep(`call ${index}`, fd);
    return 0;
  }

  setErr(index: number, fd: number): number {
    this.#note(`err ${index}${fd < 0 ? ' none' : ''}`);
    this.#keep(`err ${index}`, fd);
    return 0;
  }

  setStatus(status: number): void {
    this.#note(`status ${status}`);
  }

  reset(): void {
    this.#note('reset');
    this.features = null;
  }

  sendRarp(mac: Uint8Array): number {
    this.#note(`rarp ${Buffer.from(mac).toString('hex')}`);
    return this.refuse.sendRarp ?? 0;
  }

  setMtu(mtu: number): number {
    this.#note(`mtu ${mtu}`);
    return this.refuse.setMtu ?? 0;
  }

  config(): Uint8Array {
    return Uint8Array.of(0x52, 0x54, 0, 0x12, 0x34, 0x56, 1, 0, 1, 0, 0xdc, 5);
  }

  closed(error: Error | null): void {
    assert.equal(this.isClosed, false, 'closed once');
    this.error = error;
    this.running.clear();
    for (const fd of this.#fds.values()) this.#calls.files.close(fd);
    this.#fds.clear();
  }

  get fdCount(): number {
    return this.#fds.size;
  }

  #keep(key: string, fd: number): void {
    const old = this.#fds.get(key);
    if (old !== undefined) this.#calls.files.close(old);
    if (fd < 0) this.#fds.delete(key);
    else this.#fds.set(key, fd);
  }

  #checkMemory({ desc, avail, used }: RingMemory, { space }: MemoryLease): void {
    for (const view of [desc, avail, used]) {
      assert.ok((space as FakeSpace).views.has(view), 'memory of a ring is attached');
    }
  }
}
