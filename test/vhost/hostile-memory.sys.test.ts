/**
 * Memory of a front-end that is hostile: files that are none, regions that do not fit, and files that get shorter under us. Only
 * that front-end is refused, or closed.
 */
import assert from 'node:assert/strict';
import { fstatSync, ftruncateSync, mkdtempSync, openSync, rmSync, statfsSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, it } from 'node:test';
import * as calls from '../../src/sys/calls.ts';
import { adopt, F_SEAL_GROW, F_SEAL_SHRINK, memfd } from '../../src/sys/fds.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import { mappings } from '../support/guest-memory.ts';
import { oddities } from '../support/hostile-fds.ts';
import {
  type HostileGuest,
  MEMORY_BYTES,
  PAYLOAD,
  soon,
  TX,
  turns,
  VNET_BYTES,
} from '../support/hostile-guest.ts';
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
import { MIB, region, state, USER, u64 } from '../support/vhost-session.ts';

const timeout = 60_000;
const GIB = 2 ** 30;
const EPERM = 1;
const ENOMEM = 12;
const EACCES = 13;
const EFAULT = 14;
const EINVAL = 22;
const EFBIG = 27;
const F_SEAL_WRITE = 8;

async function sends(scene: Scene, guest: HostileGuest, address: number = PAYLOAD): Promise<void> {
  const frame = frameOf(500, scene.recorder.count);
  guest.send(frame, address);
  await soon('its descriptor', () => guest.tx.driver.reap().length === 1);
  assert.deepEqual(scene.recorder.frames.at(-1)?.bytes, frame);
}

/** The front-end is closed for its memory, and the next is served. */
async function isClosed(scene: Scene, guest: HostileGuest): Promise<void> {
  await soon('it is closed', () => scene.failures.length === 1);
  assert.equal((scene.failures[0] as NodeJS.ErrnoException).code, 'ZTX_GUEST_MEMORY');
  assert.deepEqual(scene.broken, []);
  await guest.front.closed();
  guest.end();
  await sends(scene, await scene.boot());
}

describe('memfd truncated after mmap', { timeout }, () => {
  afterEach(endScenes);

  const folder = statfsSync('/dev/shm').type === 0x0102_1994 ? '/dev/shm' : null;

  for (const [what, bytes] of [
    ['all of it', 0],
    ['all but the rings', PAYLOAD],
    ['all but the page of the descriptors', 4096],
  ] as const) {
    it(`${what}, before frames are sent from it: closed, and nobody else`, async () => {
      const witness = await Witness.arrive();
      const scene = await openScene();
      const guest = await scene.boot();
      for (let i = 0; i < 8; i++) guest.send(frameOf(1000), PAYLOAD + 0x1000 * i);
      await soon('all are back', () => guest.tx.driver.reap().length > 0 && guest.tx.usedIdx === 8);
      // The guest would write to it as well, so there is the frame before.
      guest.tx.offer(0);
      ftruncateSync(guest.ram, bytes);
      guest.tx.kick();
      await isClosed(scene, guest);
      await witness.testifies();
    });

    it(`${what}, before frames arrive in it: closed, and nobody else`, async () => {
      const witness = await Witness.arrive();
      const scene = await openScene();
      const guest = await scene.boot();
      for (let i = 0; i < 8; i++) guest.post(PAYLOAD + 0x1000 * i, 2000);
      ftruncateSync(guest.ram, bytes);
      for (let i = 0; i < 4; i++) deliver(scene, frameOf(1000));
      await isClosed(scene, guest);
      await witness.testifies();
    });
  }

  it('all of it, while nothing is under way: closed with the next kick', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    await turns(50);
    ftruncateSync(guest.ram, 0);
    await turns(50);
    guest.tx.kick();
    await isClosed(scene, guest);
  });

  it('all of it, while a new ring is set up in it', async () => {
    const witness = await Witness.arrive();
    const scene = await openScene();
    const guest = await scene.boot();
    await guest.base(TX);
    ftruncateSync(guest.ram, 0);
    guest.front.say(12, u64(TX), [guest.tx.kickFd]);
    guest.tx.kick();
    await isClosed(scene, guest);
    await witness.testifies();
  });

  it('a file of tmpfs, which nobody can seal', { skip: folder === null }, async () => {
    const path = mkdtempSync(join(folder as string, 'zerotx-'));
    const scene = await openScene();
    const file = adopt(openSync(join(path, 'ram'), 'w+'));
    rmSync(path, { recursive: true });
    ftruncateSync(file, MEMORY_BYTES);
    const guest = await scene.boot({ file });
    await sends(scene, guest);
    ftruncateSync(file, 0);
    guest.tx.offer(0);
    guest.tx.kick();
    await isClosed(scene, guest);
  });

  it('a file that is sealed against it cannot be', async () => {
    const scene = await openScene();
    const guest = await scene.boot({ seals: F_SEAL_SHRINK | F_SEAL_GROW });
    assert.throws(() => ftruncateSync(guest.ram, 0), { code: 'EPERM' });
    await sends(scene, guest);
  });

  it('a frame of it that is on its way to another guest: zeros or nothing there, and that guest is as it was', async () => {
    const [from, to] = [await openScene(), await openScene()];
    const which = Uint32Array.from({ length: 256 }, (_, i) => i);
    const sender = await from.boot();
    const receiver = await to.boot();
    from.device.receiver = (table) => {
      ftruncateSync(sender.ram, 0);
      return to.device.send(table, which, 0, table.count);
    };
    receiver.post(PAYLOAD, 4000);
    sender.send(frameOf(1500, 9));
    await soon('closed', () => from.failures.length === 1);
    // The head was looked at before, the tail is gone.
    assert.equal(receiver.rx.usedIdx, 1);
    const got = receiver.read(PAYLOAD + VNET_BYTES, 1500);
    assert.deepEqual(got.subarray(0, 256), frameOf(1500, 9).subarray(0, 256));
    assert.ok(got.subarray(256).every((byte) => byte === 0));
    assert.deepEqual([to.failures, to.broken], [[], []]);
    assert.equal(to.device.state, 'connected');
  });

  it('a hundred front-ends, one after the other', async () => {
    const witness = await Witness.arrive();
    const scene = await openScene();
    const baseline = openFds();
    for (let i = 0; i < 100; i++) {
      const guest = await scene.boot({ memoryBytes: 2 * MIB });
      guest.send(frameOf(600));
      ftruncateSync(guest.ram, (i % 4) * 0x8_0000);
      guest.tx.kick();
      deliver(scene, frameOf(100));
      if (i % 4 < 2) await soon('closed', () => scene.device.state === 'listening');
      guest.end();
      await soon('gone', () => scene.device.state === 'listening');
    }
    await soon('all are closed', () => openFds() === baseline);
    await witness.testifies();
  });
});

