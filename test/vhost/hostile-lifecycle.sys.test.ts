/**
 * Guests that reboot, firmware that leaves garbage in the rings, and tables and guests so large that to map or to forget them takes time:
 * a device goes on, and so do its neighbours.
 */
import assert from 'node:assert/strict';
import { writeSync } from 'node:fs';
import { afterEach, describe, it } from 'node:test';
import * as calls from '../../src/sys/calls.ts';
import { memfd } from '../../src/sys/fds.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import { scaled } from '../support/counts.ts';
import {
  type HostileGuest,
  PAYLOAD,
  RX,
  soon,
  TX,
  turn,
  turns,
  VNET_BYTES,
} from '../support/hostile-guest.ts';
import {
  deliver,
  endScenes,
  frameOf,
  openFds,
  openScene,
  type Scene,
  Witness,
} from '../support/hostile-scene.ts';
import { Random } from '../support/random.ts';
import { MIB, region, u64 } from '../support/vhost-session.ts';

const timeout = scaled(120_000, 1_200_000);
const GIB = 2 ** 30;

/** A frame each way, by descriptors that the guest writes anew. */
async function exchange(scene: Scene, guest: HostileGuest): Promise<void> {
  const { tx, rx } = guest;
  const frame = frameOf(400, scene.recorder.count);
  const came = scene.recorder.count;
  guest.write(PAYLOAD, new Uint8Array(VNET_BYTES));
  guest.write(PAYLOAD + VNET_BYTES, frame);
  tx.driver.writeDesc(0, { address: BigInt(PAYLOAD), length: VNET_BYTES + 400, flags: 0, next: 0 });
  rx.driver.writeDesc(0, { address: BigInt(PAYLOAD + 0x1000), length: 2000, flags: 2, next: 0 });
  const before = [tx.usedIdx, rx.usedIdx];
  rx.offer(0);
  tx.offer(0);
  tx.kick();
  await soon('the frame', () => scene.recorder.count === came + 1);
  assert.deepEqual(scene.recorder.frames.pop()?.bytes, frame);
  assert.equal(deliver(scene, frame), 1);
  await soon('both are back', () => tx.usedIdx !== before[0] && rx.usedIdx !== before[1]);
  assert.deepEqual(guest.read(PAYLOAD + 0x1000 + VNET_BYTES, 400), frame);
}

/** All of a ring as a guest without a past has it. */
function wipe(guest: HostileGuest, index: number): void {
  const ring = guest.ring(index);
  for (const view of [ring.desc, ring.avail, ring.used]) new Uint8Array(view.buffer).fill(0);
  ring.driver.availIdx = 0;
}

describe('case 47: a guest that reboots', { timeout }, () => {
  afterEach(endScenes);

  it('100 times, with frames on their way and garbage in its rings: traffic resumes', async () => {
    const witness = await Witness.arrive();
    const scene = await openScene();
    const guest = await scene.boot();
    const random = new Random(47);
    const baseline = openFds();
    for (let i = 0; i < 100; i++) {
      for (let k = 0; k < 3; k++) await exchange(scene, guest);
      for (let k = 0; k < 20; k++) deliver(scene, frameOf(200, k));
      // The driver is gone, and others use its memory; kicks of the last one may still be on their way.
      for (const index of [RX, TX]) {
        const { desc, avail, used } = guest.ring(index);
        for (const view of [desc, avail, used]) {
          const bytes = new Uint8Array(view.buffer);
          if (i % 2 === 0) for (let k = 0; k < bytes.length; k++) bytes[k] = random.below(256);
        }
        guest.ring(index).kick();
      }
      if (i % 3 === 0) await turns(3);
      if (i % 4 === 0) guest.front.say(vhost.VHOST_USER_SET_STATUS, u64(0));
      if (i % 4 === 1) guest.front.say(vhost.VHOST_USER_RESET_OWNER);
      for (const index of [RX, TX]) assert.ok((await guest.base(index)) >= 0);
      // Firmware: rings of its own, a frame, and off again.
      for (const index of [RX, TX]) {
        wipe(guest, index);
        await guest.start(index);
      }
      await exchange(scene, guest);
      for (const index of [TX, RX]) assert.ok((await guest.base(index)) >= 0);
      for (const index of [RX, TX]) {
        wipe(guest, index);
        await guest.start(index);
      }
      scene.recorder.frames.length = 0;
    }
    await exchange(scene, guest);
    await soon('all are closed', () => openFds() === baseline);
    assert.deepEqual(scene.failures, []);
    const { txFrames, rxFrames } = scene.device.stats();
    assert.ok(rxFrames >= 400 && txFrames >= 400, `${rxFrames} and ${txFrames} frames`);
    await witness.testifies();
  });
});

