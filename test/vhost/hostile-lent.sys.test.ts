/**
 * Frames that are lent to somebody who takes his time, while the guest or its front-end does everything to the memory and the ring that
 * they are from: nothing is written that should not be, nobody waits longer than was said, and the kernel sends what it was lent.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { ftruncateSync } from 'node:fs';
import { afterEach, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { FRAME_WORDS, type FrameTable, HEAD_AT, HEAD_BYTES } from '../../src/core/frames.ts';
import type { Ubuf } from '../../src/core/ubuf.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { EPOLLIN, MSG_ZEROCOPY } from '../../src/sys/constants.ts';
import { memfd } from '../../src/sys/fds.ts';
import { GuestSpace } from '../../src/sys/space.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import {
  HostileGuest,
  IN_ORDER_BIT,
  INDIRECT_BIT,
  PAYLOAD,
  soon,
  TX,
  turns,
  VNET_BYTES,
} from '../support/hostile-guest.ts';
import {
  endScenes,
  frameOf,
  guestMappings,
  openScene,
  type Scene,
  Witness,
} from '../support/hostile-scene.ts';
import { tcpPair, waitFor } from '../support/sockets.ts';
import { newPath } from '../support/vhost-scene.ts';
import { MIB, region, u64 } from '../support/vhost-session.ts';

const timeout = 120_000;
const DRAIN_MS = 60;
const NOTHING = new Uint8Array(0);

/** A guest with `count` frames that are lent to the recorder. */
async function lend(
  scene: Scene,
  count: number,
  bits: readonly number[] = [INDIRECT_BIT],
): Promise<HostileGuest> {
  scene.recorder.borrows = true;
  scene.recorder.keeps = false;
  const guest = await scene.boot({ bits });
  for (let i = 0; i < count; i++) guest.send(frameOf(1000, i), PAYLOAD + 0x1000 * i);
  await soon('they are lent', () => scene.recorder.loans.length === count);
  return guest;
}

