/**
 * Random descriptors, tables, rings and headers through a whole device, with its protocol, its memory and its native calls, beside the
 * slow model of one: the same chains must become the same frames, the others must go back or break the ring as the model says.
 */
import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import { CHAIN_DESCRIPTORS_MAX } from '../../src/vhost/chain.ts';
import { VHOST_USER_SET_VRING_KICK } from '../../src/wire/vhost-user.ts';
import { scaled } from '../support/counts.ts';
import { DeviceModel } from '../support/device-model.ts';
import {
  EVENT_IDX_BIT,
  type HostileGuest,
  INDIRECT_BIT,
  soon,
  TX,
  VNET_BYTES,
} from '../support/hostile-guest.ts';
import { endScenes, openScene, type Scene } from '../support/hostile-scene.ts';
import { Random } from '../support/random.ts';
import { MIB, region, u64 } from '../support/vhost-session.ts';
import { GuestRam, INDIRECT, NEXT, type Piece, WRITE } from '../support/vring.ts';

/** Chains of all runs together. */
const CHAINS = scaled(300_000, 100_000_000);
const SIZE = 64;
/** Bytes of the longest chain that the device looks at, and of the longest frame. */
const CHAIN_BYTES_MAX = 128n * 1024n;
const FRAME_BYTES_MAX = 65_566;

/** What the device has: two regions in a row, and one behind a hole. The file has the hole, too. */
const LOW = 3 * MIB;
const HIGH = 4 * MIB;
const END = 5 * MIB;
const RINGS = MIB;

interface Expected {
  readonly head: number;
  /** Null: it goes back unsent. */
  readonly frame: Uint8Array | null;
}

class Fuzz {
  readonly random: Random;
  readonly scene: Scene;
  readonly guest: HostileGuest;
  readonly ram: GuestRam;
  readonly options: ConstructorParameters<typeof DeviceModel>[2];
  model: DeviceModel;
  chains = 0;
  sent = 0;
  broken = 0;

  constructor(random: Random, scene: Scene, guest: HostileGuest) {
    this.random = random;
    this.scene = scene;
    this.guest = guest;
    const bytes = new Uint8Array(guest.view(0, END));
    this.ram = new GuestRam([0n, bytes.subarray(0, LOW)], [BigInt(HIGH), bytes.subarray(HIGH, END)]);
    for (let i = RINGS; i < END; i++) bytes[i] = (i * 7 + (i >> 8)) & 0xff;
    this.options = {
      size: SIZE,
      writable: false,
      indirect: guest.features.indirect,
      bytesMax: CHAIN_BYTES_MAX,
      segmentsMax: 4096,
      descriptorsMax: CHAIN_DESCRIPTORS_MAX,
    };
    this.model = new DeviceModel(guest.tx.driver, this.ram, this.options, 0);
  }

  /** Where a piece begins: mostly where there is memory, and near the edges of it. */
  address(): bigint {
    const { random } = this;
    const edge = random.pick([RINGS, 2 * MIB, LOW, HIGH, END]);
    return random.pick([
      BigInt(RINGS + random.below(2 * MIB)),
      BigInt(RINGS + random.below(2 * MIB)),
      BigInt(HIGH + random.below(MIB)),
      BigInt(edge - random.below(200)),
      BigInt(edge + random.below(10)),
      random.pick([0n, 1n << 52n, (1n << 53n) + BigInt(RINGS), (1n << 64n) - 100n, 1n << 63n]),
    ]);
  }

  length(isSmall: boolean): number {
    const { random } = this;
    const most = isSmall ? 2000 : 70_000;
    const few = random.pick([0, 1, 2, 12, 13, 14, 26, 100, 256, 268]);
    if (isSmall) return random.chance(0.5) ? few : random.below(most);
    return random.pick([few, few, random.below(300), random.below(most), 65_578, 65_579, 0xffff_ffff]);
  }

  flags(): number {
    const { random } = this;
    let flags = random.chance(0.55) ? NEXT : 0;
    if (random.chance(0.04)) flags |= WRITE;
    if (random.chance(this.guest.features.indirect ? 0.15 : 0.004))
      flags = INDIRECT | (random.chance(0.03) ? flags : 0);
    if (random.chance(0.02)) flags |= random.below(65_536) & ~7;
    return flags;
  }

  /** Writes over descriptors, and over what may be an indirect table. */
  scribble(isSmall: boolean): void {
    const { random, guest } = this;
    for (let count = random.below(24); count > 0; count--) {
      const flags = this.flags();
      const isTable = (flags & INDIRECT) !== 0;
      const entries = random.pick([1, 2, 3, 4, 8]);
      const tableBytes = random.chance(0.98) ? 16 * entries : random.pick([0, 8, 17, 16 * 1025]);
      guest.tx.driver.writeDesc(random.below(SIZE), {
        address: isTable ? this.table(isSmall, entries) : this.address(),
        length: isTable ? tableBytes : this.length(isSmall),
        flags,
        next: random.chance(0.997) ? random.below(SIZE) : random.below(65_536),
      });
    }
  }

