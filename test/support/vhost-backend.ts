/**
 * A vhost-user back-end that does what a test says: it answers as a back-end should, unless told otherwise for a request,
 * maps the front-end's memory, and has its rings in hand, to serve them or to write nonsense into them.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { errnoOf } from '../../src/core/errors.ts';
import { native } from '../../src/sys/binding.ts';
import { EPOLLIN } from '../../src/sys/constants.ts';
import { closeReceived } from '../../src/sys/fds.ts';
import { type Registration, reactor } from '../../src/sys/reactor.ts';
import { GuestSpace } from '../../src/sys/space.ts';
import { Framer, type Message } from '../../src/vhost/framing.ts';
import { type RingFeatures, type RingMemory, SplitQueue } from '../../src/vhost/queue.ts';
import { connectTo, listenAt, type SocketFile } from '../../src/vhost/socket-file.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import { availBytes, descBytes, type Features, features, has, usedBytes } from '../../src/wire/virtio.ts';
import { receiveWithFds, sendWithFds } from './descriptors.ts';

const EAGAIN = -errnoOf('EAGAIN');
const USER_BYTES = 4096;

/** What to do with a request instead of the usual: these bytes, nothing, or hang up. */
export type Whim = Uint8Array | 'silence' | 'hang up' | null;

export interface BackendOptions {
  readonly features?: Features;
  readonly protocolFeatures?: Features;
  readonly queuePairs?: number;
  readonly memSlots?: number;
  /** The answer to GET_CONFIG; an empty one if left out. */
  readonly config?: Uint8Array;
  /** Asked for every request; null: the usual. */
  readonly whim?: (message: Message, backend: FakeBackend) => Whim;
}

/** One request as it came, for comparing. */
export interface Heard {
  readonly request: number;
  readonly needsReply: boolean;
  readonly payload: Uint8Array;
  readonly fds: number;
}

export interface FakeRing {
  readonly index: number;
  size: number;
  base: number;
  enabled: boolean;
  address: vhost.VringAddress | null;
  kick: number;
  call: number;
  err: number;
  kicks: number;
  watch: Registration | null;
}

export const ALL_PROTOCOL: Features = features(
  vhost.VHOST_USER_PROTOCOL_F_MQ,
  vhost.VHOST_USER_PROTOCOL_F_RARP,
  vhost.VHOST_USER_PROTOCOL_F_REPLY_ACK,
  vhost.VHOST_USER_PROTOCOL_F_NET_MTU,
  vhost.VHOST_USER_PROTOCOL_F_CONFIG,
  vhost.VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS,
  vhost.VHOST_USER_PROTOCOL_F_STATUS,
);

/** A path for a socket in a folder of its own, removed by `end`. */
export function socketPath(): { path: string; end(): void } {
  const folder = mkdtempSync(join(tmpdir(), 'zerotx-vhost-'));
  return { path: join(folder, 'socket'), end: () => rmSync(folder, { recursive: true, force: true }) };
}

/** Descriptors of this process now, without the one that looks. */
export function openDescriptors(): number {
  return readdirSync('/proc/self/fd').length - 1;
}

export class FakeBackend {
  readonly heard: Heard[] = [];
  readonly rings: Map<number, FakeRing> = new Map();
  options: BackendOptions;
  space: GuestSpace | null = null;
  /** As accepted by the front-end. */
  accepted: Features = features();
  protocol: Features = features();
  status = 0;
  connections = 0;
  onKick: ((ring: FakeRing) => void) | null = null;
  #listener: SocketFile | null = null;
  #listening: Registration | null = null;
  #fd = -1;
  #watch: Registration | null = null;
  #framer = new Framer(closeReceived);

  constructor(options: BackendOptions = {}) {
    this.options = options;
  }

  listen(path: string): this {
    const listener = listenAt(path, 0o600);
    this.#listener = listener;
    this.#listening = reactor().add(listener.fd, EPOLLIN, () => this.#accept());
    return this;
  }

