/**
 * The queues of a front-end without a back-end: the device's side of the rings is in the test's hand, over the same memory.
 */
import assert from 'node:assert/strict';
import { FrontendMemory } from '../../src/vhost/frontend-memory.ts';
import { frontendSettings, type VhostUserFrontendOptions } from '../../src/vhost/frontend-options.ts';
import type { RingPlan } from '../../src/vhost/frontend-protocol.ts';
import { FrontendQueues } from '../../src/vhost/frontend-queues.ts';
import type { ReceiveQueue } from '../../src/vhost/frontend-receive.ts';
import type { TransmitQueue } from '../../src/vhost/frontend-transmit.ts';
import { type RingFeatures, SplitQueue } from '../../src/vhost/queue.ts';
import { type Features, features } from '../../src/wire/virtio.ts';

const NEXT = 1;
const WRITE = 2;
const INDIRECT = 4;
const HEADER = 12;

export interface Piece {
  readonly address: number;
  readonly length: number;
  readonly isWritable: boolean;
}

export interface Wants extends Partial<VhostUserFrontendOptions> {
  readonly eventIdx?: boolean;
  readonly indirect?: boolean;
  readonly inOrder?: boolean;
  readonly mergeable?: boolean;
}

/** One queue pair: rings 0 (receive) and 1 (transmit). */
export class QueuesInHand {
  readonly memory: FrontendMemory;
  readonly queues: FrontendQueues;
  readonly tx: TransmitQueue;
  readonly rx: ReceiveQueue;
  readonly broken: string[] = [];
  readonly #ring: RingFeatures;
  readonly #size: number;
  readonly #agreed: Features;
  /** The device's side, as it was told. */
  transmit: SplitQueue;
  receive: SplitQueue;

  constructor(wants: Wants = {}) {
    const { eventIdx = true, indirect = false, inOrder = false, mergeable = true } = wants;
    const settings = frontendSettings({ path: 'nobody', polled: true, queueSize: 16, ...wants });
    const { queueSize: size, tableEntries, buffers, bufferBytes, memoryBytes: extraBytes } = settings;
    this.#ring = { eventIdx, indirect, inOrder };
    this.#size = size;
    this.memory = new FrontendMemory({ rings: 2, size, tableEntries, buffers, bufferBytes, extraBytes });
    let now = 0;
    this.queues = new FrontendQueues({
      settings,
      memory: this.memory,
      now: () => ++now,
      onBroken: (reason) => this.broken.push(reason),
      onCompleted: () => {},
    });
    this.tx = this.queues.transmit[0] as TransmitQueue;
    this.rx = this.queues.receive[0] as ReceiveQueue;
    const bits = [32, ...(eventIdx ? [29] : []), ...(indirect ? [28] : []), ...(inOrder ? [35] : [])];
    this.#agreed = features(...bits, ...(mergeable ? [15] : []));
    const [receive, transmit] = this.#setUp(true);
    this.receive = receive;
    this.transmit = transmit;
    this.queues.start();
  }

  /** The back-end dies, and another one is told of the rings. */
  reconnect(): RingPlan[] {
    this.queues.interrupt();
    const [receive, transmit, plans] = this.#setUp(false);
    this.receive = receive;
    this.transmit = transmit;
    this.queues.start();
    return plans;
  }

  end(): void {
    this.queues.end(new Error('the test is over'));
    this.memory.close();
  }

  /** Heads that the device can take. */
  available(queue: SplitQueue): number[] {
    const count = queue.available();
    assert.ok(count >= 0, String(queue.broken));
    return Array.from({ length: count }, (_, i) => queue.peekHead(i));
  }

  /** Takes the next head. */
  take(queue: SplitQueue): number {
    assert.ok(queue.available() > 0);
    const head = queue.peekHead(0);
    queue.advance(1);
    return head;
  }

