/**
 * Messages of a front-end that is hostile: sizes, counts, indexes and descriptors that do not fit, against a whole device. The
 * connection is refused what it wants, or ended; nothing else.
 */
import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { eventfd } from '../../src/sys/fds.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import {
  type HostileGuest,
  MEMORY_BYTES,
  PAYLOAD,
  RX,
  soon,
  TX,
  turn,
  turns,
} from '../support/hostile-guest.ts';
import { endScenes, frameOf, openFds, openScene, type Scene, Witness } from '../support/hostile-scene.ts';
import { Random } from '../support/random.ts';
import { MIB, region, state, USER, u64 } from '../support/vhost-session.ts';

const { encodeMessage } = vhost;
const EINVAL = 22;
const ENOSYS = 38;
const timeout = 60_000;

/** Words as they go over the wire: request, flags, size, ... */
function words(...list: number[]): Uint8Array {
  return new Uint8Array(Uint32Array.from(list).buffer);
}

/** Frames of the guest still go out. */
async function sends(scene: Scene, guest: HostileGuest): Promise<void> {
  const came = scene.recorder.count;
  guest.send(frameOf(500, came));
  await soon('a frame', () => scene.recorder.count === came + 1);
  await soon('its descriptor', () => guest.tx.driver.reap().length === 1);
}

describe('message: short/partial read', { timeout }, () => {
  afterEach(endScenes);

  it('is buffered until it is whole, however it comes', async () => {
    const scene = await openScene();
    const front = scene.connect();
    const file = eventfd();
    const message = encodeMessage(vhost.VHOST_USER_SET_VRING_CALL, vhost.VHOST_USER_NEED_REPLY, u64(0));
    for (let cut = 1; cut < message.length; cut++) {
      front.raw(message.subarray(0, cut), [file]);
      await turns(2);
      front.raw(message.subarray(cut));
      assert.equal(vhost.decodeU64(await front.reply(13))?.lo, 0, `cut at ${cut}`);
    }
    for (const byte of message) front.raw(Uint8Array.of(byte), byte === message[0] ? [file] : []);
    await front.reply(13);
    front.close();
    calls.close(file);
  });

  it('with a descriptor at each byte is what the descriptors of all of them make it', async () => {
    const scene = await openScene();
    const front = scene.connect();
    await front.ask(1);
    const baseline = openFds();
    const file = eventfd();
    const message = encodeMessage(vhost.VHOST_USER_SET_VRING_CALL, vhost.VHOST_USER_NEED_REPLY, u64(0));
    for (const byte of message) front.raw(Uint8Array.of(byte), [file]);
    assert.equal(vhost.decodeU64(await front.reply(13))?.lo, EINVAL);
    calls.close(file);
    await soon('all are closed', () => openFds() === baseline);
    front.close();
  });
});

describe('message: size > payload', { timeout }, () => {
  afterEach(endScenes);

  for (const [what, bytes] of [
    ['of 4097 bytes', words(vhost.VHOST_USER_SET_FEATURES, 1, 4097)],
    ['of 4 GiB less one', words(vhost.VHOST_USER_SET_MEM_TABLE, 1, 0xffff_ffff)],
    ['of 2 GiB', words(vhost.VHOST_USER_SET_MEM_TABLE, 1, 0x8000_0000)],
    ['of version 0', words(vhost.VHOST_USER_GET_FEATURES, 0, 0)],
    ['of version 2', words(vhost.VHOST_USER_GET_FEATURES, 2, 0)],
    ['of version 3', words(vhost.VHOST_USER_GET_FEATURES, 3, 0)],
    ['that is a reply', words(vhost.VHOST_USER_GET_FEATURES, 5, 0)],
    ['GET_VRING_BASE of 4 bytes', words(vhost.VHOST_USER_GET_VRING_BASE, 1, 4, 0)],
  ] as const) {
    it(`${what}: the connection is closed, with its descriptors, and the next is served`, async () => {
      const witness = await Witness.arrive();
      const scene = await openScene();
      const guest = await scene.boot();
      const file = eventfd();
      guest.front.raw(bytes, [file]);
      await guest.front.closed();
      assert.equal(scene.failures.length, 1);
      assert.match(String(scene.failures[0]), /vhost-user front-end sent/);
      calls.close(file);
      guest.end();
      await sends(scene, await scene.boot());
      await witness.testifies();
    });
  }

  it('that never comes whole, from many who connect and wait: one waits, the others are sent away', async () => {
    const witness = await Witness.arrive();
    const scene = await openScene();
    const baseline = openFds();
    const file = eventfd();
    const first = scene.connect();
    first.raw(words(vhost.VHOST_USER_SET_MEM_TABLE, 1, 4096), [file]);
    for (let i = 0; i < 50; i++) {
      const other = scene.connect();
      await other.closed();
      other.close();
    }
    assert.equal(scene.device.stats().rejected, 50);
    first.close();
    calls.close(file);
    await soon('gone', () => scene.device.state === 'listening');
    await soon('all are closed', () => openFds() === baseline);
    await witness.testifies();
  });
});

