/**
 * A guest and its front-end in this process, both of which do whatever the test says: any message with any descriptors, any byte
 * in any ring, in memory that is theirs. Brought up in good order, so that a test begins where its attack does.
 *
 * Rings lie at the start of the memory, and payload from PAYLOAD on; guest address 0 is the front-end's USER.
 */
import assert from 'node:assert/strict';
import { readSync } from 'node:fs';
import {
  FRAME_BYTES,
  FRAME_WORDS,
  type FrameTable,
  VNET_CSUM,
  VNET_FLAGS,
  VNET_GSO,
} from '../../src/core/frames.ts';
import type { Port } from '../../src/core/port.ts';
import type { Ubuf } from '../../src/core/ubuf.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { eventfd, memfd } from '../../src/sys/fds.ts';
import { GuestSpace } from '../../src/sys/space.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import { RawFrontend } from './vhost-peer.ts';
import { region, state, USER, u64 } from './vhost-session.ts';
import { MockDriver, type Piece } from './vring.ts';

/** Feature bits by their numbers, so that tests can name them. */
export const INDIRECT_BIT = 28;
export const EVENT_IDX_BIT = 29;
export const IN_ORDER_BIT = 35;
export const MRG_RXBUF_BIT = 15;
/** What every driver here accepts besides: vhost-user's own bit, and VERSION_1. */
const ALWAYS = [30, 32];

export const RX = 0;
export const TX = 1;
export const VNET_BYTES = 12;

/** Of one ring: descriptors of 4096 entries are 64 KiB. */
const RING_BYTES = 0x4_0000;
const AVAIL_AT = 0x2_0000;
const USED_AT = 0x3_0000;
/** Behind the rings of two pairs. */
export const PAYLOAD = 0x10_0000;
export const MEMORY_BYTES: number = 16 * 2 ** 20;

export interface GuestOptions {
  /** Entries of each ring. */
  readonly size?: number;
  /** Feature bits besides ALWAYS. */
  readonly bits?: readonly number[];
  readonly memoryBytes?: number;
  /** F_SEAL_ bits. */
  readonly seals?: number;
  /** A file to use as memory: it is the guest's to close. */
  readonly file?: number;
  /** Rings to be started; RX and TX of the first pair if left out. */
  readonly rings?: readonly number[];
}

export class HostileRing {
  readonly index: number;
  readonly driver: MockDriver;
  /** The driver's own view of its rings. */
  readonly desc: DataView;
  readonly avail: DataView;
  readonly used: DataView;
  readonly kickFd: number = eventfd();
  readonly callFd: number = eventfd();
  readonly errFd: number = eventfd();

  constructor(guest: HostileGuest, index: number, size: number) {
    const { eventIdx } = guest.features;
    const view = (at: number, bytes: number): ArrayBuffer =>
      guest.view(index * RING_BYTES + at, bytes + (eventIdx ? 2 : 0));
    const memory = {
      desc: guest.view(index * RING_BYTES, 16 * size),
      avail: view(AVAIL_AT, 4 + 2 * size),
      used: view(USED_AT, 4 + 8 * size),
    };
    this.index = index;
    this.driver = new MockDriver(size, guest.features, 0, memory);
    this.desc = new DataView(memory.desc);
    this.avail = new DataView(memory.avail);
    this.used = new DataView(memory.used);
  }

  get address(): vhost.VringAddress {
    const at = USER + BigInt(this.index * RING_BYTES);
    const [avail, used] = [at + BigInt(AVAIL_AT), at + BigInt(USED_AT)];
    return { index: this.index, flags: 0, desc: at, avail, used, log: 0n };
  }

  kick(): void {
    native().eventfdSignal(this.kickFd);
  }

  /** Signals that came since the last question. */
  get calls(): number {
    return counter(this.callFd);
  }

  get errors(): number {
    return counter(this.errFd);
  }

  /** used.idx, as the device has written it. */
  get usedIdx(): number {
    return this.used.getUint16(2, true);
  }

  /** Entry `index` of the used ring: head and length. */
  entry(index: number): [number, number] {
    const at = 4 + 8 * (index % this.driver.size);
    return [this.used.getUint32(at, true), this.used.getUint32(at + 4, true)];
  }

  /** Makes a head available as it is, and shows it. */
  offer(...heads: readonly number[]): void {
    for (const head of heads) this.driver.push(head);
    this.driver.show();
  }

  close(): void {
    for (const fd of [this.kickFd, this.callFd, this.errFd]) calls.close(fd);
  }
}

/** An eventfd's counter, which is 0 afterwards. */
export function counter(fd: number): number {
  const bytes = new Uint8Array(8);
  try {
    readSync(fd, bytes);
  } catch {
    return 0;
  }
  return Number(new DataView(bytes.buffer).getBigUint64(0, true));
}