  /** Takes all there is, and returns it as used. */
  finishAll(): number {
    const heads = this.available(this.transmit);
    this.transmit.advance(heads.length);
    for (const head of heads) this.transmit.put(head, 0);
    this.transmit.publish();
    return heads.length;
  }

  pieces({ desc }: SplitQueue, head: number): Piece[] {
    const pieces: Piece[] = [];
    let words = desc;
    for (let index = head, left = 1025; ; left--) {
      assert.ok(left > 0, 'a chain without end');
      const [low, high, length, word] = words.subarray(index * 4, index * 4 + 4) as unknown as number[];
      const address = (high as number) * 2 ** 32 + (low as number);
      const flags = (word as number) & 0xffff;
      if ((flags & INDIRECT) !== 0) {
        assert.equal(words, desc, 'nested');
        assert.equal(flags, INDIRECT);
        words = new Uint32Array(this.bytes(address, length as number).slice().buffer);
        index = 0;
        continue;
      }
      pieces.push({ address, length: length as number, isWritable: (flags & WRITE) !== 0 });
      if ((flags & NEXT) === 0) return pieces;
      index = (word as number) >>> 16;
    }
  }

  /** Memory at a guest address. */
  bytes(address: number, length: number): Uint8Array {
    const offset = address - this.memory.guestAddress(0);
    assert.ok(offset >= 0 && offset + length <= this.memory.bytes, 'an address outside of the memory');
    return this.memory.u8.subarray(offset, offset + length);
  }

  /** Header and frame of a chain that was sent. */
  sent(head: number): { header: Buffer; frame: Buffer; pieces: number } {
    const pieces = this.pieces(this.transmit, head);
    assert.ok(pieces.every(({ isWritable }) => !isWritable));
    const all = Buffer.concat(pieces.map(({ address, length }) => this.bytes(address, length)));
    return { header: all.subarray(0, HEADER), frame: all.subarray(HEADER), pieces: pieces.length };
  }

  /**
   * Puts a frame into as many chains as it needs, which are used then; false: too few. `numBuffers` instead of the right
   * number; `length` instead of the right length of the last.
   */
  deliver(frame: Uint8Array, numBuffers?: number): boolean {
    const { receive } = this;
    const all = Buffer.concat([Buffer.alloc(HEADER), frame]);
    const heads = this.available(receive);
    const used: [number, number][] = [];
    let at = 0;
    for (const head of heads) {
      if (at === all.length) break;
      const [piece] = this.pieces(receive, head) as [Piece];
      assert.ok(piece.isWritable);
      const part = all.subarray(at, at + piece.length);
      this.bytes(piece.address, part.length).set(part);
      used.push([head, part.length]);
      at += part.length;
    }
    if (at < all.length) return false;
    const first = this.pieces(receive, (used[0] as [number, number])[0])[0] as Piece;
    const count = numBuffers ?? used.length;
    this.bytes(first.address + 10, 2).set([count & 0xff, count >> 8]);
    receive.advance(used.length);
    for (const [head, length] of used) receive.put(head, length);
    receive.publish();
    return true;
  }

  #setUp(isNew: boolean): [SplitQueue, SplitQueue, RingPlan[]] {
    const agreement = {
      features: this.#agreed,
      protocolFeatures: features(),
      queuePairs: 1,
      mac: null,
      mtu: null,
    };
    const plans = this.queues.setUp(agreement, isNew);
    const [receive, transmit] = plans.map(({ index, base }) => {
      const ring = this.memory.ring(index);
      const usedIdx = new Uint16Array(ring.used)[1] as number;
      return new SplitQueue(ring, this.#size, this.#ring, base, usedIdx);
    });
    return [receive as SplitQueue, transmit as SplitQueue, plans];
  }
}

/** A frame of `bytes` whose content tells it from others. */
export function frameOf(bytes: number, id: number): Buffer {
  const frame = Buffer.alloc(bytes);
  for (let i = 0; i < bytes; i++) frame[i] = (id * 31 + i * 7) & 0xff;
  return frame;
}