describe('fd is not mmapable / regular, a socket, a directory', { timeout }, () => {
  afterEach(endScenes);

  it('and whatever else there is: refused, closed, and the old table stays', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    const odd = oddities();
    const baseline = openFds();
    for (const [what, fd] of odd.all) {
      assert.equal(await guest.tell([region(0, MIB)], [fd]), EACCES, what);
      const added = region(64 * MIB, 4096, undefined, 0);
      assert.equal(await guest.front.ack(37, vhost.encodeSingleRegion(added), [fd]), EACCES, what);
      // Those whose file system might wait are closed by another thread.
      await soon(`${what} is closed`, () => openFds() === baseline);
    }
    await sends(scene, guest);
    odd.close();
  });

  it('memory that cannot be written to: refused', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    const sealed = memfd('hostile', MIB, F_SEAL_WRITE);
    assert.equal(await guest.tell([region(0, MIB)], [sealed]), EPERM);
    const readonly = adopt(openSync(`/proc/self/fd/${guest.ram}`, 'r'));
    assert.equal(await guest.tell([region(0, MIB)], [readonly]), EACCES);
    await sends(scene, guest);
    for (const fd of [sealed, readonly]) calls.close(fd);
  });

  it('a file on a disk: refused', async (t) => {
    const path = mkdtempSync(join(tmpdir(), 'zerotx-'));
    if (statfsSync(path).type === 0x0102_1994) t.skip('temporary files are in memory here');
    const file = adopt(openSync(join(path, 'ram'), 'w+'));
    rmSync(path, { recursive: true });
    ftruncateSync(file, MIB);
    const scene = await openScene();
    const guest = await scene.boot();
    if (!t.signal.aborted) assert.equal(await guest.tell([region(0, MIB)], [file]), EACCES);
    calls.close(file);
  });
});