describe('nregions > 8 or != fds', { timeout }, () => {
  afterEach(endScenes);

  const whole = region(0, MEMORY_BYTES);
  const pages = (count: number): vhost.MemoryRegion[] =>
    Array.from({ length: count }, (_, i) => region(i * 8192, 4096));
  /** A table whose count is another than it has regions. */
  const counted = (count: number, regions: vhost.MemoryRegion[]): Uint8Array => {
    const bytes = vhost.encodeMemoryTable(regions);
    new DataView(bytes.buffer).setUint32(0, count, true);
    return bytes;
  };

  for (const [what, payload, fds, errno] of [
    ['one region, no descriptor', vhost.encodeMemoryTable([whole]), 0, EINVAL],
    ['one region, two descriptors', vhost.encodeMemoryTable([whole]), 2, EINVAL],
    ['two regions, one descriptor', vhost.encodeMemoryTable(pages(2)), 1, EINVAL],
    ['no region, no descriptor', vhost.encodeMemoryTable([]), 0, EINVAL],
    ['32 regions', vhost.encodeMemoryTable(pages(32)), 32, 0],
    ['33 regions, 32 descriptors', vhost.encodeMemoryTable(pages(33)), 32, EINVAL],
    ['as many as 2^32 - 1, in a message that has one', counted(0xffff_ffff, [whole]), 1, EINVAL],
    ['as many as 2^27 + 1, which times 32 is 32', counted(0x0800_0001, [whole]), 1, EINVAL],
    ['a table that is cut', vhost.encodeMemoryTable([whole]).subarray(0, 30), 1, EINVAL],
    ['nothing', new Uint8Array(0), 1, EINVAL],
  ] as const) {
    it(`${what}: ${errno === 0 ? 'taken' : 'refused, and the old table stays'}`, async () => {
      const scene = await openScene();
      const guest = await scene.boot();
      const baseline = openFds();
      const ram = Array.from({ length: fds }, () => guest.ram);
      assert.equal(await guest.front.ack(vhost.VHOST_USER_SET_MEM_TABLE, payload, ram), errno);
      await soon('all are closed', () => openFds() === baseline);
      if (errno !== 0) await sends(scene, guest);
    });
  }
});

describe('extra fds / fds on wrong message / CTRUNC', { timeout }, () => {
  afterEach(endScenes);

  it('are closed all, with every message that there is, and the rings run on', async () => {
    const witness = await Witness.arrive();
    const scene = await openScene();
    const guest = await scene.boot();
    const files = [eventfd(), eventfd(), eventfd()];
    const baseline = openFds();
    const { front } = guest;
    // Not those that stop rings or take the descriptor.
    const none = [3, 4, 8, 10, 18, 19, 20, 39];
    for (const request of none) {
      assert.equal(await front.ack(request, state(0, 0), files), EINVAL, `request ${request}`);
      await soon(`request ${request}: all are closed`, () => openFds() === baseline);
    }
    for (const request of [1, 15, 17, 36, 40]) {
      await front.ask(request, new Uint8Array(0), files);
      await soon(`request ${request}: all are closed`, () => openFds() === baseline);
    }
    for (const request of [12, 13, 14, 21, 37]) {
      assert.equal(await front.ack(request, state(0, 0), files), EINVAL, `request ${request}`);
      await soon(`request ${request}: all are closed`, () => openFds() === baseline);
    }
    await sends(scene, guest);
    for (const fd of files) calls.close(fd);
    await witness.testifies();
  });

  it('more than any message has: the connection ends', async () => {
    const scene = await openScene();
    const baseline = openFds();
    const guest = await scene.boot();
    const file = eventfd();
    const many = Array.from({ length: 253 }, () => file);
    guest.front.raw(encodeMessage(vhost.VHOST_USER_SET_MEM_TABLE, 0, new Uint8Array(8)), many);
    await guest.front.closed();
    assert.match(String(scene.failures[0]), /more than 32 descriptors/);
    calls.close(file);
    guest.end();
    await soon('all are closed', () => openFds() === baseline);
  });
});

