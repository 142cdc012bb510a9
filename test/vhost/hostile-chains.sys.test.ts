/**
 * Rings of a guest that is hostile or out of its mind, against a whole device: what must become of each chain, that the ring or the
 * chain is all that suffers, and that a broken ring is whole again after GET_VRING_BASE.
 */
import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import {
  encodeVringAddress,
  VHOST_USER_SET_VRING_ADDR,
  VHOST_USER_SET_VRING_KICK,
} from '../../src/wire/vhost-user.ts';
import {
  type GuestOptions,
  type HostileGuest,
  PAYLOAD,
  soon,
  TX,
  turns,
  VNET_BYTES,
} from '../support/hostile-guest.ts';
import { endScenes, frameOf, openScene, type Scene, Witness } from '../support/hostile-scene.ts';
import { u64 } from '../support/vhost-session.ts';
import { INDIRECT, NEXT, WRITE, writeDescriptor } from '../support/vring.ts';

const TABLE = PAYLOAD + 0x8_0000;
const FRAME = frameOf(100, 3);

/** What becomes of it: the ring is broken; the chain goes back and nothing is sent; or the frame goes out. */
type End = 'broken' | 'used' | 'frame';

interface Attack {
  /** The kind of input, as one may say in one line, and what it is here. */
  readonly what: string;
  readonly end: End;
  readonly reason?: RegExp;
  readonly guest?: GuestOptions;
  /** Writes what it likes; the head that it offers. Null: it has offered nothing, or itself. */
  readonly act: (guest: HostileGuest) => number | null;
}

/** A descriptor of the ring. */
function desc(
  guest: HostileGuest,
  at: number,
  address: number | bigint,
  length: number,
  flags = 0,
  next = 0,
): void {
  guest.tx.driver.writeDesc(at, { address: BigInt(address), length, flags, next });
}

/** An indirect table of [address, length, flags, next], and descriptor 0 that names it. */
function table(guest: HostileGuest, entries: readonly (readonly [number, number, number, number])[]): void {
  const bytes = new Uint8Array(16 * entries.length);
  const view = new DataView(bytes.buffer);
  entries.forEach(([address, length, flags, next], i) => {
    writeDescriptor(view, i, { address: BigInt(address), length, flags, next });
  });
  guest.write(TABLE, bytes);
  desc(guest, 0, TABLE, bytes.length, INDIRECT);
}

/** Header and FRAME, one after the other, in memory. */
function payload(guest: HostileGuest): void {
  guest.write(PAYLOAD, new Uint8Array(VNET_BYTES));
  guest.write(PAYLOAD + VNET_BYTES, FRAME);
}

const WHOLE = VNET_BYTES + FRAME.length;