describe('region size + offset overflow, 0, unaligned; overlapping gpa; huge', { timeout }, () => {
  afterEach(endScenes);

  const max = (1n << 64n) - 1n;
  const raw = (
    guestAddress: bigint,
    bytes: bigint,
    userAddress: bigint,
    mmapOffset: bigint,
  ): vhost.MemoryRegion => ({
    guestAddress,
    bytes,
    userAddress,
    mmapOffset,
  });
  const MIBn = BigInt(MIB);
  const refused: readonly (readonly [string, readonly vhost.MemoryRegion[], number])[] = [
    ['no bytes', [raw(0n, 0n, USER, 0n)], EINVAL],
    ['2^46 bytes', [raw(0n, 1n << 46n, USER, 0n)], ENOMEM],
    ['1 TiB', [raw(0n, 1n << 40n, USER, 0n)], ENOMEM],
    ['all bytes there are', [raw(0n, max, 0n, 0n)], ENOMEM],
    ['an address that wraps', [raw(max - 4095n, MIBn, USER, 0n)], EINVAL],
    ['an address beyond 2^52', [raw(1n << 52n, MIBn, USER, 0n)], EINVAL],
    ['an offset that wraps', [raw(0n, MIBn, USER, max - 4095n)], EINVAL],
    ['an offset beyond the file', [raw(0n, MIBn, USER, BigInt(MEMORY_BYTES))], EFBIG],
    ['an offset in the middle of a page', [raw(0n, MIBn, USER, 512n)], EINVAL],
    ['a user address that wraps', [raw(0n, MIBn, max - 4095n, 0n)], EFAULT],
    ['a user address that no ring is aligned at', [raw(0n, MIBn, USER + 1n, 0n)], EINVAL],
    ['a user address 8 bytes beside', [raw(0n, MIBn, USER + 8n, 0n)], EINVAL],
    ['a guest address 8 bytes beside', [raw(8n, MIBn, USER, 0n)], EINVAL],
    ['the same twice', [raw(0n, MIBn, USER, 0n), raw(0n, MIBn, USER, 0n)], EINVAL],
    [
      'guest addresses that overlap',
      [raw(0n, MIBn, USER, 0n), raw(MIBn - 4096n, MIBn, USER + 2n * MIBn, 0n)],
      EINVAL,
    ],
    [
      'user addresses that overlap',
      [raw(0n, MIBn, USER, 0n), raw(2n * MIBn, MIBn, USER + MIBn - 4096n, 0n)],
      EINVAL,
    ],
    ['one in the other', [raw(0n, 4n * MIBn, USER, 0n), raw(MIBn, MIBn, USER + 8n * MIBn, 0n)], EINVAL],
  ];

  for (const [what, regions, errno] of refused) {
    it(`${what}: refused, and the old table stays`, async () => {
      const scene = await openScene();
      const guest = await scene.boot();
      const [fdsBefore, mapsBefore] = [openFds(), guestMappings()];
      const fds = regions.map(() => guest.ram);
      assert.equal(await guest.tell(regions, fds), errno);
      await soon('all are closed', () => openFds() === fdsBefore);
      await soon('what was mapped of it is unmapped', () => guestMappings() <= mapsBefore);
      await sends(scene, guest);
    });
  }

  it('1 TiB where that may be: mapped and not reserved, and its last bytes are there', async () => {
    const scene = await openScene({ regionBytesMax: 2 ** 40 });
    const guest = await scene.boot({ memoryBytes: 2 ** 40 });
    await sends(scene, guest);
    await sends(scene, guest, 2 ** 40 - 512);
    await sends(scene, guest, 6 * GIB - 256);
  });

  it('case 71: 6 GiB of two guests, with buffers at 3.9, 4.1 and 5.9 GiB and over 4 GiB', async () => {
    const scenes = [await openScene(), await openScene()];
    for (const scene of scenes) {
      const guest = await scene.boot({ memoryBytes: 6 * GIB });
      for (const at of [3.9 * GIB, 4 * GIB - 100, 4 * GIB, 4.1 * GIB, 5.9 * GIB, 6 * GIB - 512]) {
        await sends(scene, guest, Math.floor(at));
        const address = Math.floor(at) - 4096;
        guest.post(address, 512);
        deliver(scene, frameOf(300, at & 0xff));
        await soon('it arrives', () => guest.rx.driver.reap().length === 1);
        assert.deepEqual(guest.read(address + VNET_BYTES, 300), frameOf(300, at & 0xff));
      }
    }
  });

  it('case 73: two regions of one file: what crosses the hole between them fails, and is not read from it', async () => {
    const scene = await openScene();
    const guest = scene.guest();
    await guest.greet();
    // As QEMU has them: guest addresses 0 to 0xa0000, and from 0x100000 on (here: where payload is).
    const low = region(0, 0xa_0000);
    const high = region(0xc_0000, MEMORY_BYTES - 0xc_0000);
    const again = adopt(openSync(`/proc/self/fd/${guest.ram}`, 'r+'));
    assert.equal(await guest.tell([low, high], [guest.ram, again]), 0);
    calls.close(again);
    for (const index of guest.rings.keys()) await guest.start(index);
    // The file is in one piece, so the guest can write where the device has nothing.
    for (const at of [0xa_0000 - 50, 0xa_0000, 0xb_0000, 0xc_0000 - 50]) {
      guest.send(frameOf(400), at);
      await soon('it is returned', () => guest.tx.driver.reap().length === 1);
    }
    assert.equal(scene.recorder.count, 0);
    assert.equal(scene.device.stats().details.chains.address, 4);
    await sends(scene, guest, 0xa_0000 - 512);
    await sends(scene, guest, 0xc_0000);
  });

  it('adjacent regions of different files are one for a frame that crosses them', async () => {
    const scene = await openScene();
    const guest = scene.guest();
    await guest.greet();
    const half = MEMORY_BYTES / 2;
    const regions = [region(0, half), region(half, half)];
    assert.equal(await guest.tell(regions, [guest.ram, guest.ram]), 0);
    for (const index of guest.rings.keys()) await guest.start(index);
    await sends(scene, guest, half - 200);
  });
});