export class HostileGuest {
  front: RawFrontend;
  readonly bits: readonly number[];
  readonly memoryBytes: number;
  /** The file of its memory, and its own mapping of it. */
  readonly ram: number;
  readonly space: GuestSpace = new GuestSpace();
  readonly rings: Map<number, HostileRing> = new Map();
  #ended = false;

  constructor(path: string, options: GuestOptions = {}) {
    this.bits = options.bits ?? [INDIRECT_BIT];
    this.memoryBytes = options.memoryBytes ?? MEMORY_BYTES;
    this.front = RawFrontend.connect(path);
    this.ram = options.file ?? memfd('hostile', this.memoryBytes, options.seals ?? 0);
    assert.equal(this.space.map(this.ram, 0, this.memoryBytes, 0, USER), 0);
    for (const index of options.rings ?? [RX, TX]) {
      this.rings.set(index, new HostileRing(this, index, options.size ?? 256));
    }
  }

  /** All that makes its rings run. */
  async boot(): Promise<void> {
    await this.greet();
    assert.equal(await this.tell([region(0, this.memoryBytes)], [this.ram]), 0);
    for (const index of this.rings.keys()) await this.start(index);
  }

  /** Its device was killed, and there is another one: what QEMU does with `reconnect`, as it knows nothing but used.idx. */
  async reboot(path: string): Promise<void> {
    this.front.close();
    this.front = RawFrontend.connect(path);
    await this.greet();
    assert.equal(await this.tell([region(0, this.memoryBytes)], [this.ram]), 0);
    for (const [index, { usedIdx }] of this.rings) {
      // A ring that is not enabled yet loses what is sent.
      await this.enable(index, true);
      await this.start(index, usedIdx);
    }
  }

  get features(): { eventIdx: boolean; indirect: boolean; inOrder: boolean } {
    return {
      eventIdx: this.bits.includes(EVENT_IDX_BIT),
      indirect: this.bits.includes(INDIRECT_BIT),
      inOrder: this.bits.includes(IN_ORDER_BIT),
    };
  }

  get tx(): HostileRing {
    return this.ring(TX);
  }

  get rx(): HostileRing {
    return this.ring(RX);
  }

  ring(index: number): HostileRing {
    const ring = this.rings.get(index);
    assert.ok(ring, `ring ${index}`);
    return ring;
  }

  /** Features, and those of the protocol. */
  async greet(): Promise<void> {
    const { front } = this;
    await front.ask(vhost.VHOST_USER_GET_FEATURES);
    const protocol = await front.ask(vhost.VHOST_USER_GET_PROTOCOL_FEATURES);
    front.say(vhost.VHOST_USER_SET_PROTOCOL_FEATURES, protocol);
    front.say(vhost.VHOST_USER_SET_OWNER);
    assert.equal(await front.ack(vhost.VHOST_USER_SET_FEATURES, u64(mask([...ALWAYS, ...this.bits]))), 0);
  }

  /** Sends a memory table. The errno. */
  tell(regions: readonly vhost.MemoryRegion[], fds: readonly number[]): Promise<number> {
    return this.front.ack(vhost.VHOST_USER_SET_MEM_TABLE, vhost.encodeMemoryTable(regions), fds);
  }

  /** Sets a ring up and kicks it. */
  async start(index: number, base = 0): Promise<void> {
    const { front } = this;
    const ring = this.ring(index);
    front.say(vhost.VHOST_USER_SET_VRING_NUM, state(index, ring.driver.size));
    front.say(vhost.VHOST_USER_SET_VRING_BASE, state(index, base));
    front.say(vhost.VHOST_USER_SET_VRING_ADDR, vhost.encodeVringAddress(ring.address));
    front.say(vhost.VHOST_USER_SET_VRING_CALL, u64(index), [ring.callFd]);
    front.say(vhost.VHOST_USER_SET_VRING_ERR, u64(index), [ring.errFd]);
    assert.equal(await front.ack(vhost.VHOST_USER_SET_VRING_KICK, u64(index), [ring.kickFd]), 0);
    assert.equal(await this.enable(index, true), 0);
  }

  enable(index: number, on: boolean): Promise<number> {
    return this.front.ack(vhost.VHOST_USER_SET_VRING_ENABLE, state(index, on ? 1 : 0));
  }

  /** GET_VRING_BASE, which stops the ring. */
  async base(index: number): Promise<number> {
    const reply = await this.front.ask(vhost.VHOST_USER_GET_VRING_BASE, state(index, 0));
    return vhost.decodeState(reply)?.num ?? -1;
  }