describe('rings that stop while frames are lent', { timeout }, () => {
  afterEach(endScenes);

  for (const [what, bits] of [
    ['in any order', [INDIRECT_BIT]],
    ['IN_ORDER', [INDIRECT_BIT, IN_ORDER_BIT]],
  ] as const) {
    it(`GET_VRING_BASE waits for them, ${what}, until the deadline; the base is the first that was not given back`, async () => {
      const witness = await Witness.arrive();
      const scene = await openScene({ drainMs: DRAIN_MS, holdMs: 10_000 });
      const guest = await lend(scene, 4, bits);
      // The first and the third come back, the second does not.
      for (const i of [0, 2]) scene.recorder.loans[i]?.unref();
      await soon('the first is given back', () => guest.tx.usedIdx === 1);
      const start = performance.now();
      assert.equal(await guest.base(TX), 1);
      assert.ok(performance.now() - start >= DRAIN_MS - 1);
      const used = guest.tx.usedIdx;
      for (const i of [1, 3]) scene.recorder.loans[i]?.unref();
      scene.recorder.loans.length = 0;
      await turns(20);
      assert.equal(guest.tx.usedIdx, used, 'no used entry after the answer');
      assert.equal(scene.device.stats().details.ledger.late, 2);
      // The next owner of the ring starts there, and takes them again.
      scene.recorder.borrows = false;
      await guest.start(TX, 1);
      await soon('all are back', () => guest.tx.usedIdx === 4);
      assert.equal(scene.recorder.count, 4 + 3);
      await witness.testifies();
    });
  }

  it('GET_VRING_BASE answers as soon as the last is back', async () => {
    const scene = await openScene({ drainMs: 60_000 });
    const guest = await lend(scene, 3);
    const base = guest.base(TX);
    await turns(20);
    scene.recorder.release();
    assert.equal(await base, 3);
    assert.equal(guest.tx.usedIdx, 3);
  });

  it('what is in quarantine is not waited for', async () => {
    const scene = await openScene({ drainMs: 60_000, holdMs: 10_000 });
    const guest = await lend(scene, 2, [INDIRECT_BIT, IN_ORDER_BIT]);
    scene.recorder.loans[0]?.unref();
    scene.recorder.loans[1]?.quarantine();
    assert.equal(await guest.base(TX), 1);
    scene.recorder.loans[1]?.unref();
    scene.recorder.loans.length = 0;
    await turns(10);
    assert.equal(guest.tx.usedIdx, 1);
  });

  it('case 59: disable waits until the deadline, and after its answer nothing is written, ever', async () => {
    const scene = await openScene({ drainMs: DRAIN_MS, holdMs: 10_000 });
    const guest = await lend(scene, 3);
    const start = performance.now();
    assert.equal(await guest.enable(TX, false), 0);
    assert.ok(performance.now() - start >= DRAIN_MS - 1);
    assert.match(scene.broken[0]?.reason ?? '', /disabled while frames were lent/);
    assert.equal(guest.tx.errors, 1);
    const used = (): Uint8Array => guest.read(0x4_0000 + 0x3_0000, 6 + 8 * 256);
    const before = used();
    scene.recorder.release();
    guest.send(frameOf(500), PAYLOAD + 0x8000);
    await turns(50);
    assert.equal(await guest.enable(TX, true), 0);
    await turns(50);
    assert.deepEqual(used(), before);
    const base = await guest.base(TX);
    assert.equal(base, guest.tx.usedIdx);
    scene.recorder.borrows = false;
    await guest.start(TX, base);
    await soon('all are back', () => guest.tx.usedIdx === 4);
  });

  it('case 59: disable, and all come back in time: all entries are written before the answer', async () => {
    const scene = await openScene({ drainMs: 60_000 });
    const guest = await lend(scene, 3);
    const answer = guest.enable(TX, false);
    await turns(20);
    scene.recorder.release();
    assert.equal(await answer, 0);
    assert.equal(guest.tx.usedIdx, 3);
    guest.send(frameOf(700));
    await soon('it is dropped, and back', () => guest.tx.usedIdx === 4);
    assert.equal(scene.recorder.count, 3);
  });

  for (const [what, request, payload] of [
    ['SET_STATUS 0', vhost.VHOST_USER_SET_STATUS, u64(0)],
    ['RESET_DEVICE', vhost.VHOST_USER_RESET_DEVICE, new Uint8Array(0)],
  ] as const) {
    it(`${what} waits until the deadline, and nothing is written after it`, async () => {
      const scene = await openScene({ drainMs: DRAIN_MS, holdMs: 10_000 });
      const guest = await lend(scene, 3);
      assert.equal(await guest.front.ack(request, payload), 0);
      scene.recorder.release();
      await turns(20);
      assert.equal(guest.tx.usedIdx, 0);
      assert.equal(await guest.base(TX), 0);
    });
  }

  it('a new ring at the same place: what comes back late touches nothing of it', async () => {
    const scene = await openScene({ drainMs: 1, holdMs: 10_000 });
    const guest = await lend(scene, 3);
    const late: Ubuf[] = scene.recorder.loans.splice(0);
    assert.equal(await guest.base(TX), 0);
    scene.recorder.borrows = false;
    // The driver resets its ring, and begins at 0 with other frames under the same heads.
    await guest.start(TX, 0);
    await soon('the three are taken again', () => guest.tx.usedIdx === 3);
    // It asks for kicks when it rests.
    await turns(50);
    const before = guest.read(0, PAYLOAD);
    for (const loan of late) loan.unref();
    await turns(20);
    assert.deepEqual(guest.read(0, PAYLOAD), before);
  });
});

describe('a device that is killed while frames that it lent were overtaken', { timeout }, () => {
  afterEach(endScenes);

  it('leaves a ring from which the next one gives back all, each once', async () => {
    const path = newPath();
    const script = fileURLToPath(new URL('./children/lending-device.js', import.meta.url));
    const child = spawn(process.execPath, [script, path], { stdio: ['ignore', 'pipe', 'inherit'] });
    try {
      await once(child.stdout, 'data');
      const guest = new HostileGuest(path);
      await guest.boot();
      const { driver } = guest.tx;
      for (let i = 0; i < 100; i++) {
        guest.send(frameOf(1000, i));
        await soon('what is not lent is back', () => guest.tx.usedIdx === i - Math.floor(i / 5));
      }
      driver.reap();
      assert.equal(driver.outstanding.length, 20);
      child.kill('SIGKILL');
      await once(child, 'exit');
      // And more, while there is nobody; heads of what is back are used again.
      for (let i = 0; i < 30; i++) guest.send(frameOf(1000, i));
      const scene = await openScene({ path });
      await guest.reboot(path);
      await soon('all are back', () => driver.reap().length >= 0 && driver.outstanding.length === 0);
      assert.equal(scene.device.stats().details.ledger.inherited, 20);
      assert.equal(scene.recorder.count, 30, 'none is sent twice');
      for (let i = 0; i < 300; i++) {
        guest.send(frameOf(500, i));
        await soon('goes on', () => driver.reap().length === 1);
      }
      assert.deepEqual(scene.broken, []);
      guest.end();
    } finally {
      child.kill('SIGKILL');
    }
  });
});