describe('memory that is only there to be large', { timeout }, () => {
  afterEach(endScenes);

  it('together no more than a front-end may have, in one table or one by one', async () => {
    const scene = await openScene({ regionBytesMax: 64 * MIB });
    const guest = await scene.boot();
    const large = memfd('large', 64 * MIB);
    assert.equal(
      await guest.tell([region(0, 48 * MIB), region(64 * MIB, 17 * MIB, undefined, 0)], [large, large]),
      ENOMEM,
    );
    const single = (i: number): vhost.MemoryRegion => region((i + 1) * 64 * MIB, 16 * MIB, undefined, 0);
    const answers: number[] = [];
    for (let i = 0; i < 4; i++) {
      answers.push(await guest.front.ack(37, vhost.encodeSingleRegion(single(i)), [large]));
    }
    assert.deepEqual(answers, [0, 0, 0, ENOMEM]);
    await sends(scene, guest);
    calls.close(large);
  });

  it('what was removed while a frame is lent is mapped no more than once', async () => {
    const scene = await openScene({ regionBytesMax: 64 * MIB });
    const guest = await scene.boot();
    scene.recorder.borrows = true;
    scene.recorder.keeps = false;
    guest.send(frameOf(1000));
    await soon('lent', () => scene.recorder.loans.length === 1);
    const large = memfd('large', 16 * MIB);
    for (let i = 0; i < 600; i++) {
      const single = vhost.encodeSingleRegion(region((i + 1) * 64 * MIB, 16 * MIB, undefined, 0));
      assert.equal(await guest.front.ack(37, single, [large]), 0);
      assert.equal(await guest.front.ack(38, single), 0);
    }
    await soon('all but that of the frame is unmapped', () => mappings('large') <= 1);
    scene.recorder.release();
    await soon('and that', () => mappings('large') === 0);
    calls.close(large);
  });

  it('holes are read where the guest says so, and nowhere else', async () => {
    const scene = await openScene();
    const guest = await scene.boot({ memoryBytes: 32 * GIB });
    const { blocks } = fstatSync(guest.ram);
    guest.tx.driver.chain([{ address: BigInt(20 * GIB), length: 2000 }]);
    guest.tx.driver.show();
    guest.tx.kick();
    await soon('it is sent', () => guest.tx.usedIdx === 1);
    assert.deepEqual(scene.recorder.frames[0]?.bytes, new Uint8Array(1988));
    const now = fstatSync(guest.ram).blocks;
    assert.ok(now - blocks <= 8 * 8, `${now - blocks} blocks of 512 bytes were allocated`);
  });

  it('tables, again and again, of all that may be mapped: nothing is left of the last one', async () => {
    const witness = await Witness.arrive();
    const scene = await openScene();
    const guest = await scene.boot({ memoryBytes: 60 * GIB });
    const other = memfd('hostile', 60 * GIB);
    for (let i = 0; i < 200; i++) {
      assert.equal(await guest.tell([region(0, 60 * GIB)], [i % 2 === 0 ? other : guest.ram]), 0);
    }
    // Its own, the witness's two, and the device's: old ones are unmapped by another thread.
    await soon('unmapped', () => guestMappings() <= 4);
    assert.equal(await guest.front.ack(18, state(TX, 1)), 0);
    calls.close(other);
    await witness.testifies();
  });
});