  /** Reads replies that nobody waits for. */
  forget(): void {
    const bytes = new Uint8Array(65_536);
    while (native().readv(this.front.fd, [bytes], 1) > 0);
  }

  /** A message of the session has come and gone: so have those before it. */
  async barrier(): Promise<void> {
    await this.front.ask(vhost.VHOST_USER_GET_FEATURES);
  }

  view(address: number, bytes: number): ArrayBuffer {
    const view = this.space.view(address, bytes);
    assert.ok(typeof view !== 'number', `view: ${view}`);
    return view;
  }

  write(address: number, bytes: Uint8Array): void {
    assert.equal(this.space.write(address, bytes), 0);
  }

  read(address: number, bytes: number): Uint8Array {
    const out = new Uint8Array(bytes);
    assert.equal(this.space.read(address, out), 0);
    return out;
  }

  /** Writes a vnet header and a frame from `address` on, and sends them as one chain cut into `lengths`. Its head. */
  send(
    frame: Uint8Array,
    address: number = PAYLOAD,
    lengths: readonly number[] = [VNET_BYTES + frame.length],
    header: Uint8Array = new Uint8Array(VNET_BYTES),
  ): number {
    this.write(address, header);
    this.write(address + header.length, frame);
    let at = address;
    const pieces: Piece[] = lengths.map((length) => {
      const piece = { address: BigInt(at), length };
      at += length;
      return piece;
    });
    const { driver } = this.tx;
    const head = driver.chain(pieces);
    assert.ok(head >= 0, 'the ring is full');
    driver.show();
    this.tx.kick();
    return head;
  }

  /** Posts a receive buffer of one piece. */
  post(address: number, length: number): number {
    const { driver } = this.rx;
    const head = driver.chain([{ address: BigInt(address), length, write: true }]);
    assert.ok(head >= 0, 'the ring is full');
    driver.show();
    return head;
  }

  /** The end of the process that it would be: without a word. */
  end(): void {
    if (this.#ended) return;
    this.#ended = true;
    this.front.close();
    for (const ring of this.rings.values()) ring.close();
    this.space.destroy();
    calls.close(this.ram);
  }
}

export function mask(bits: readonly number[]): bigint {
  return bits.reduce((sum, bit) => sum | (1n << BigInt(bit)), 0n);
}

/** A frame as it came in. */
export interface Recorded {
  readonly bytes: Uint8Array;
  /** The three words of its vnet header. */
  readonly vnet: readonly [number, number, number];
}

/** Takes what a port receives, and writes it down; or borrows it. */
export class Recorder {
  readonly frames: Recorded[] = [];
  /** Frames that came, also when they are not kept. */
  count = 0;
  bytes = 0;
  /** Bytes of what it is handed are not looked at. */
  keeps = true;
  /** Borrows whatever it may. */
  borrows = false;
  /** Who it says it is. */
  borrower: object = this;
  readonly loans: Ubuf[] = [];
  /** Turns: calls of the receiver. */
  turns = 0;
  /** Has room for nothing. */
  refuses = false;

  constructor(port: Port) {
    port.receiver = (table) => this.#take(table);
  }

  #take(table: FrameTable): number {
    this.turns += 1;
    if (this.refuses) return 0;
    const { records } = table;
    for (let i = 0; i < table.count; i++) {
      const at = i * FRAME_WORDS;
      const length = records[at + FRAME_BYTES] as number;
      this.count += 1;
      this.bytes += length;
      if (this.borrows) {
        const loan = table.owner.lend(i, this.borrower);
        if (loan !== null) this.loans.push(loan);
      }
      if (!this.keeps) continue;
      const bytes = new Uint8Array(length);
      assert.equal(table.owner.gather(i, bytes), length);
      const words = [VNET_FLAGS, VNET_GSO, VNET_CSUM].map((word) => records[at + word] as number);
      this.frames.push({ bytes, vnet: words as [number, number, number] });
    }
    return table.count;
  }

  /** All loans come back. */
  release(): void {
    for (const loan of this.loans.splice(0)) loan.unref();
  }
}

/** Looks in every turn of the event loop, with a deadline: for what no event tells and what takes microseconds. */
export async function soon(what: string, condition: () => boolean, deadlineMs = 10_000): Promise<void> {
  const end = performance.now() + deadlineMs;
  while (!condition()) {
    if (performance.now() > end) throw new Error(`did not happen within ${deadlineMs} ms: ${what}`);
    await turn();
  }
}

export function turn(): Promise<void> {
  return new Promise((resolve) => {
    setImmediate(resolve);
  });
}

/** So many turns of the event loop: what has not happened then would not have happened for that reason. */
export async function turns(count: number): Promise<void> {
  for (let i = 0; i < count; i++) await turn();
}