describe('vring index > max, > 16 bit', { timeout }, () => {
  afterEach(endScenes);

  it('is refused in every message that has one, and nothing happens to a ring', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    const file = eventfd();
    const { front } = guest;
    for (const index of [2, 255, 256, 0x1_0000, 0x1_0001, 0x8000_0000, 0xffff_ffff]) {
      for (const request of [8, 10, 18]) {
        assert.equal(await front.ack(request, state(index, 1)), EINVAL, `${request}: ${index}`);
      }
      const address = { ...guest.tx.address, index };
      assert.equal(await front.ack(9, vhost.encodeVringAddress(address)), EINVAL);
      // A ring that is not there never moved.
      assert.equal(vhost.decodeState(await front.ask(11, state(index, 7)))?.num, 0);
      // Here only the low byte is an index, and all above bit 8 is undefined.
      const low = index & 0xff;
      if (low < 2) continue;
      for (const request of [12, 13, 14]) {
        assert.equal(await front.ack(request, u64(low), [file]), EINVAL);
      }
    }
    await sends(scene, guest);
    calls.close(file);
  });
});

describe('SET_VRING_NUM 0 / huge / non-pow2', { timeout }, () => {
  afterEach(endScenes);

  it('is refused, and a ring that runs keeps its size', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    for (const size of [0, 3, 255, 257, 8192, 32_768, 65_536, 2 ** 31, 2 ** 32 - 1]) {
      assert.equal(await guest.front.ack(8, state(TX, size)), EINVAL, `${size}`);
    }
    await sends(scene, guest);
  });

  it('of 1: a ring that is as small as it can be', async () => {
    const scene = await openScene();
    const guest = await scene.boot({ size: 1 });
    for (let i = 0; i < 10; i++) await sends(scene, guest);
  });
});

describe('repeated SET_VRING_NUM / GET_INFLIGHT', { timeout }, () => {
  afterEach(endScenes);

  it('and every other message, thousands of times, leaves nothing behind', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    const file = eventfd();
    await sends(scene, guest);
    const baseline = openFds();
    const { front } = guest;
    for (let i = 0; i < 2000; i++) {
      front.say(8, state(TX, 256));
      front.say(31, new Uint8Array(20));
      front.say(14, u64(RX), [file]);
      front.say(13, u64(RX), [file]);
      front.say(21, new Uint8Array(0), [file]);
      if (i % 8 === 0) await guest.barrier();
    }
    await guest.barrier();
    await soon('all are closed', () => openFds() === baseline);
    assert.equal(scene.device.state, 'connected');
    await sends(scene, guest);
    calls.close(file);
  });

  it('ring after ring that starts and stops: no mapping is left, and frames go on', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    for (let i = 0; i < 300; i++) {
      await sends(scene, guest);
      const base = await guest.base(TX);
      assert.equal(base, (i + 1) & 0xffff);
      await guest.start(TX, base);
    }
  });
});