const attacks: Attack[] = [
  {
    what: 'avail idx jumps > N ahead: by one more than the ring has',
    end: 'broken',
    reason: /avail.idx is 257 ahead/,
    act: ({ tx }) => {
      tx.driver.setAvailIdx(257);
      return null;
    },
  },
  {
    what: 'avail idx jumps > N ahead: by half of all numbers',
    end: 'broken',
    reason: /32768 ahead/,
    act: ({ tx }) => {
      tx.driver.setAvailIdx(32_768);
      return null;
    },
  },
  {
    what: 'avail idx jumps > N ahead: a step back',
    end: 'broken',
    act: ({ tx }) => {
      tx.driver.setAvailIdx(0xffff);
      return null;
    },
  },
  { what: 'head >= N: the first beyond', end: 'broken', reason: /head 256/, act: () => 256 },
  { what: 'head >= N: the last there is', end: 'broken', reason: /head 65535/, act: () => 65_535 },
  ...[256, 65_535].map(
    (next): Attack => ({
      what: `next >= N: ${next}`,
      end: 'broken',
      reason: /next/,
      act: (guest) => {
        payload(guest);
        desc(guest, 0, PAYLOAD, WHOLE, NEXT, next);
        return 0;
      },
    }),
  ),
  {
    what: 'indirect next >= count: by one',
    end: 'broken',
    reason: /next 2 in a table of 2/,
    act: (guest) => {
      payload(guest);
      table(guest, [
        [PAYLOAD, WHOLE, NEXT, 2],
        [PAYLOAD, WHOLE, 0, 0],
      ]);
      return 0;
    },
  },
  ...([0, 64] as const).flatMap((length): Attack[] => [
    {
      what: `loop: onto itself, of ${length} bytes`,
      end: 'broken',
      reason: /more than 256 descriptors|chain/,
      act: (guest) => {
        desc(guest, 0, PAYLOAD, length, NEXT, 0);
        return 0;
      },
    },
    {
      what: `loop: of two, of ${length} bytes`,
      end: 'broken',
      act: (guest) => {
        desc(guest, 0, PAYLOAD, length, NEXT, 1);
        desc(guest, 1, PAYLOAD, length, NEXT, 0);
        return 0;
      },
    },
    {
      what: `loop: in an indirect table, of ${length} bytes`,
      end: 'broken',
      act: (guest) => {
        table(guest, [
          [PAYLOAD, length, NEXT, 1],
          [PAYLOAD, length, NEXT, 0],
        ]);
        return 0;
      },
    },
  ]),
  ...[0, 8, 15, 17, 24, 16 * 1025, 0xffff_fff0].map(
    (length): Attack => ({
      what: `indirect len % 16, 0, huge: ${length}`,
      end: 'broken',
      reason: /indirect table of/,
      act: (guest) => {
        payload(guest);
        table(guest, [[PAYLOAD, WHOLE, 0, 0]]);
        desc(guest, 0, TABLE, length, INDIRECT);
        return 0;
      },
    }),
  ),
  {
    what: 'indirect and next: both on one descriptor',
    end: 'broken',
    act: (guest) => {
      payload(guest);
      table(guest, [[PAYLOAD, WHOLE, 0, 0]]);
      desc(guest, 0, TABLE, 16, INDIRECT | NEXT, 1);
      return 0;
    },
  },
  {
    what: 'indirect where it was not negotiated',
    end: 'broken',
    reason: /not negotiated/,
    guest: { bits: [] },
    act: (guest) => {
      payload(guest);
      table(guest, [[PAYLOAD, WHOLE, 0, 0]]);
      return 0;
    },
  },
  {
    what: 'nested indirect: a table in a table',
    end: 'broken',
    reason: /indirect descriptor in an indirect table/,
    act: (guest) => {
      payload(guest);
      table(guest, [
        [PAYLOAD, WHOLE, NEXT, 1],
        [TABLE, 32, INDIRECT, 0],
      ]);
      return 0;
    },
  },
  {
    what: 'WRITE desc on TX / out after in: for writing alone',
    end: 'used',
    act: (guest) => {
      payload(guest);
      desc(guest, 0, PAYLOAD, WHOLE, WRITE);
      return 0;
    },
  },
  {
    what: 'WRITE desc on TX / out after in: for writing in the middle',
    end: 'used',
    act: (guest) => {
      payload(guest);
      desc(guest, 0, PAYLOAD, 50, NEXT, 1);
      desc(guest, 1, PAYLOAD, 50, WRITE | NEXT, 2);
      desc(guest, 2, PAYLOAD, 50);
      return 0;
    },
  },
  {
    what: 'zero length: between and behind pieces of a frame',
    end: 'frame',
    act: (guest) => {
      payload(guest);
      desc(guest, 0, 0xdead_0000_0000n, 0, NEXT, 5);
      desc(guest, 5, PAYLOAD, 30, NEXT, 6);
      desc(guest, 6, PAYLOAD, 0, NEXT, 7);
      desc(guest, 7, PAYLOAD + 30, WHOLE - 30, NEXT, 8);
      desc(guest, 8, 0xffff_ffff_ffff_ffffn, 0);
      return 0;
    },
  },
  {
    what: 'zero length: a chain of nothing, as long as the ring',
    end: 'used',
    act: (guest) => {
      for (let i = 0; i < 256; i++) desc(guest, i, PAYLOAD, 0, i < 255 ? NEXT : 0, i + 1);
      return 0;
    },
  },
  ...(
    [
      ['just behind the memory', 16n << 20n, 100],
      ['half behind it', (16n << 20n) - 50n, 100],
      ['that wraps at 2^64', 0xffff_ffff_ffff_ff00n, 0x200],
      ['that wraps to the start', 0xffff_ffff_ffff_fff0n, 0x10 + WHOLE],
      ['that a double rounds into memory', (1n << 53n) + 1n + BigInt(PAYLOAD), 100],
      ['of 53 bits', 1n << 52n, 100],
      ['of the front-end', 0x7f00_0000_0000n + BigInt(PAYLOAD), 100],
      ['of this process', 0x7fff_ffff_0000n, 100],
    ] as const
  ).flatMap(([where, address, length]): Attack[] => [
    {
      what: `addr outside / wraps: ${where}`,
      end: 'used',
      act: (guest) => {
        payload(guest);
        desc(guest, 0, PAYLOAD, 40, NEXT, 1);
        desc(guest, 1, address, length);
        return 0;
      },
    },
    {
      what: `addr outside / wraps: ${where}, as an indirect table`,
      end: 'used',
      act: (guest) => {
        desc(guest, 0, address, 16 * Math.ceil(length / 16), INDIRECT);
        return 0;
      },
    },
  ]),
  {
    what: 'range crosses region end: 4 GiB less one in a region of 16 MiB',
    end: 'used',
    act: (guest) => {
      desc(guest, 0, PAYLOAD, 0xffff_ffff);
      return 0;
    },
  },
  ...[0, 1, 11, 12, 13, 25].map(
    (length): Attack => ({
      what: `chain < header: ${length} bytes, of which 12 are a header and 14 the shortest frame`,
      end: 'used',
      act: (guest) => {
        payload(guest);
        desc(guest, 0, PAYLOAD, length);
        return 0;
      },
    }),
  ),
  ...(
    [
      ['12 single bytes', Array.from({ length: 12 }, () => 1)],
      ['1 and 11', [1, 11]],
      ['10 and 2', [10, 2]],
      ['5, 0, 5 and 2', [5, 0, 5, 2]],
      ['7 and 105, which is half of it', [7, 105]],
    ] as const
  ).map(
    ([how, lengths]): Attack => ({
      what: `header split over >= 3 desc: ${how}`,
      end: 'frame',
      act: (guest) => {
        payload(guest);
        const rest = WHOLE - lengths.reduce((sum, length) => sum + length, 0);
        let at = PAYLOAD;
        const all = [...lengths, ...(rest > 0 ? [rest] : [])];
        all.forEach((length, i) => {
          desc(guest, i, at, length, i + 1 < all.length ? NEXT : 0, i + 1);
          at += length;
        });
        return 0;
      },
    }),
  ),
  {
    what: '> 17 frags, > 64 KiB, > 1024 desc: a frame of 112 pieces of one byte',
    end: 'frame',
    act: (guest) => {
      payload(guest);
      for (let i = 0; i < WHOLE; i++) desc(guest, i, PAYLOAD + i, 1, i + 1 < WHOLE ? NEXT : 0, i + 1);
      return 0;
    },
  },
  {
    what: '> 17 frags, > 64 KiB, > 1024 desc: 65,567 bytes in a frame',
    end: 'used',
    act: (guest) => {
      desc(guest, 0, PAYLOAD, VNET_BYTES + 65_567);
      return 0;
    },
  },
  {
    what: '> 17 frags, > 64 KiB, > 1024 desc: many times 4 GiB in a chain',
    end: 'used',
    act: (guest) => {
      for (let i = 0; i < 200; i++) desc(guest, i, PAYLOAD, 0xffff_ffff, i < 199 ? NEXT : 0, i + 1);
      return 0;
    },
  },
  {
    what: '> 17 frags, > 64 KiB, > 1024 desc: a chain of 1025 in a ring of 2048',
    end: 'broken',
    reason: /more than 1024/,
    guest: { size: 2048 },
    act: (guest) => {
      for (let i = 0; i < 1025; i++) desc(guest, i, PAYLOAD, 1, i < 1024 ? NEXT : 0, i + 1);
      return 0;
    },
  },
  {
    what: 'the same head twice in one breath',
    end: 'broken',
    reason: /again while it was out/,
    act: (guest) => {
      // The second is seen before the first is given back, as both are of one turn.
      payload(guest);
      desc(guest, 0, PAYLOAD, 5);
      guest.tx.offer(0, 0);
      return null;
    },
  },
];