  /** An indirect table of a few entries, somewhere; or a place where there is none. */
  table(isSmall: boolean, entries: number): bigint {
    const { random, guest } = this;
    if (random.chance(0.1)) return this.address();
    const at = RINGS + 16 * random.below(1000);
    const bytes = new DataView(new ArrayBuffer(128));
    for (let i = 0; i < 8; i++) {
      bytes.setBigUint64(16 * i, this.address(), true);
      bytes.setUint32(16 * i + 8, this.length(isSmall), true);
      const isLast = i + 1 >= entries && random.chance(0.98);
      const not = (random.chance(0.98) ? INDIRECT : 0) | (isLast ? NEXT : 0);
      bytes.setUint16(16 * i + 12, this.flags() & ~not, true);
      bytes.setUint16(16 * i + 14, random.chance(0.98) ? i + 1 : random.below(10), true);
    }
    guest.write(at, new Uint8Array(bytes.buffer));
    return BigInt(at);
  }

  /** Offers some heads, one of which may be wrong or there already, and says what must come of them. */
  offer(isSmall: boolean): Expected[] {
    const { random, guest } = this;
    const { driver } = guest.tx;
    const heads = new Set<number>();
    for (let count = 1 + random.below(12); count > 0; count--) heads.add(random.below(SIZE));
    const list = [...heads];
    if (isSmall && random.chance(0.01)) list.push(list[0] as number);
    if (random.chance(0.005)) list.push(SIZE + random.below(65_536 - SIZE));
    for (const head of list) driver.push(head);
    if (random.chance(0.003))
      driver.setAvailIdx(driver.availIdx + random.pick([SIZE, SIZE + 1, 30_000, 65_535]));
    else driver.show();
    this.chains += list.length;
    const taken = this.model.take();
    for (const { head } of taken) this.model.finish(head);
    this.model.report();
    return taken.map(({ head, verdict }) => ({
      head,
      frame: verdict.kind === 'chain' ? this.frame(verdict.pieces) : null,
    }));
  }

  /** Header and frame, if it is one. */
  frame(pieces: readonly Piece[]): Uint8Array | null {
    const total = pieces.reduce((sum, { length }) => sum + length, 0) - VNET_BYTES;
    if (total < 14 || total > FRAME_BYTES_MAX) return null;
    const parts: Uint8Array[] = [];
    for (const { address, length } of pieces) {
      const bytes = this.ram.find(address, length);
      if (bytes === null) return null;
      parts.push(bytes);
    }
    return Buffer.concat(parts);
  }

  async step(): Promise<void> {
    const { random, scene, guest, model } = this;
    const isSmall = random.chance(0.93);
    this.scribble(isSmall);
    const { usedIdx } = guest.tx;
    const expected = this.offer(isSmall);
    const brokenBefore = scene.broken.length;
    guest.tx.kick();
    const until = (usedIdx + expected.length) & 0xffff;
    const isBroken = (): boolean => scene.broken.length > brokenBefore;
    await soon('it is done', () => guest.tx.usedIdx === until && isBroken() === model.isBroken);
    expected.forEach(({ head }, i) => {
      assert.deepEqual(guest.tx.entry(usedIdx + i), [head, 0]);
    });
    const frames = expected.flatMap(({ frame }) => (frame === null ? [] : [frame]));
    assert.equal(scene.recorder.frames.length, frames.length);
    frames.forEach((frame, i) => {
      const got = scene.recorder.frames[i];
      assert.ok(
        got !== undefined && Buffer.compare(got.bytes, frame.subarray(VNET_BYTES)) === 0,
        `frame ${i}`,
      );
      const words = new Uint32Array(frame.buffer.slice(frame.byteOffset, frame.byteOffset + VNET_BYTES));
      assert.deepEqual(got.vnet, [...words]);
    });
    scene.recorder.frames.length = 0;
    this.sent += frames.length;
    if (model.isBroken) await this.restart();
  }

  async restart(): Promise<void> {
    const { guest } = this;
    this.broken += 1;
    const base = await guest.base(TX);
    assert.equal(base, this.model.last, 'all that was taken is back');
    guest.tx.driver.availIdx = base;
    guest.tx.driver.show();
    // All else is as it was set.
    assert.equal(await guest.front.ack(VHOST_USER_SET_VRING_KICK, u64(TX), [guest.tx.kickFd]), 0);
    this.model = new DeviceModel(guest.tx.driver, this.ram, this.options, base);
  }
}

async function fuzz(seed: number, bits: readonly number[], chains: number): Promise<Fuzz> {
  const scene = await openScene();
  const guest = scene.guest({ size: SIZE, bits, memoryBytes: END, rings: [TX] });
  await guest.greet();
  const regions = [region(0, 2 * MIB), region(2 * MIB, MIB), region(HIGH, MIB)];
  assert.equal(await guest.tell(regions, [guest.ram, guest.ram, guest.ram]), 0);
  await guest.start(TX);
  const run = new Fuzz(new Random(seed), scene, guest);
  try {
    while (run.chains < chains) await run.step();
  } catch (error) {
    throw new Error(`seed ${seed}, after ${run.chains} chains`, { cause: error });
  }
  assert.deepEqual(scene.failures, []);
  return run;
}

describe('a device and its model', { timeout: scaled(120_000, 24 * 3_600_000) }, () => {
  afterEach(endScenes);

  const variants = [[], [INDIRECT_BIT], [INDIRECT_BIT, EVENT_IDX_BIT]];
  for (const [i, bits] of variants.entries()) {
    it(`agree on rings that are scribbled over, with features ${bits.join(' and ') || 'of nothing'}`, async () => {
      const seed = Number(process.env.FC_SEED ?? 1) + i;
      const run = await fuzz(seed, bits, CHAINS / variants.length);
      // It was neither all nonsense nor none.
      assert.ok(run.sent > run.chains / 50, `${run.sent} frames of ${run.chains} chains`);
      assert.ok(run.broken > 10, `${run.broken} broken`);
    });
  }
});
