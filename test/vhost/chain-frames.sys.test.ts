/** Chains of one guest become frames, and frames chains of another: with the native copies, byte for byte. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  FRAME_BYTES,
  FRAME_SLOT,
  FRAME_STATUS,
  FRAME_VLAN,
  FRAME_WORDS,
  type FrameTable,
  TAIL_COUNT,
  TAIL_START,
  VNET_CSUM,
  VNET_FLAGS,
  VNET_GSO,
} from '../../src/core/frames.ts';
import { OFFLOAD_ALL } from '../../src/core/port.ts';
import { native } from '../../src/sys/binding.ts';
import { ChainReader } from '../../src/vhost/chain.ts';
import { SplitQueue } from '../../src/vhost/queue.ts';
import { RxFiller } from '../../src/vhost/rx.ts';
import { scaled } from '../support/counts.ts';
import { type GuestMemory, guestMemory, pattern, table } from '../support/guest-memory.ts';
import { Random } from '../support/random.ts';
import { MockDriver, type Piece, writeTable } from '../support/vring.ts';

const MIB = 2 ** 20;
const EMSGSIZE = 90;
const HEAD_MAX = 256;
const FEATURES = { eventIdx: true, indirect: true, inOrder: true };

/** `length` cut into pieces, some of them empty. */
function cut(random: Random, length: number, most: number): number[] {
  const cuts = Array.from({ length: random.below(most) }, () => random.below(length + 1)).sort(
    (a, b) => a - b,
  );
  return [0, ...cuts].map((from, i) => (cuts[i] ?? length) - from);
}

/** A guest that sends: its driver, its memory, and the device's side of its queue. */
class Sender {
  readonly guest: GuestMemory = guestMemory(4 * MIB, 'zerotx-chain-tx');
  readonly driver = new MockDriver(256, FEATURES);
  readonly queue = new SplitQueue(this.driver.memory, 256, FEATURES, 0, 0);
  readonly frames: FrameTable = table(64, 2048, HEAD_MAX);
  readonly chains: ChainReader;
  #at = 0;

  constructor() {
    const { space } = this.guest;
    this.chains = new ChainReader(this.queue, {
      writable: false,
      space: space.id,
      bytesMax: 128 * 1024,
      readIndirect: (address, out) => (space.read(address, out) === 0 ? out.length : -1),
    });
  }