describe('case 29: descriptors that are not there', { timeout }, () => {
  afterEach(endScenes);

  it('NOFD without a descriptor is legal: the driver polls, and a CALL that comes later is signalled', async () => {
    const scene = await openScene();
    const guest = scene.guest();
    await guest.greet();
    assert.equal(await guest.tell([region(0, guest.memoryBytes)], [guest.ram]), 0);
    const { front, tx } = guest;
    for (const index of [RX, TX]) {
      front.say(8, Uint8Array.of(index, 0, 0, 0, 0, 1, 0, 0));
      front.say(9, vhost.encodeVringAddress(guest.ring(index).address));
      assert.equal(await front.ack(13, u64(index | 0x100)), 0);
      assert.equal(await front.ack(12, u64(index | 0x100)), 0);
      assert.equal(await guest.enable(index, true), 0);
    }
    for (let i = 0; i < 5; i++) await exchange(scene, guest);
    assert.equal(tx.calls, 0);
    assert.equal(await front.ack(13, u64(TX), [tx.callFd]), 0);
    assert.equal(tx.calls, 1, 'one may have been missed');
    await exchange(scene, guest);
    await soon('it is signalled', () => tx.calls === 1);
  });
});

describe('case 51: what is large takes nobody else’s time', { timeout }, () => {
  afterEach(endScenes);

  /** The longest turn of the event loop while `work` goes on; the middle of `times`, as others use the machine as well. */
  async function longestTurn(times: number, work: () => Promise<void>): Promise<number> {
    const all: number[] = [];
    for (let i = 0; i < times; i++) {
      let longest = 0;
      let done = false;
      const working = work().then(() => {
        done = true;
      });
      while (!done) {
        const start = performance.now();
        await turn();
        longest = Math.max(longest, performance.now() - start);
      }
      await working;
      all.push(longest);
    }
    return all.sort((a, b) => a - b)[times >> 1] as number;
  }

  it('64 GiB are mapped, in one region and in 32, within 10 ms', async () => {
    const witness = await Witness.arrive();
    const scene = await openScene();
    const guest = await scene.boot({ memoryBytes: 60 * GIB });
    const files = [guest.ram, memfd('hostile', 60 * GIB)];
    const one = [region(0, 60 * GIB)];
    const many = Array.from({ length: 32 }, (_, i) => region(i * 1.5 * GIB, 1.5 * GIB));
    let i = 0;
    for (const regions of [one, many]) {
      const most = await longestTurn(21, async () => {
        i += 1;
        const fds = regions.map(() => files[i % 2] as number);
        assert.equal(await guest.tell(regions, fds), 0);
      });
      assert.ok(most < 10, `${most.toFixed(1)} ms`);
    }
    calls.close(files[1] as number);
    await witness.testifies();
  });

  it('the last to have a file of 256 MiB gives it back beside its work', async () => {
    const bytes = 256 * MIB;
    const zeros = new Uint8Array(4 * MIB);
    const filled = (): number => {
      const fd = memfd('large', bytes);
      for (let at = 0; at < bytes; at += zeros.length) writeSync(fd, zeros, 0, zeros.length, at);
      return fd;
    };
    const start = filled();
    const before = performance.now();
    calls.close(start);
    const direct = performance.now() - before;
    const scene = await openScene();
    const guest = await scene.boot();
    const away = region(GIB, bytes, undefined, 0);
    for (const [what, send] of [
      [
        'mapped, and removed',
        async (fd: number): Promise<void> => {
          const region = vhost.encodeSingleRegion(away);
          assert.equal(await guest.front.ack(vhost.VHOST_USER_ADD_MEM_REG, region, [fd]), 0);
          calls.close(fd);
          assert.equal(await guest.front.ack(vhost.VHOST_USER_REM_MEM_REG, region), 0);
        },
      ],
      [
        'refused',
        async (fd: number): Promise<void> => {
          guest.front.say(vhost.VHOST_USER_ADD_MEM_REG, vhost.encodeSingleRegion(region(0, bytes)), [fd]);
          calls.close(fd);
          await guest.barrier();
        },
      ],
    ] as const) {
      const files = [filled(), filled(), filled()];
      const most = await longestTurn(3, () => send(files.pop() as number));
      for (const fd of files) calls.close(fd);
      assert.ok(
        most < direct / 3,
        `${what}: ${most.toFixed(1)} ms, where close() takes ${direct.toFixed(1)}`,
      );
    }
  });
});