describe('memory that changes while frames are lent', { timeout }, () => {
  afterEach(endScenes);

  it('SET_MEM_TABLE with zero-copy pending: the ring goes on in the new memory, the old is there until they are back', async () => {
    const witness = await Witness.arrive();
    const scene = await openScene({ holdMs: 10_000 });
    const guest = await lend(scene, 2);
    const mapped = guestMappings();
    const other = memfd('hostile', guest.memoryBytes);
    const space = new GuestSpace();
    assert.equal(space.map(other, 0, guest.memoryBytes, 0, 0n), 0);
    assert.equal(space.write(0, guest.read(0, 2 * MIB)), 0);
    assert.equal(await guest.tell([region(0, guest.memoryBytes)], [other]), 0);
    await turns(5);
    assert.equal(guestMappings(), mapped + 2, 'ours of it, the old, and the new');
    scene.recorder.release();
    const used = new Uint8Array(2);
    await soon('they are back in the new ring', () => {
      assert.equal(space.read(0x4_0000 + 0x3_0000 + 2, used), 0);
      return used[0] === 2;
    });
    assert.equal(guest.tx.usedIdx, 0, 'and not in the old');
    await soon('the old is unmapped', () => guestMappings() === mapped + 1);
    space.destroy();
    calls.close(other);
    await witness.testifies();
  });

  it('table after table with one frame of each: as many old ones are kept as there may be, and no more', async () => {
    const scene = await openScene({ holdMs: 10_000 });
    const guest = await lend(scene, 1);
    const before = guestMappings();
    const files = [guest.ram, memfd('hostile', guest.memoryBytes)];
    const space = new GuestSpace();
    assert.equal(space.map(files[1] as number, 0, guest.memoryBytes, 0, 0n), 0);
    for (let i = 1; i <= 30; i++) {
      // Both files have the ring as it is now.
      assert.equal(space.write(0, guest.read(0, PAYLOAD)), 0);
      assert.equal(await guest.tell([region(0, guest.memoryBytes)], [files[i % 2] as number]), 0);
      guest.write(0x4_0000, guest.read(0x4_0000, 16));
      assert.equal(await guest.front.ack(1 + 17, Uint8Array.of(TX, 0, 0, 0, 1, 0, 0, 0)), 0);
    }
    await soon('old ones are unmapped', () => guestMappings() <= before + 2 + 5);
    scene.recorder.release();
    await soon('all but the last', () => guestMappings() <= before + 2);
    space.destroy();
    calls.close(files[1] as number);
  });

  it('REM_MEM_REG of what is lent: no other chain finds it, and it stays until the frame is back', async () => {
    const scene = await openScene({ holdMs: 10_000 });
    const guest = await scene.boot();
    scene.recorder.borrows = true;
    scene.recorder.keeps = false;
    const extra = vhost.encodeSingleRegion(region(256 * MIB, 4 * MIB, undefined, 0));
    assert.equal(await guest.front.ack(vhost.VHOST_USER_ADD_MEM_REG, extra, [guest.ram]), 0);
    guest.tx.driver.chain([{ address: BigInt(256 * MIB + PAYLOAD), length: 1000 }]);
    guest.tx.driver.show();
    guest.tx.kick();
    await soon('lent', () => scene.recorder.loans.length === 1);
    const mapped = guestMappings();
    assert.equal(await guest.front.ack(vhost.VHOST_USER_REM_MEM_REG, extra), 0);
    for (const at of [256 * MIB, 256 * MIB + PAYLOAD, 260 * MIB - 1000]) {
      const { address } = scene.device.stats().details.chains;
      guest.tx.driver.chain([{ address: BigInt(at), length: 1000 }]);
      guest.tx.driver.show();
      guest.tx.kick();
      await soon('refused', () => scene.device.stats().details.chains.address === address + 1);
    }
    assert.equal(scene.recorder.count, 1);
    assert.equal(guestMappings(), mapped, 'it is there');
    assert.equal(await guest.front.ack(vhost.VHOST_USER_ADD_MEM_REG, extra, [guest.ram]), 0);
    await soon('once more', () => guestMappings() === mapped + 1);
    scene.recorder.release();
    await soon('it is back, and those behind it', () => guest.tx.usedIdx === 4);
    await soon('and unmapped', () => guestMappings() === mapped);
    guest.tx.driver.chain([{ address: BigInt(256 * MIB + PAYLOAD), length: 1000 }]);
    guest.tx.driver.show();
    guest.tx.kick();
    await soon('goes on', () => scene.recorder.count === 2);
  });
});