/** The ring was given nothing back and has sent nothing; its driver is told; the same ring works again when it was stopped. */
async function isBroken(scene: Scene, guest: HostileGuest, { reason }: Attack): Promise<void> {
  await soon('the ring is broken', () => scene.broken.length > 0);
  assert.equal(scene.broken.length, 1);
  assert.equal(scene.broken[0]?.ring, TX);
  if (reason !== undefined) assert.match(scene.broken[0]?.reason ?? '', reason);
  assert.equal(guest.tx.errors, 1, 'its ERR descriptor');
  const before = guest.tx.usedIdx;
  for (let i = 0; i < 3; i++) guest.tx.kick();
  await turns(20);
  assert.equal(guest.tx.usedIdx, before, 'it rests');
  assert.equal(scene.recorder.count, 0, 'nothing of it was sent');
  const base = await guest.base(TX);
  assert.equal(base, before, 'the first that was not given back');
  guest.tx.driver.availIdx = base;
  guest.tx.driver.show();
  await guest.start(TX, base);
}

/** A frame after the attack arrives as it is. */
async function goesOn(scene: Scene, guest: HostileGuest): Promise<void> {
  const { recorder } = scene;
  const came = recorder.count;
  const [used, idx] = [guest.tx.usedIdx, guest.tx.driver.availIdx];
  assert.equal(used, idx, 'all that was offered before is back');
  payload(guest);
  desc(guest, 200, PAYLOAD, WHOLE);
  guest.tx.offer(200);
  guest.tx.kick();
  await soon(
    'a frame behind it',
    () => recorder.count === came + 1 && guest.tx.usedIdx === ((used + 1) & 0xffff),
  );
  assert.deepEqual(recorder.frames.at(-1)?.bytes, FRAME);
  assert.deepEqual(guest.tx.entry(used), [200, 0]);
}

