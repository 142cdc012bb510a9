/**
 * Front-ends that end without a word, at any moment: nothing of them is left, neither descriptors nor mappings, and what they had lent
 * touches nothing of the next.
 */
import assert from 'node:assert/strict';
import { after, afterEach, describe, it } from 'node:test';
import * as calls from '../../src/sys/calls.ts';
import { eventfd } from '../../src/sys/fds.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import { scaled } from '../support/counts.ts';
import { type HostileGuest, MRG_RXBUF_BIT, PAYLOAD, soon, TX, turns } from '../support/hostile-guest.ts';
import {
  deliver,
  endScenes,
  frameOf,
  guestMappings,
  openFds,
  openScene,
  type Scene,
  Witness,
} from '../support/hostile-scene.ts';
import { MIB, region, state, u64 } from '../support/vhost-session.ts';

const timeout = scaled(120_000, 1_200_000);
const CYCLES = 300;
const file = eventfd();
after(() => calls.close(file));

interface End {
  readonly what: string;
  /** Cycle `i`: connects, does what it does, and is gone when it returns. */
  readonly act: (scene: Scene, i: number) => Promise<void>;
}

/** A guest of 2 MiB that runs. */
function small(scene: Scene): Promise<HostileGuest> {
  return scene.boot({ memoryBytes: 2 * MIB, bits: [28, MRG_RXBUF_BIT] });
}

const ends: readonly End[] = [
  {
    what: 'in the middle of a message, with descriptors',
    act: async (scene, i) => {
      const front = scene.connect();
      const message = vhost.encodeMessage(vhost.VHOST_USER_SET_MEM_TABLE, 0, new Uint8Array(40));
      front.raw(message.subarray(0, 1 + (i % (message.length - 1))), [file, file, file]);
      if (i % 2 === 0) await turns(2);
      front.close();
    },
  },
  {
    what: 'behind messages that nobody has read',
    act: async (scene) => {
      const front = scene.connect();
      for (let k = 0; k < 20; k++) front.say(vhost.VHOST_USER_SET_VRING_CALL, u64(k & 1), [file]);
      front.close();
    },
  },
  {
    what: 'without having read its replies',
    act: async (scene) => {
      const front = scene.connect();
      for (let k = 0; k < 20; k++) front.say(vhost.VHOST_USER_GET_FEATURES);
      await turns(2);
      front.close();
    },
  },
  {
    what: 'in the middle of the handshake',
    act: async (scene, i) => {
      const guest = scene.guest({ memoryBytes: 2 * MIB });
      const steps = [
        () => guest.front.say(1),
        () => guest.front.say(2, u64((1n << 30n) | (1n << 32n))),
        () => guest.front.say(5, vhost.encodeMemoryTable([region(0, 2 * MIB)]), [guest.ram]),
        () => guest.front.say(8, state(TX, 256)),
        () => guest.front.say(9, vhost.encodeVringAddress(guest.tx.address)),
        () => guest.front.say(12, u64(TX), [guest.tx.kickFd]),
        () => guest.front.say(13, u64(TX), [guest.tx.callFd]),
      ];
      for (const step of steps.slice(0, 1 + (i % steps.length))) step();
      if (i % 3 !== 0) await turns(3);
      guest.end();
    },
  },
  {
    what: 'with rings that run, and frames in them both ways',
    act: async (scene, i) => {
      const guest = await small(scene);
      for (let k = 0; k < 10; k++) guest.send(frameOf(900), PAYLOAD + 0x1000 * k);
      for (let k = 0; k < i % 5; k++) guest.post(PAYLOAD + 0x2_0000 + 0x1000 * k, 2000);
      if (i % 2 === 0) await turns(1);
      // Some wait for a buffer.
      for (let k = 0; k < 8; k++) deliver(scene, frameOf(600));
      guest.end();
    },
  },
  {
    what: 'with frames that are lent, which come back while it goes, or later',
    act: async (scene, i) => {
      const { recorder } = scene;
      recorder.borrows = true;
      const guest = await small(scene);
      for (let k = 0; k < 4; k++) guest.send(frameOf(1000), PAYLOAD + 0x1000 * k);
      await soon('all are there', () => recorder.count % 4 === 0 && guest.tx.driver.availIdx === 4);
      await soon('they are taken', () => recorder.count >= 4 * (i + 1));
      if (i % 3 === 0) recorder.release();
      guest.end();
      if (i % 3 === 1) recorder.release();
      await turns(3);
      recorder.release();
    },
  },
  {
    what: 'while a ring stops, and waits for what is lent',
    act: async (scene, i) => {
      const { recorder } = scene;
      recorder.borrows = true;
      const guest = await small(scene);
      const count = recorder.count + 1;
      guest.send(frameOf(1000));
      await soon('it is there', () => recorder.count === count);
      if (i % 2 === 0) guest.front.say(vhost.VHOST_USER_GET_VRING_BASE, state(TX, 0));
      else guest.front.say(vhost.VHOST_USER_SET_VRING_ENABLE, state(TX, 0));
      guest.front.say(vhost.VHOST_USER_SET_VRING_CALL, u64(TX), [file]);
      await turns(2);
      guest.end();
      await turns(2);
      recorder.release();
    },
  },
  {
    what: 'with memory that came and went',
    act: async (scene) => {
      const guest = await small(scene);
      const extra = vhost.encodeSingleRegion(region(64 * MIB, MIB, undefined, 0));
      guest.front.say(37, extra, [guest.ram]);
      guest.front.say(38, extra);
      guest.front.say(37, extra, [guest.ram]);
      await guest.barrier();
      guest.end();
    },
  },
  {
    what: 'with a ring that is broken',
    act: async (scene) => {
      const guest = await small(scene);
      guest.tx.offer(999);
      guest.tx.kick();
      const broken = scene.broken.length;
      await soon('broken', () => scene.broken.length === broken + 1);
      guest.end();
    },
  },
  {
    what: 'because it made no sense',
    act: async (scene) => {
      const guest = await small(scene);
      guest.front.raw(new Uint8Array(12), [file, file]);
      await guest.front.closed();
      guest.end();
    },
  },
];