describe('requests that nobody knows', { timeout }, () => {
  afterEach(endScenes);

  it('id 0, ids beyond all, and ids of features that were not offered: refused, the connection kept', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    const file = eventfd();
    const baseline = openFds();
    for (const request of [
      0,
      6,
      7,
      22,
      23,
      24,
      25,
      26,
      27,
      28,
      29,
      30,
      31,
      32,
      33,
      35,
      41,
      42,
      43,
      44,
      999,
      2 ** 31,
    ]) {
      assert.equal(await guest.front.ack(request, new Uint8Array(40), [file]), ENOSYS, `${request}`);
      guest.front.say(request, new Uint8Array(7));
    }
    await soon('all are closed', () => openFds() === baseline);
    await sends(scene, guest);
    calls.close(file);
  });
});

describe('order and state', { timeout }, () => {
  afterEach(endScenes);

  it('features with bits that were not offered, or while rings run: refused, and the rings run on', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    for (const bits of [1n << 34n, 1n << 63n, (1n << 64n) - 1n, 0n]) {
      assert.notEqual(await guest.front.ack(2, u64(bits)), 0);
    }
    await sends(scene, guest);
  });

  it('no order of the messages that bring up a ring does harm', async () => {
    const witness = await Witness.arrive();
    const scene = await openScene();
    const guest = scene.guest();
    const { front, tx } = guest;
    const table = (at: number, bytes: number): Uint8Array => vhost.encodeMemoryTable([region(at, bytes)]);
    const elsewhere = { ...tx.address, desc: USER + 2n ** 40n };
    const steps: (readonly [request: number, payload?: Uint8Array, fd?: number])[] = [
      [2, u64((1n << 30n) | (1n << 32n))],
      [5, table(0, MEMORY_BYTES), guest.ram],
      [5, table(4 * MIB, 4 * MIB), guest.ram],
      [8, state(TX, 256)],
      [8, state(TX, 128)],
      [9, vhost.encodeVringAddress(tx.address)],
      [9, vhost.encodeVringAddress(elsewhere)],
      [10, state(TX, 65_535)],
      [11, state(TX, 0)],
      [12, u64(TX), tx.kickFd],
      [12, u64(TX | 0x100)],
      [18, state(TX, 1)],
      [18, state(TX, 0)],
      [34],
      [39, u64(0)],
      [39, u64(15)],
      [4],
    ];
    const random = new Random(17);
    for (let i = 0; i < 600; i++) {
      const [request, payload = new Uint8Array(0), fd] = random.pick(steps);
      const bytes = encodeMessage(request, 0, payload);
      const fds = fd === undefined ? [] : [fd];
      // Until there is room for it.
      while (native().sendFds(front.fd, bytes, Int32Array.from(fds), fds.length) < 0) await turn();
      tx.driver.setAvailIdx(random.below(256));
      tx.kick();
      if (i % 10 !== 0) continue;
      await turn();
      guest.forget();
    }
    await soon('it is read', () => scene.device.state === 'connected');
    guest.end();
    await soon('gone', () => scene.device.state === 'listening');
    assert.deepEqual(scene.failures, []);
    await witness.testifies();
  });

  it('case 37: GET_VRING_BASE of a ring that was never set up, twice, and of one that runs, twice', async () => {
    const scene = await openScene({ queues: 2 });
    const guest = await scene.boot();
    assert.equal(await guest.base(2), 0);
    assert.equal(await guest.base(3), 0);
    await sends(scene, guest);
    assert.equal(await guest.base(TX), 1);
    assert.equal(await guest.base(TX), 1);
    await guest.start(TX, 1);
    await sends(scene, guest);
  });

  it('case 43: SET_STATUS 0 before GET_VRING_BASE, and ENABLE 1 after it', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    await sends(scene, guest);
    guest.front.say(39, u64(0));
    assert.equal(await guest.base(RX), 0);
    assert.equal(await guest.base(TX), 1);
    assert.equal(await guest.enable(TX, true), 0);
    guest.send(frameOf(100));
    await turns(30);
    assert.equal(scene.recorder.count, 1, 'not restarted without a kick');
    await guest.start(TX, 1);
    await soon('now it is', () => scene.recorder.count === 2);
  });

  it('case 45: RESET_OWNER while rings run changes nothing', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    assert.equal(await guest.front.ack(4), 0);
    await sends(scene, guest);
    guest.write(PAYLOAD, new Uint8Array(8));
  });
});
