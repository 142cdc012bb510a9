import assert from 'node:assert/strict';
import { mkdtempSync, openSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { errnoOf } from '../../src/core/errors.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { adopt, eventfd, F_SEAL_GROW, F_SEAL_SHRINK, memfd } from '../../src/sys/fds.ts';
import { GuestSpace } from '../../src/sys/space.ts';
import { type ChildResult, runChild } from '../support/children.ts';
import { socketPair } from '../support/descriptors.ts';
import { guestMemory, mappings, pattern } from '../support/guest-memory.ts';

const PAGE = native().pageSize();
const MIB = 2 ** 20;
const GIB = 2 ** 30;
const [EINVAL, EFAULT, EBADF, EACCES, EFBIG, ENOSPC, EMFILE] = [
  'EINVAL',
  'EFAULT',
  'EBADF',
  'EACCES',
  'EFBIG',
  'ENOSPC',
  'EMFILE',
].map((name) => -errnoOf(name)) as [number, number, number, number, number, number, number];

describe('a space', () => {
  it('maps what a front-end hands over, and reads and writes it', () => {
    const fd = memfd('zerotx-space', 16 * PAGE, F_SEAL_SHRINK | F_SEAL_GROW);
    const space = new GuestSpace();
    assert.equal(space.map(fd, 0x10_0000, 4 * PAGE, 8 * PAGE, 0x7fff_0000_0000n), 0);
    assert.equal(space.map(fd, 0, 8 * PAGE, 0, 0x5000_0000_0000n), 0);
    calls.close(fd);
    const bytes = pattern(3 * PAGE);
    assert.equal(space.write(0x10_0000 + 100, bytes), 0);
    const back = new Uint8Array(bytes.length);
    assert.equal(space.read(0x10_0000 + 100, back), 0);
    assert.deepEqual(back, bytes);
    assert.equal(space.read(0, back), 0);
    assert.ok(back.every((byte) => byte === 0));
    assert.equal(space.poisoned, false);
    space.destroy();
    space.destroy();
    assert.equal(space.destroyed, true);
    assert.equal(mappings('zerotx-space'), 0);
  });

  it('is copied: what leaves one is there in the other, with its memory, until it has left both', async () => {
    const fd = memfd('zerotx-copied', 8 * PAGE);
    const space = new GuestSpace();
    assert.equal(space.map(fd, 0, 4 * PAGE, 0, 0n), 0);
    assert.equal(space.map(fd, 8 * PAGE, 4 * PAGE, 4 * PAGE, 0x1000_0000n), 0);
    const copy = space.copy() as GuestSpace;
    assert.notEqual(copy.id, space.id);
    const view = space.view(8 * PAGE, PAGE) as ArrayBuffer;
    assert.equal(copy.unmap(8 * PAGE, 4 * PAGE), 0);
    const bytes = pattern(100);
    assert.equal(copy.write(8 * PAGE, bytes), EFAULT);
    assert.equal(space.write(8 * PAGE, bytes), 0);
    assert.deepEqual(new Uint8Array(view, 0, 100), bytes, 'views stay, too');
    assert.equal(space.write(0, bytes), 0);
    const back = new Uint8Array(100);
    assert.equal(copy.read(0, back), 0);
    assert.deepEqual(back, bytes, 'one memory');
    assert.equal(copy.map(fd, 8 * PAGE, 4 * PAGE, 0, 0x1000_0000n), 0, 'another in its place');
    assert.equal(copy.read(8 * PAGE, back), 0);
    assert.deepEqual(back, bytes);
    space.destroy();
    assert.equal(view.byteLength, 0, 'of the last that had it');
    const other = copy.view(0, PAGE) as ArrayBuffer;
    assert.equal(copy.read(0, back), 0);
    const again = copy.copy() as GuestSpace;
    copy.destroy();
    assert.equal(other.byteLength, PAGE);
    assert.equal(again.read(0, back), 0);
    again.destroy();
    assert.equal(other.byteLength, 0);
    assert.equal(again.copy(), EBADF);
    const empty = new GuestSpace();
    const none = empty.copy() as GuestSpace;
    assert.equal(none.map(fd, 0, PAGE, 0, 0n), 0, 'of nothing');
    assert.equal(empty.read(0, back), EFAULT);
    for (const one of [empty, none]) one.destroy();
    calls.close(fd);
  });

  it('crosses from a region to the one that begins where it ends, and over no hole', () => {
    // As QEMU lays out a PC: one file, two regions, and a hole where the graphics adapter is; and a third that is adjacent.
    const fd = memfd('zerotx-space', MIB);
    const space = new GuestSpace();
    assert.equal(space.map(fd, 0, 0xa_0000, 0, 0x1000_0000n), 0);
    assert.equal(space.map(fd, 0xc_0000, 0x2_0000, 0xc_0000, 0x2000_0000n), 0);
    assert.equal(space.map(fd, 0xe_0000, 0x2_0000, 0xa_0000, 0x3000_0000n), 0);
    const bytes = pattern(100);
    assert.equal(space.write(0xe_0000 - 50, bytes), 0);
    const back = new Uint8Array(100);
    assert.equal(space.read(0xe_0000 - 50, back), 0);
    assert.deepEqual(back, bytes);
    const file = new GuestSpace();
    assert.equal(file.map(fd, 0, MIB, 0, 0n), 0);
    assert.equal(file.read(0xa_0000, back.subarray(0, 50)), 0);
    assert.deepEqual(back.subarray(0, 50), bytes.subarray(50));

    assert.equal(space.write(0xa_0000 - 50, bytes), EFAULT);
    assert.equal(file.read(0xa_0000 - 50, back.subarray(0, 50)), 0);
    assert.ok(
      back.subarray(0, 50).every((byte) => byte === 0),
      'all or nothing',
    );
    for (const address of [0xa_0000, 0xb_ffff, 0x10_0000 - 99, 0x10_0000, 2 ** 52, -1]) {
      assert.equal(space.read(address, back), EFAULT, `${address}`);
    }
    assert.equal(space.read(0x10_0000 - 100, back), 0);
    assert.equal(space.read(-1, new Uint8Array(0)), 0, 'nothing is anywhere');
    for (const one of [space, file]) one.destroy();
    calls.close(fd);
  });

  it('finds what the front-end means by its own addresses, up to the last', () => {
    const fd = memfd('zerotx-space', 4 * PAGE);
    const space = new GuestSpace();
    const last = 2n ** 64n - BigInt(PAGE);
    assert.equal(space.map(fd, 0x1000_0000, PAGE, PAGE, last), 0);
    assert.equal(space.map(fd, 0, PAGE, 0, 0x7fff_0000_1000n), 0);
    assert.equal(space.map(fd, PAGE, PAGE, 0, 0x7fff_0000_1000n + BigInt(PAGE)), 0);
    assert.equal(space.find(last + 5n, 100), 0x1000_0005);
    assert.equal(space.find(last, PAGE), 0x1000_0000);
    assert.equal(space.find(2n ** 64n - 1n, 1), 0x1000_0000 + PAGE - 1);
    assert.equal(space.find(0x7fff_0000_1000n, 1), 0);
    assert.equal(space.find(0x7fff_0000_1000n + BigInt(PAGE), PAGE), PAGE);
    const [start, size] = [0x7fff_0000_1000n, BigInt(PAGE)];
    for (const address of [0n, last - 1n, start - 1n, start + 1n, start + size + 1n, start + 2n * size]) {
      assert.equal(space.find(address, PAGE), EFAULT, `${address}`);
    }
    assert.equal(space.find(last + 1n, PAGE), EFAULT);
    assert.equal(space.find(last, 2 ** 53), EFAULT);
    for (const bytes of [0, -1]) assert.equal(space.find(last, bytes), EINVAL);
    assert.throws(() => space.find(2n ** 64n, 1), /BigInt of 64 bits/);
    assert.throws(() => space.find(-1n, 1), /BigInt of 64 bits/);
    space.destroy();
    calls.close(fd);
  });

  it('refuses regions that make no sense', () => {
    const fd = memfd('zerotx-space', 16 * PAGE);
    const space = new GuestSpace();
    const user = 0x7000_0000_0000n;
    const map = (start: number, bytes: number, offset: number, at = user): number =>
      space.map(fd, start, bytes, offset, at);
    assert.equal(map(4 * PAGE, 4 * PAGE, 0), 0);
    for (const bytes of [0, -1, -PAGE, Number.NaN, 2 ** 52 + 1, 2 ** 63]) {
      assert.equal(map(64 * PAGE, bytes, 0, 0n), EINVAL, `${bytes} bytes`);
    }
    for (const start of [-1, -PAGE, 2 ** 52, 2 ** 52 - PAGE + 16, 2 ** 53, 1, 8, 64 * PAGE + 8]) {
      assert.equal(map(start, PAGE, 0, 0n), EINVAL, `start ${start}`);
    }
    for (const offset of [1, 8, PAGE - 1, PAGE + 1, -PAGE, 2 ** 52, 2 ** 53]) {
      assert.equal(map(64 * PAGE, PAGE, offset, 0n), EINVAL, `offset ${offset}`);
    }
    assert.equal(map(64 * PAGE, 2 * PAGE, 0, 2n ** 64n - BigInt(PAGE)), EINVAL, 'user addresses wrap');
    for (const [start, bytes] of [
      [4 * PAGE, 4 * PAGE],
      [0, 4 * PAGE + 1],
      [8 * PAGE - 16, PAGE],
      [5 * PAGE, PAGE],
      [0, 16 * PAGE],
    ] as const) {
      assert.equal(map(start, bytes, 0, 0n), EINVAL, `overlaps at ${start}`);
    }
    for (const at of [user, user + BigInt(4 * PAGE) - 1n, user - BigInt(PAGE) + 1n]) {
      assert.equal(map(64 * PAGE, PAGE, 0, at), EINVAL, `overlaps for the front-end at ${at}`);
    }
    assert.equal(map(64 * PAGE, PAGE, 16 * PAGE, 0n), EFBIG);
    assert.equal(map(64 * PAGE, 16 * PAGE + 1, 0, 0n), EFBIG);
    assert.equal(map(64 * PAGE, GIB, 0, 0n), EFBIG);
    assert.equal(map(64 * PAGE, 16 * PAGE, 0, 0n), 0, 'what is mapped twice may be the same bytes');
    assert.equal(map(0, 4 * PAGE, 0, user - BigInt(4 * PAGE)), 0, 'adjacent in both kinds of address');
    space.destroy();
    calls.close(fd);
  });

  it('takes regular files of tmpfs and hugetlbfs, open for both, and nothing that could make it wait', () => {
    const space = new GuestSpace();
    const folder = mkdtempSync(join(tmpdir(), 'zerotx-space-'));
    const others = [
      eventfd(),
      ...socketPair(),
      adopt(openSync('/dev/zero', 'r+')),
      adopt(openSync('/dev/shm', 'r')),
    ];
    for (const fd of others) {
      assert.equal(space.map(fd, 0, PAGE, 0, 0n), EACCES);
      calls.close(fd);
    }
    const fd = memfd('zerotx-space', PAGE);
    const reading = openSync(`/proc/self/fd/${fd}`, 'r');
    assert.equal(space.map(reading, 0, PAGE, 0, 0n), EBADF, 'a descriptor of Node');
    assert.equal(space.map(adopt(reading), 0, PAGE, 0, 0n), EACCES);
    calls.close(reading);
    const plain = openSync('/proc/self/maps', 'r');
    assert.equal(space.map(adopt(plain), 0, PAGE, 0, 0n), EACCES);
    calls.close(plain);
    const shared = join('/dev/shm', `zerotx-space-${process.pid}`);
    const file = openSync(shared, 'wx+');
    rmSync(shared);
    assert.equal(space.map(adopt(file), 0, PAGE, 0, 0n), EFBIG, 'as UML has it');
    calls.close(file);
    assert.equal(space.map(fd, 0, PAGE, 0, 0n), 0);
    calls.close(fd);
    rmSync(folder, { recursive: true });
    space.destroy();
  });

  it('refuses what is on a disk', (t) => {
    const folder = mkdtempSync(join(tmpdir(), 'zerotx-space-'));
    const file = join(folder, 'file');
    const fd = openSync(file, 'w+');
    const space = new GuestSpace();
    const result = space.map(adopt(fd), 0, PAGE, 0, 0n);
    calls.close(fd);
    space.destroy();
    rmSync(folder, { recursive: true });
    if (result === EFBIG) t.skip('the folder for temporary files is a tmpfs');
    else assert.equal(result, EACCES);
  });

  it('has at most 512 regions', () => {
    const fd = memfd('zerotx-many', PAGE);
    const space = new GuestSpace();
    // Every other page, in an order that is neither ascending nor descending.
    const order = Array.from({ length: 512 }, (_, i) => (i * 37) % 512);
    for (const i of order) assert.equal(space.map(fd, 2 * i * PAGE, PAGE, 0, BigInt(2 * i * PAGE)), 0);
    assert.equal(space.map(fd, 2000 * PAGE, PAGE, 0, BigInt(2000 * PAGE)), ENOSPC);
    const one = new Uint8Array(1);
    for (let i = 0; i < 1024; i++) {
      assert.equal(space.read(i * PAGE, one), i % 2 === 0 ? 0 : EFAULT);
      assert.equal(space.find(BigInt(i * PAGE), PAGE), i % 2 === 0 ? i * PAGE : EFAULT);
    }
    for (const i of order) {
      assert.equal(space.unmap(2 * i * PAGE, PAGE + 1), EINVAL);
      assert.equal(space.unmap(2 * i * PAGE, PAGE), 0);
      assert.equal(space.unmap(2 * i * PAGE, PAGE), EINVAL);
      assert.equal(space.read(2 * i * PAGE, one), EFAULT);
    }
    assert.equal(mappings('zerotx-many'), 0);
    space.destroy();
    calls.close(fd);
  });

  it('has a number that means nothing any more once it is destroyed', () => {
    const spaces = Array.from({ length: 5 }, () => new GuestSpace());
    const ids = spaces.map(({ id }) => id);
    assert.ok(ids.every((id) => id > 0));
    for (const space of spaces) space.destroy();
    const again = Array.from({ length: 5 }, () => new GuestSpace());
    assert.deepEqual(
      again.filter(({ id }) => ids.includes(id)),
      [],
    );
    for (const { id } of spaces) {
      assert.equal(native().spaceDestroy(id), EBADF);
      assert.equal(native().spaceRead(id, 0, new Uint8Array(1)), EBADF);
      assert.equal(native().spaceView(id, 0, 1), EBADF);
      assert.equal(native().spacePoisoned(id), EBADF);
    }
    for (const id of [0, 1023, 1024, 2 ** 31, 2 ** 32 - 1])
      assert.equal(native().spaceDestroy(id), EBADF, `${id}`);
    for (const space of again) space.destroy();
  });

  it('is one of 1,023', () => {
    const spaces: GuestSpace[] = [];
    assert.throws(
      () => {
        for (let i = 0; i < 2000; i++) spaces.push(new GuestSpace());
      },
      { code: 'EMFILE', errno: EMFILE },
    );
    assert.equal(spaces.length, 1023);
    assert.equal(new Set(spaces.map(({ id }) => id)).size, 1023);
    for (const space of spaces) space.destroy();
    new GuestSpace().destroy();
  });
});

describe('views', () => {
  it('show memory of one region, until it is unmapped', () => {
    const { space, fd } = guestMemory(4 * PAGE, 'zerotx-views');
    assert.equal(space.map(fd, 4 * PAGE, 2 * PAGE, 0, 0n), 0);
    const memory = space.view(100, 2 * PAGE) as ArrayBuffer;
    const view = new Uint8Array(memory);
    const again = new Uint16Array(space.view(100, 2) as ArrayBuffer);
    view.set([0x34, 0x12]);
    assert.equal(again[0], 0x1234);
    assert.equal(space.write(101, Uint8Array.of(0x56)), 0);
    assert.equal(Atomics.load(again, 0), 0x5634);
    const other = new Uint8Array(space.view(4 * PAGE, 2 * PAGE) as ArrayBuffer);
    assert.equal(other[100], 0x34, 'another region of the same file');

    assert.equal(space.unmap(0, 4 * PAGE), 0);
    assert.deepEqual([memory.byteLength, view.length, again.length, view[0]], [0, 0, 0, undefined]);
    assert.equal(other[100], 0x34);
    space.destroy();
    assert.equal(other.length, 0);
    calls.close(fd);
  });

  it('can be taken away one by one', () => {
    const { space, end } = guestMemory(4 * PAGE);
    const [a, b] = [space.view(0, PAGE), space.view(0, PAGE)] as [ArrayBuffer, ArrayBuffer];
    new Uint8Array(a)[0] = 9;
    assert.equal(space.detach(a), 0);
    assert.equal(a.byteLength, 0);
    assert.equal(new Uint8Array(b)[0], 9);
    assert.equal(space.detach(a), EINVAL);
    const elsewhere = guestMemory(PAGE);
    assert.equal(elsewhere.space.detach(b), EINVAL);
    for (const foreign of [new ArrayBuffer(8), new Uint8Array(b), {}, null, 1] as ArrayBuffer[]) {
      assert.equal(space.detach(foreign), EINVAL);
    }
    elsewhere.end();
    assert.equal(b.byteLength, PAGE);
    end();
    assert.equal(b.byteLength, 0);
  });

  it('are refused across regions, outside of them, and when they are larger than every Node can make them', () => {
    const fd = memfd('zerotx-views', 6 * GIB);
    const space = new GuestSpace();
    assert.equal(space.map(fd, 0, 5 * GIB, 0, 0n), 0);
    assert.equal(space.map(fd, 5 * GIB, GIB, 5 * GIB, BigInt(5 * GIB)), 0);
    for (const [start, bytes] of [
      [5 * GIB - 1, 2],
      [6 * GIB, 1],
      [6 * GIB - 1, 2],
      [-1, 1],
      [0, 2 ** 53],
      [5 * GIB, GIB + 1],
    ] as const) {
      assert.equal(space.view(start, bytes), EFAULT, `${start}`);
    }
    for (const bytes of [0, -1]) assert.equal(space.view(0, bytes), EINVAL);
    for (const bytes of [GIB + 1, 4 * GIB, 5 * GIB]) assert.equal(space.view(0, bytes), EFBIG);
    const view = space.view(5 * GIB - 100, 100) as ArrayBuffer;
    new Uint8Array(view).fill(3);
    const back = new Uint8Array(200);
    assert.equal(space.read(5 * GIB - 150, back), 0);
    assert.deepEqual([back[49], back[50], back[149], back[150]], [0, 3, 3, 0]);
    const whole = space.view(4 * GIB, GIB) as ArrayBuffer;
    assert.equal(whole.byteLength, GIB);
    assert.equal(new Uint8Array(whole)[GIB - 1], 3);
    space.destroy();
    assert.equal(whole.byteLength, 0);
    calls.close(fd);
  });
});

const CLEAN: Partial<ChildResult> = { code: 0, signal: null, stdout: '', stderr: '' };

async function ends(mode: string, execArgv: readonly string[] = []): Promise<void> {
  const child = new URL('./children/guest-memory.js', import.meta.url);
  assert.deepEqual(await runChild(child, [mode], { execArgv, deadlineMs: 60_000 }), CLEAN);
}

describe('a file that is truncated while it is mapped', { timeout: 120_000 }, () => {
  it('reads as zeros through a view, and takes what is written', () => ends('view'));
  it('reads as zeros in optimised loops and atomic operations', () => ends('optimised'));
  it('reads as zeros where the kernel is not asked', () => ends('copies'));
  it('is a frame that failed where the kernel is asked', () => ends('kernel'));
  it('poisons its own space, and no other', () => ends('neighbours'));
  it('does so again and again', () => ends('repeated'));
  it('does so in a worker', () => ends('worker'));

  it('is no reason to swallow a signal that means something else', async () => {
    const child = new URL('./children/guest-memory.js', import.meta.url);
    const { code, signal, stderr } = await runChild(child, ['killed']);
    // A sanitizer has a handler of its own, which ours passes the signal on to.
    if (stderr.includes('AddressSanitizer')) assert.match(stderr, /AddressSanitizer: BUS/);
    else assert.deepEqual({ code, signal, stderr }, { code: null, signal: 'SIGBUS', stderr: '' });
  });
});

describe('the life of guest memory', { timeout: 240_000 }, () => {
  it('does not end with its views when these are collected', () => ends('collected', ['--expose-gc']));
  it('ends when nothing refers to a view that was moved to another shell', () =>
    ends('moved', ['--expose-gc']));
  it('ends with a worker that is terminated, with spaces mapped and views alive', () => ends('terminated'));
  it('ends with a worker that comes to its end', () => ends('returned'));
  it('ends at process.exit()', () => ends('exit'));
  it('ends with the process', () => ends('natural'));
});