describe('a front-end that is gone', { timeout }, () => {
  afterEach(endScenes);

  for (const { what, act } of ends) {
    it(`${what}: ${CYCLES} times, and nothing is left`, async () => {
      const scene = await openScene();
      scene.recorder.keeps = false;
      let fds = 0;
      let maps = 0;
      const gone = (): boolean => scene.device.state === 'listening';
      for (let i = 0; i < CYCLES; i++) {
        await act(scene, i);
        const connections = i + 1;
        await soon('it was heard', () => scene.device.stats().connections >= connections && gone());
        if (i === 5) [fds, maps] = [openFds(), guestMappings()];
      }
      await soon('all are closed', () => openFds() === fds);
      await soon('unmapped', () => guestMappings() <= maps);
      assert.equal(scene.device.stats().connections, CYCLES);
      // And the next is served as the first was.
      scene.recorder.borrows = false;
      const guest = await scene.boot();
      const count = scene.recorder.count;
      guest.send(frameOf(100));
      await soon('a frame', () => scene.recorder.count === count + 1);
    });
  }
});

describe('guests that come, lend and go', { timeout }, () => {
  afterEach(endScenes);

  it('E57: again and again, to somebody who gives nothing back: he is lent no more, and others have memory', async () => {
    const witness = await Witness.arrive();
    const scene = await openScene();
    const { recorder } = scene;
    recorder.borrows = true;
    recorder.keeps = false;
    // More than there are spaces in a process.
    const cycles = scaled(1100, 10_000);
    for (let i = 0; i < cycles; i++) {
      const guest = await small(scene);
      guest.send(frameOf(1000));
      await soon('it is there', () => recorder.count === i + 1);
      guest.end();
      await soon('gone', () => scene.device.state === 'listening');
    }
    assert.ok(recorder.loans.length <= 8, `${recorder.loans.length} are lent`);
    assert.ok(guestMappings() < 20, `${guestMappings()} mappings`);
    await witness.testifies();
    recorder.release();
    await turns(3);
    assert.equal(scene.device.stats().lentNow, 0);
  });

  it('E57: in good order, and each loan comes back late: 10,000 cycles leave nothing', async () => {
    const scene = await openScene({ drainMs: 1, holdMs: 60_000 });
    const { recorder } = scene;
    recorder.keeps = false;
    const cycles = scaled(300, 10_000);
    const baseline = openFds();
    for (let i = 0; i < cycles; i++) {
      recorder.borrows = i % 3 !== 0;
      // A new one each time: who has given nothing back yet is lent no more.
      recorder.borrower = {};
      const guest = await small(scene);
      guest.send(frameOf(1000));
      await soon('it is there', () => recorder.count === i + 1);
      const base = await guest.base(TX);
      assert.ok(base === 0 || base === 1);
      assert.equal(base, guest.tx.usedIdx, 'what was not given back is the next owner’s');
      if (i % 2 === 0) recorder.release();
      await turns(1);
      guest.front.close();
      await soon('gone', () => scene.device.state === 'listening');
      recorder.release();
      await turns(1);
      assert.equal(guest.tx.usedIdx, base, 'what comes late touches no ring');
      guest.end();
    }
    recorder.release();
    await turns(3);
    await soon('all are closed', () => openFds() === baseline);
    await soon('unmapped', () => guestMappings() === 0);
    const { lent, late } = scene.device.stats().details.ledger;
    assert.ok(lent > cycles / 4 && late > cycles / 8, `${lent} lent, ${late} came late`);
  });
});