describe('frames that the kernel has', { timeout }, () => {
  afterEach(endScenes);

  /** Lends tails to a TCP socket whose peer does not read, as a stream port would. */
  class Stalled {
    readonly loans: Ubuf[] = [];
    readonly sent: number[] = [];
    readonly #fd: number;

    constructor(scene: Scene, fd: number) {
      this.#fd = fd;
      scene.device.receiver = (table) => {
        for (let i = 0; i < table.count; i++) this.#lend(table, i);
        return table.count;
      };
    }

    #lend(table: FrameTable, frame: number): void {
      const loan = table.owner.lend(frame, this);
      if (loan === null) return;
      const at = frame * FRAME_WORDS;
      const head = table.records[at + HEAD_AT] as number;
      const headBytes = table.records[at + HEAD_BYTES] as number;
      // The head is copied, as its memory is the table's; the tail stays where it is.
      const which = Uint32Array.of(frame);
      let sent = native().sendv(this.#fd, [table.bytes.subarray(head, head + headBytes)], 1, 0);
      if (sent === headBytes) {
        sent += Math.max(
          0,
          native().framesStream(this.#fd, table.bytes, which, 0, 1, NOTHING, 0, headBytes, MSG_ZEROCOPY),
        );
      }
      if (sent > 0) this.sent.push(sent);
      this.loans.push(loan);
    }
  }

  for (const [what, act] of [
    ['its file is truncated', (guest: HostileGuest) => ftruncateSync(guest.ram, 0)],
    ['its front-end is gone', (guest: HostileGuest) => guest.end()],
  ] as const) {
    it(`are sent as they were lent, though ${what}`, async () => {
      const pair = await tcpPair({ zerocopy: true, receiveBytes: 65_536 });
      const scene = await openScene({ holdMs: 10_000 });
      const guest = await scene.boot();
      const stalled = new Stalled(scene, pair.client);
      const frames: Uint8Array[] = [];
      for (let i = 0; i < 8; i++) {
        const frame = frameOf(40_000, i);
        frames.push(frame);
        guest.send(frame, PAYLOAD + 0x1_0000 * i, [VNET_BYTES + 20_000, 20_000]);
        await soon('it is lent', () => stalled.sent.length === i + 1);
      }
      const expected = Buffer.concat(frames.map((frame, i) => frame.subarray(0, stalled.sent[i])));
      act(guest);
      if (scene.device.state === 'connected') guest.tx.kick();
      await soon('it is closed', () => scene.device.state === 'listening');
      const got = Buffer.alloc(expected.length);
      let have = 0;
      await waitFor(pair.server, EPOLLIN, () => {
        let read: number;
        do {
          read = native().readv(pair.server, [got.subarray(have)], 1);
          if (read > 0) have += read;
        } while (read > 0 && have < got.length);
        return have === got.length;
      });
      assert.equal(Buffer.compare(got, expected), 0);
      for (const loan of stalled.loans) loan.unref();
      await soon('confirmed', () => {
        native().drainErrors(pair.client, new Uint32Array(64));
        return native().outstanding(pair.client) === 0;
      });
      pair.close();
    });
  }
});