  /** Sends one chain of these bytes, in pieces of these lengths. */
  send(bytes: Uint8Array, lengths: readonly number[], indirect: boolean): void {
    const pieces: Piece[] = [];
    let from = 0;
    for (const length of lengths) {
      assert.equal(this.guest.space.write(this.#at, bytes.subarray(from, from + length)), 0);
      pieces.push({ address: BigInt(this.#at), length });
      from += length;
      this.#at += length + 5;
    }
    assert.equal(from, bytes.length);
    if (!indirect) assert.ok(this.driver.chain(pieces) >= 0);
    else this.#indirect(pieces);
    this.driver.show();
  }

  #indirect(pieces: Piece[]): void {
    // The table is written into the guest's memory; the mock driver only needs the descriptor.
    const at = (this.#at + 15) & ~15;
    const bytes = new Uint8Array(16 * pieces.length);
    writeTable(bytes, pieces);
    assert.equal(this.guest.space.write(at, bytes), 0);
    this.#at = at + bytes.length;
    const head = this.driver.chain([{ address: BigInt(at), length: bytes.length }]);
    this.driver.writeDesc(head, { address: BigInt(at), length: bytes.length, flags: 4, next: 0 });
  }

  /** Takes all chains and peeks into them. */
  peek(headerBytes: number): number {
    const { frames, queue } = this;
    frames.clear();
    const { records } = frames;
    for (let left = queue.available(); left > 0; left--) {
      const head = queue.peekHead(0);
      const start = frames.segmentCount;
      const count = this.chains.read(head, frames);
      assert.ok(count > 0);
      const at = frames.count * FRAME_WORDS;
      records[at + TAIL_START] = start;
      records[at + TAIL_COUNT] = count;
      records[at + FRAME_SLOT] = head;
      records[at + FRAME_VLAN] = 0;
      frames.count += 1;
      queue.advance(1);
    }
    return native().framesPeek(frames.bytes, frames.count, headerBytes, HEAD_MAX);
  }

  gather(frame: number): Uint8Array {
    const bytes = this.frames.records[frame * FRAME_WORDS + FRAME_BYTES] as number;
    const out = new Uint8Array(bytes);
    assert.equal(native().framesGather(this.frames.bytes, frame, out), bytes);
    return out;
  }

  /** All went out. */
  done(): void {
    for (let i = 0; i < this.frames.count; i++) {
      this.queue.put(this.frames.records[i * FRAME_WORDS + FRAME_SLOT] as number, 0);
    }
    this.queue.publish();
    this.driver.reap();
    this.#at = 0;
  }
}

/** A guest that receives. */
class Receiver {
  readonly guest: GuestMemory = guestMemory(4 * MIB, 'zerotx-chain-rx');
  readonly driver = new MockDriver(256, FEATURES);
  readonly queue = new SplitQueue(this.driver.memory, 256, FEATURES, 0, 0);
  readonly filler: RxFiller;
  readonly #posted = new Map<number, Piece[]>();
  #at = 0;

  constructor(mergeable: boolean) {
    const { space } = this.guest;
    const options = { writable: true, space: space.id, bytesMax: MIB, readIndirect: () => -1 };
    this.filler = new RxFiller(this.queue, new ChainReader(this.queue, options), table(16, 1024, 16), {
      headerBytes: 12,
      mergeable,
      offloads: OFFLOAD_ALL,
      frameBytesMax: 65_566,
      deliver: (src, target, count) => native().framesDeliver(src.bytes, target.bytes, count),
    });
  }

  /** Posts a chain, if there is room. */
  post(lengths: readonly number[]): void {
    if (this.driver.freeCount < lengths.length) return;
    // Round and round: what was posted first has gone by then.
    if (this.#at > 3 * MIB) this.#at = 0;
    const pieces = lengths.map((length) => {
      const address = BigInt(this.#at);
      this.#at += length + 3;
      return { address, length, write: true };
    });
    const head = this.driver.chain(pieces);
    this.#posted.set(head, pieces);
    this.driver.show();
  }

  /** Header and frame of each that arrived. */
  frames(): Buffer[] {
    this.queue.publish();
    const parts = this.driver.reap().map(([head, length]) => {
      const pieces = this.#posted.get(head) as Piece[];
      const bytes = Buffer.concat(
        pieces.map((piece) => {
          const out = Buffer.alloc(piece.length);
          assert.equal(this.guest.space.read(Number(piece.address), out), 0);
          return out;
        }),
      );
      return bytes.subarray(0, length);
    });
    const frames: Buffer[] = [];
    for (let first = parts.shift(); first !== undefined; first = parts.shift()) {
      frames.push(Buffer.concat([first, ...parts.splice(0, first.readUInt16LE(10) - 1)]));
    }
    return frames;
  }
}

describe('frames of a guest', () => {
  it('A9: any split of header and frame, direct and indirect, gives the frame', () => {
    const random = new Random(7);
    const sender = new Sender();
    for (let round = 0; round < scaled(20, 2000); round++) {
      const headerBytes = random.pick([0, 10, 12]);
      const sent = Array.from({ length: 1 + random.below(10) }, (_, i) => {
        const frame = pattern(14 + random.below(random.pick([50, 300, 1500, 60_000])), round * 16 + i);
        const bytes = Buffer.concat([pattern(headerBytes, i), frame]);
        sender.send(bytes, cut(random, bytes.length, 18), random.chance(0.5));
        return frame;
      });
      assert.equal(sender.peek(headerBytes), sent.length);
      for (const [i, frame] of sent.entries())
        assert.deepEqual(Buffer.from(sender.gather(i)), Buffer.from(frame));
      sender.done();
    }
    sender.guest.end();
  });

  it('A9: the header in single bytes is what the words say', () => {
    const sender = new Sender();
    const header = Buffer.from('0181360064002200100007ff', 'hex');
    sender.send(Buffer.concat([header, pattern(100)]), [...Array.from({ length: 12 }, () => 1), 100], false);
    assert.equal(sender.peek(12), 1);
    const { records } = sender.frames;
    assert.deepEqual(
      [records[VNET_FLAGS], records[VNET_GSO], records[VNET_CSUM]],
      [0x00368101, 0x00220064, 0xff070010],
    );
    sender.guest.end();
  });

  it('A11: frames of 1 to 13 bytes are refused, those beside them are not', () => {
    const sender = new Sender();
    for (let length = 1; length < 14; length++)
      sender.send(pattern(12 + length), [12, length], length % 2 === 0);
    sender.send(pattern(12 + 14), [12, 14], false);
    assert.equal(sender.peek(12), 1);
    const statuses = Array.from(
      { length: 14 },
      (_, i) => sender.frames.records[i * FRAME_WORDS + FRAME_STATUS],
    );
    assert.deepEqual(statuses, [...Array(13).fill(EMSGSIZE), 0]);
    sender.guest.end();
  });
});

describe('from guest to guest', () => {
  for (const mergeable of [true, false]) {
    it(`${mergeable ? 'with' : 'without'} MRG_RXBUF every frame arrives as it was sent`, () => {
      const random = new Random(mergeable ? 1 : 2);
      const sender = new Sender();
      const receiver = new Receiver(mergeable);
      for (let round = 0; round < scaled(20, 2000); round++) {
        const sent = Array.from({ length: 1 + random.below(10) }, (_, i) => {
          const frame = pattern(14 + random.below(random.pick([50, 300, 1500, 9000])), round * 16 + i);
          const bytes = Buffer.concat([Buffer.alloc(12), frame]);
          sender.send(bytes, cut(random, bytes.length, 8), random.chance(0.5));
          if (mergeable)
            for (let room = 0; room < bytes.length; room += 600) receiver.post(cut(random, 600, 3));
          else receiver.post(cut(random, bytes.length + random.below(2) * 100, 6));
          return frame;
        });
        assert.equal(sender.peek(12), sent.length);
        const which = Uint32Array.from(sent, (_, i) => i);
        let arrived: Buffer[] = [];
        let at = 0;
        for (let looks = 0; at < sent.length && looks < 10; looks++) {
          at = receiver.filler.fill(sender.frames, which, at, sent.length);
          arrived = [...arrived, ...receiver.frames()];
          // Chains are of 600 bytes together at least; a useless one among them may have cost some.
          if (at < sent.length) for (let i = 0; i < 16; i++) receiver.post([600]);
        }
        assert.equal(at, sent.length);
        assert.deepEqual(
          arrived.map((bytes) => bytes.subarray(12).toString('hex')),
          sent.map((frame) => Buffer.from(frame).toString('hex')),
        );
        sender.done();
      }
      assert.equal(receiver.filler.counters.droppedFault, 0);
      sender.guest.end();
      receiver.guest.end();
    });
  }
});