  /** To a front-end that listens. */
  connect(path: string): this {
    const fd = connectTo(path);
    assert.ok(fd >= 0, `connect: ${fd}`);
    this.#serve(fd);
    return this;
  }

  get isConnected(): boolean {
    return this.#fd >= 0;
  }

  /** As a process that dies: everything of the connection is gone. */
  hangUp(): void {
    if (this.#fd < 0) return;
    this.#watch?.remove();
    native().close(this.#fd);
    this.#fd = -1;
    this.#framer.end();
    for (const ring of this.rings.values()) {
      ring.watch?.remove();
      for (const fd of [ring.kick, ring.call, ring.err]) if (fd >= 0) native().close(fd);
    }
    this.rings.clear();
    this.space?.destroy();
    this.space = null;
  }

  close(): void {
    this.#listening?.remove();
    this.#listener?.unlink();
    if (this.#listener !== null) native().close(this.#listener.fd);
    this.#listener = null;
    this.hangUp();
  }

  say(bytes: Uint8Array, fds: readonly number[] = []): void {
    if (fds.length > 0) sendWithFds(this.#fd, bytes, fds);
    else native().sendv(this.#fd, [bytes], 1, 0);
  }

  ring(index: number): FakeRing {
    const known = this.rings.get(index);
    if (known !== undefined) return known;
    const ring: FakeRing = {
      index,
      size: 0,
      base: 0,
      enabled: !has(this.accepted, 30),
      address: null,
      kick: -1,
      call: -1,
      err: -1,
      kicks: 0,
      watch: null,
    };
    this.rings.set(index, ring);
    return ring;
  }

  /** Views of a ring, found by its user addresses. */
  memory(index: number): RingMemory {
    const { size, address } = this.ring(index);
    assert.ok(address !== null && this.space !== null);
    const view = (user: bigint, bytes: number): ArrayBuffer => {
      const guest = this.space?.find(user, bytes) ?? -1;
      const found = guest < 0 ? guest : (this.space?.view(guest, bytes) ?? -1);
      assert.ok(typeof found !== 'number', `a part of ring ${index} is not in memory: ${found}`);
      return found;
    };
    const eventIdx = has(this.accepted, 29);
    return {
      desc: view(address.desc, descBytes(size)),
      avail: view(address.avail, availBytes(size, eventIdx)),
      used: view(address.used, usedBytes(size, eventIdx)),
    };
  }

  get ringFeatures(): RingFeatures {
    return {
      eventIdx: has(this.accepted, 29),
      indirect: has(this.accepted, 28),
      inOrder: has(this.accepted, 35),
    };
  }

  queue(index: number): SplitQueue {
    const memory = this.memory(index);
    const usedIdx = new Uint16Array(memory.used)[1] as number;
    const { size, base } = this.ring(index);
    return new SplitQueue(memory, size, this.ringFeatures, base, usedIdx);
  }

  signal(index: number): void {
    const { call } = this.ring(index);
    if (call >= 0) native().eventfdSignal(call);
  }

  /** Returns what was sent, as used, and says that so many bytes were written; the frames without header. */
  takeSent(index = 1, written = 0): Buffer[] {
    const queue = this.queue(index);
    const frames: Buffer[] = [];
    for (let left = queue.available(); left > 0; left--) {
      const head = queue.peekHead(0);
      const parts: Uint8Array[] = [];
      for (let at = head, more = true; more; ) {
        const [low = 0, high = 0, length = 0, word = 0] = queue.desc.subarray(at * 4, at * 4 + 4);
        parts.push(this.read(high * 2 ** 32 + low, length));
        more = (word & 1) !== 0;
        at = word >>> 16;
      }
      frames.push(Buffer.concat(parts).subarray(12));
      queue.advance(1);
      queue.put(head, written);
    }
    this.ring(index).base = queue.lastAvail;
    queue.enableNotifications();
    if (queue.publish()) this.signal(index);
    return frames;
  }

  /** A frame for the front-end, in one buffer. */
  deliver(frame: Buffer, index = 0): void {
    const queue = this.queue(index);
    assert.ok(queue.available() > 0);
    const head = queue.peekHead(0);
    const [low = 0, high = 0] = queue.desc.subarray(head * 4, head * 4 + 2);
    const header = Buffer.alloc(12);
    header[10] = 1;
    this.write(high * 2 ** 32 + low, Buffer.concat([header, frame]));
    queue.advance(1);
    queue.put(head, 12 + frame.length);
    this.ring(index).base = queue.lastAvail;
    if (queue.publish()) this.signal(index);
  }

  /** Bytes at a guest address. */
  read(address: number, bytes: number): Uint8Array {
    const out = new Uint8Array(bytes);
    assert.ok((this.space?.read(address, out) ?? -1) >= 0, `no memory at ${address}`);
    return out;
  }

  write(address: number, bytes: Uint8Array): void {
    assert.ok((this.space?.write(address, bytes) ?? -1) >= 0, `no memory at ${address}`);
  }

  #accept(): void {
    for (;;) {
      const fd = native().accept((this.#listener as SocketFile).fd, new Uint8Array(110));
      if (fd === EAGAIN) return;
      assert.ok(fd >= 0, `accept: ${fd}`);
      this.hangUp();
      this.#serve(fd);
    }
  }

  #serve(fd: number): void {
    this.connections += 1;
    this.#fd = fd;
    this.#framer = new Framer(closeReceived);
    this.#watch = reactor().add(fd, EPOLLIN, () => this.#read());
  }

  #read(): void {
    while (this.#fd >= 0) {
      const got = receiveWithFds(this.#fd, this.#framer.wanted());
      if (got === undefined) return;
      if (got.bytes === 0) {
        this.hangUp();
        return;
      }
      const message = this.#framer.took(got.bytes, got.fds);
      if (message !== null) this.#handle(message);
    }
  }

  #handle(message: Message): void {
    const { request, flags, payload, fds } = message;
    const needsReply = (flags & vhost.VHOST_USER_NEED_REPLY) !== 0;
    this.heard.push({ request, needsReply, payload: payload.slice(), fds: fds.length });
    const whim = this.options.whim?.(message, this) ?? null;
    if (whim === 'hang up') {
      for (const fd of fds) closeReceived(fd);
      this.hangUp();
      return;
    }
    const answer = this.#answer(message);
    for (const fd of fds) closeReceived(fd);
    if (whim === 'silence' || this.#fd < 0) return;
    if (whim !== null) this.say(whim);
    else if (answer !== null) this.say(vhost.encodeReply(request, answer));
    else if (needsReply) this.say(vhost.encodeReply(request, vhost.encodeU64({ lo: 0, hi: 0 })));
  }

  /** Does what the request asks; the payload of its own reply, if it has one. Descriptors that are kept leave `fds`. */
  #answer({ request, payload, fds }: Message): Uint8Array | null {
    const { options } = this;
    const number = (value: number): Uint8Array => vhost.encodeU64({ lo: value, hi: 0 });
    switch (request) {
      case vhost.VHOST_USER_GET_FEATURES:
        return vhost.encodeU64(options.features ?? features(30, 32));
      case vhost.VHOST_USER_SET_FEATURES:
        this.accepted = vhost.decodeU64(payload) as Features;
        return null;
      case vhost.VHOST_USER_GET_PROTOCOL_FEATURES:
        return vhost.encodeU64(options.protocolFeatures ?? features());
      case vhost.VHOST_USER_SET_PROTOCOL_FEATURES:
        this.protocol = vhost.decodeU64(payload) as Features;
        return null;
      case vhost.VHOST_USER_GET_QUEUE_NUM:
        return number(options.queuePairs ?? 1);
      case vhost.VHOST_USER_GET_MAX_MEM_SLOTS:
        return number(options.memSlots ?? 8);
      case vhost.VHOST_USER_GET_CONFIG:
        return this.#config(payload);
      case vhost.VHOST_USER_SET_STATUS:
        this.status = (vhost.decodeU64(payload) as Features).lo;
        return null;
      case vhost.VHOST_USER_GET_STATUS:
        return number(this.status);
      case vhost.VHOST_USER_SET_MEM_TABLE:
        this.#map(vhost.decodeMemoryTable(payload) ?? [], fds);
        return null;
      case vhost.VHOST_USER_ADD_MEM_REG:
        this.#map([vhost.decodeSingleRegion(payload) as vhost.MemoryRegion], fds);
        return null;
      default:
        return this.#answerRing(request, payload, fds);
    }
  }

  #answerRing(request: number, payload: Uint8Array, fds: number[]): Uint8Array | null {
    const { index, num } = vhost.decodeState(payload) ?? { index: 0, num: 0 };
    const ring = (): FakeRing => this.ring(index & 0xff);
    switch (request) {
      case vhost.VHOST_USER_SET_VRING_NUM:
        ring().size = num;
        return null;
      case vhost.VHOST_USER_SET_VRING_BASE:
        ring().base = num;
        return null;
      case vhost.VHOST_USER_SET_VRING_ADDR:
        ring().address = vhost.decodeVringAddress(payload) as vhost.VringAddress;
        return null;
      case vhost.VHOST_USER_SET_VRING_ENABLE:
        ring().enabled = num === 1;
        return null;
      case vhost.VHOST_USER_GET_VRING_BASE:
        return vhost.encodeState({ index, num: ring().base });
      case vhost.VHOST_USER_SET_VRING_KICK:
        this.#watchKick(ring(), fds.shift() ?? -1);
        return null;
      case vhost.VHOST_USER_SET_VRING_CALL:
        ring().call = this.#swap(ring().call, fds.shift() ?? -1);
        return null;
      case vhost.VHOST_USER_SET_VRING_ERR:
        ring().err = this.#swap(ring().err, fds.shift() ?? -1);
        return null;
      default:
        return null;
    }
  }

  #swap(old: number, fd: number): number {
    if (old >= 0) native().close(old);
    return fd;
  }

  #watchKick(ring: FakeRing, fd: number): void {
    ring.watch?.remove();
    ring.watch = null;
    ring.kick = this.#swap(ring.kick, fd);
    if (fd < 0) return;
    ring.watch = reactor().add(fd, EPOLLIN, () => {
      ring.kicks += 1;
      this.onKick?.(ring);
    });
  }

  #config(payload: Uint8Array): Uint8Array {
    const asked = vhost.decodeConfig(payload);
    const { config } = this.options;
    if (config === undefined || asked === undefined) return new Uint8Array(0);
    return vhost.encodeConfig({ ...asked, data: config });
  }

  #map(regions: readonly vhost.MemoryRegion[], fds: readonly number[]): void {
    this.space ??= new GuestSpace();
    for (const [i, region] of regions.entries()) {
      assert.equal(Number(region.bytes) % USER_BYTES, 0);
      const mapped = this.space.map(
        fds[i] as number,
        Number(region.guestAddress),
        Number(region.bytes),
        Number(region.mmapOffset),
        region.userAddress,
      );
      assert.equal(mapped, 0);
    }
  }
}

/** Runs `test` with a back-end that listens, and looks for descriptors that stay open. */
export async function withBackend(
  path: string,
  options: BackendOptions,
  test: (backend: FakeBackend) => Promise<void>,
): Promise<void> {
  const baseline = openDescriptors();
  const backend = new FakeBackend(options).listen(path);
  try {
    await test(backend);
  } finally {
    backend.close();
  }
  assert.equal(openDescriptors(), baseline, 'a descriptor was left open');
}