describe('what a guest makes available', { timeout: 120_000 }, () => {
  afterEach(endScenes);

  for (const attack of attacks) {
    const { what, end } = attack;
    it(`${what}: ${end === 'frame' ? 'the frame goes out' : end}`, async () => {
      const witness = await Witness.arrive();
      const scene = await openScene();
      const guest = await scene.boot(attack.guest);
      const head = attack.act(guest);
      if (head !== null) guest.tx.offer(head);
      guest.tx.kick();
      if (end === 'broken') {
        await isBroken(scene, guest, attack);
      } else {
        await soon('it is back', () => guest.tx.usedIdx === 1);
        assert.deepEqual(guest.tx.entry(0), [0, 0]);
        assert.equal(scene.recorder.count, end === 'frame' ? 1 : 0);
        if (end === 'frame') assert.deepEqual(scene.recorder.frames[0]?.bytes, FRAME);
        assert.equal(scene.device.stats().rxErrors, end === 'frame' ? 0 : 1);
        assert.deepEqual(scene.broken, []);
      }
      await goesOn(scene, guest);
      assert.equal(scene.device.state, 'connected');
      assert.deepEqual(scene.failures, []);
      await witness.testifies();
    });
  }

  it('the same head again while its frame is lent: broken, and nothing completes twice', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    scene.recorder.borrows = true;
    guest.send(frameOf(1000));
    await soon('it is lent', () => scene.recorder.loans.length === 1);
    guest.tx.offer(0);
    guest.tx.kick();
    await soon('broken', () => scene.broken.length === 1);
    assert.match(scene.broken[0]?.reason ?? '', /head 0 was made available again/);
    scene.recorder.release();
    await turns(10);
    assert.ok(guest.tx.usedIdx <= 1);
    assert.equal(await guest.base(TX), 1);
    assert.equal(guest.tx.usedIdx, 1);
  });
});

describe('rings where they should not be', { timeout: 60_000 }, () => {
  afterEach(endScenes);

  for (const [used, avail] of [
    [0, 0x2_0000],
    [0x2_0000, 0x2_0000],
    [0, 0],
    [4, 2],
  ] as const) {
    it(`desc == used overlap: used at ${used}, avail at ${avail} of the descriptors: no loop, and no harm`, async () => {
      const witness = await Witness.arrive();
      const scene = await openScene();
      const guest = await scene.boot();
      await guest.base(TX);
      const { address, kickFd } = guest.tx;
      const overlapped = {
        ...address,
        used: address.desc + BigInt(used),
        avail: address.desc + BigInt(avail),
      };
      payload(guest);
      for (let i = 0; i < 256; i++) desc(guest, i, PAYLOAD, WHOLE);
      guest.front.say(VHOST_USER_SET_VRING_ADDR, encodeVringAddress(overlapped));
      assert.equal(await guest.front.ack(VHOST_USER_SET_VRING_KICK, u64(TX), [kickFd]), 0);
      for (let i = 0; i < 20; i++) {
        guest.tx.kick();
        await turns(3);
      }
      assert.equal(scene.device.state, 'connected');
      await guest.barrier();
      // What it has sent is bounded by what it did, as everything is.
      assert.ok(scene.recorder.count <= 20 * 256);
      await witness.testifies();
    });
  }
});
