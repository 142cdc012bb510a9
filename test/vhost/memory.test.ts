import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Lease } from '../../src/vhost/lease.ts';
import { GuestMemory, REGIONS_MAX } from '../../src/vhost/memory.ts';
import type { MemoryRegion } from '../../src/wire/vhost-user.ts';
import { FakeCalls, type FakeSpace } from '../support/vhost-host.ts';
import { MIB, region, USER } from '../support/vhost-session.ts';

const [ENOENT, ENOMEM, EINVAL, ENOSPC, EMFILE] = [2, 12, 22, 28, 24] as const;
const LOW = region(0, 640 * 1024);
const HIGH = region(MIB, 127 * MIB);

class Memory {
  readonly calls: FakeCalls = new FakeCalls();
  readonly memory: GuestMemory;

  constructor(bytesMax = 1024 * MIB) {
    this.memory = new GuestMemory(this.calls, bytesMax);
  }

  set(regions: readonly MemoryRegion[], files: readonly string[] = regions.map(() => 'ram')): number {
    const error = this.memory.setTable(
      regions,
      files.map((name) => this.calls.files.open(name)),
    );
    assert.equal(this.calls.files.count, 0, 'descriptors are closed');
    return error;
  }

  add(one: MemoryRegion, file = 'ram'): number {
    const error = this.memory.add(one, this.calls.files.open(file));
    assert.equal(this.calls.files.count, 0, 'descriptors are closed');
    return error;
  }

  get space(): FakeSpace {
    return this.memory.lease?.space as FakeSpace;
  }
}

describe('a memory table', () => {
  it('is mapped in a space of its own', () => {
    const at = new Memory();
    assert.equal(at.memory.lease, null);
    assert.equal(at.set([LOW, HIGH]), 0);
    assert.equal(at.space.regions.length, 2);
    assert.equal(at.memory.bytes, 640 * 1024 + 127 * MIB);
    at.memory.close();
    assert.equal(at.calls.liveSpaces.length, 0);
  });

  it('that comes again with the same files is kept, also through other descriptors', () => {
    const at = new Memory();
    at.set([LOW, HIGH]);
    const { lease } = at.memory;
    assert.equal(at.set([LOW, HIGH]), 0);
    assert.equal(at.memory.lease, lease);
    assert.equal(at.calls.spaces.length, 1);
  });

  const others: readonly (readonly [string, readonly MemoryRegion[], readonly string[]])[] = [
    ['another size', [LOW, region(MIB, 128 * MIB)], ['ram', 'ram']],
    ['another user address', [LOW, { ...HIGH, userAddress: USER + 0x1000_0000n }], ['ram', 'ram']],
    ['another offset', [LOW, { ...HIGH, mmapOffset: 0n }], ['ram', 'ram']],
    ['another file', [LOW, HIGH], ['ram', 'other']],
    ['fewer regions', [LOW], ['ram']],
    ['more regions', [LOW, HIGH, region(512 * MIB, MIB)], ['ram', 'ram', 'ram']],
  ];
  for (const [name, table, files] of others) {
    it(`with ${name} is another one`, () => {
      const at = new Memory();
      at.set([LOW, HIGH]);
      const old = at.space;
      assert.equal(at.set(table, files), 0);
      assert.notEqual(at.space, old);
      assert.equal(old.destroyed, true);
      at.memory.close();
      assert.equal(at.calls.liveSpaces.length, 0);
    });
  }

  it('is never kept when its files cannot be told apart', () => {
    const at = new Memory();
    at.calls.fileOf = () => null;
    at.set([LOW]);
    at.set([LOW]);
    assert.equal(at.calls.spaces.length, 2);
  });

  const huge = 2n ** 46n;
  const refused: readonly (readonly [string, number, readonly MemoryRegion[], readonly string[]])[] = [
    ['no regions', EINVAL, [], []],
    ['fewer descriptors than regions', EINVAL, [LOW, HIGH], ['ram']],
    ['more descriptors than regions', EINVAL, [LOW], ['ram', 'ram']],
    ['33 regions', EINVAL, many(33), many(33).map(() => 'ram')],
    ['size 0', EINVAL, [region(0, 0)], ['ram']],
    ['size 2^46', ENOMEM, [{ ...LOW, bytes: huge }], ['ram']],
    ['size 2^64 - 1', ENOMEM, [{ ...LOW, bytes: 2n ** 64n - 1n }], ['ram']],
    ['an offset that overflows', EINVAL, [{ ...LOW, mmapOffset: 2n ** 64n - 4096n }], ['ram']],
    ['a guest address that overflows', EINVAL, [{ ...LOW, guestAddress: 2n ** 64n - 4096n }], ['ram']],
    ['a guest address beyond 2^52', EINVAL, [{ ...LOW, guestAddress: 2n ** 52n }], ['ram']],
    ['a user address that overflows', 14, [{ ...LOW, userAddress: 2n ** 64n - 4096n }], ['ram']],
    ['regions that overlap', EINVAL, [LOW, region(512 * 1024, MIB, USER + 0x8000_0000n)], ['ram', 'ram']],
    ['a file that cannot be mapped', EINVAL, [LOW, HIGH], ['ram', 'unmappable']],
  ];
  for (const [name, errno, table, files] of refused) {
    it(`case 31: ${name} is refused, and the old table stays`, () => {
      const at = new Memory();
      at.set([LOW, HIGH]);
      const { lease } = at.memory;
      assert.equal(at.set(table, files), errno);
      assert.equal(at.memory.lease, lease);
      assert.equal(at.space.regions.length, 2);
      assert.equal(at.calls.liveSpaces.length, 1);
      at.memory.close();
      const empty = new Memory();
      assert.equal(empty.set(table, files), errno);
      assert.equal(empty.memory.lease, null);
      assert.equal(empty.calls.liveSpaces.length, 0);
    });
  }

  it('is refused when there is no space for it', () => {
    const at = new Memory();
    at.calls.spaceError = -EMFILE;
    assert.equal(at.set([LOW]), EMFILE);
    assert.equal(at.add(LOW), EMFILE);
  });

  function many(count: number): MemoryRegion[] {
    return Array.from({ length: count }, (_, i) => region(i * MIB, MIB));
  }
});

describe('memory regions that come and go', () => {
  it('are added to the current space, and the first makes it', () => {
    const at = new Memory();
    assert.equal(at.add(LOW), 0);
    const { lease } = at.memory;
    assert.equal(at.add(HIGH), 0);
    assert.equal(at.memory.lease, lease);
    assert.equal(at.space.regions.length, 2);
    assert.equal(at.add({ ...HIGH, mmapOffset: 0n }), EINVAL);
    assert.equal(at.add(HIGH, 'other'), EINVAL);
    assert.equal(at.memory.regionCount, 2);
  });

  for (const told of [true, false]) {
    it(`are added once for each queue pair, and go with the last${told ? '' : ', where files are not told apart'}`, () => {
      const at = new Memory();
      if (!told) at.calls.fileOf = () => null;
      at.set([LOW]);
      for (const error of [at.add(HIGH), at.add(HIGH), at.add(LOW)]) assert.equal(error, 0);
      assert.equal(at.space.regions.length, 2);
      const { lease } = at.memory;
      assert.equal(at.memory.remove(HIGH), 0);
      assert.equal(at.memory.lease, lease);
      assert.equal(at.space.regions.length, 2);
      assert.equal(at.memory.remove(HIGH), 0);
      assert.equal(at.space.regions.length, 1);
      assert.equal(at.memory.remove(HIGH), ENOENT);
    });
  }

  it('are at most 509, and 1 GiB here', () => {
    const at = new Memory();
    for (let i = 0; i < REGIONS_MAX; i++) assert.equal(at.add(region(i * MIB, MIB)), 0);
    assert.equal(at.add(region(600 * MIB, MIB)), ENOSPC);
    const small = new Memory(2 * MIB);
    assert.equal(small.add(region(0, 2 * MIB)), 0);
    assert.equal(small.add(region(4 * MIB, 4096)), ENOMEM);
  });

  it('are found by guest address, user address and size, whatever the offset', () => {
    const at = new Memory();
    at.set([LOW, HIGH]);
    assert.equal(at.memory.remove({ ...HIGH, userAddress: USER }), ENOENT);
    assert.equal(at.memory.remove({ ...HIGH, bytes: 1n }), ENOENT);
    assert.equal(at.memory.remove({ ...HIGH, guestAddress: 0n }), ENOENT);
    assert.equal(at.memory.remove({ ...HIGH, mmapOffset: 77n }), 0);
    assert.equal(at.memory.remove(HIGH), ENOENT);
    assert.equal(at.space.regions.length, 1);
    assert.equal(new Memory().memory.remove(LOW), ENOENT);
  });

  it('stay mapped for whoever holds a lease of before, and are gone for all others', () => {
    const at = new Memory();
    at.set([LOW, HIGH]);
    const [first, firstSpace] = [at.memory.lease, at.space];
    first?.hold();
    at.memory.remove(HIGH);
    const [second, secondSpace] = [at.memory.lease, at.space];
    assert.notEqual(second, first);
    second?.hold();
    at.memory.remove(LOW);
    assert.deepEqual(
      [firstSpace, secondSpace, at.space].map(({ regions }) => regions.length),
      [2, 1, 0],
    );
    second?.release();
    assert.deepEqual([firstSpace.destroyed, secondSpace.destroyed], [false, true]);
    first?.release();
    assert.equal(firstSpace.destroyed, true);
    assert.equal(at.memory.keptCount, 0);
    assert.equal(at.memory.forced, 0);
  });

  it('may have others in their place, whatever is still lent of them', () => {
    const at = new Memory();
    at.set([LOW, HIGH]);
    const { lease } = at.memory;
    lease?.hold();
    at.memory.remove(HIGH);
    assert.equal(at.add(region(2 * MIB, MIB, USER + 0x9000_0000n)), 0);
    assert.equal(at.memory.forced, 0);
    assert.deepEqual(
      [lease?.space, at.space].map((space) => (space as FakeSpace).regions.length),
      [2, 2],
    );
    lease?.release();
    assert.equal(at.space.regions.length, 2);
    assert.equal(at.calls.liveSpaces.length, 1);
  });

  it('stay when there is no space for what is left', () => {
    const at = new Memory();
    at.set([LOW, HIGH]);
    const { lease } = at.memory;
    at.calls.spaceError = -EMFILE;
    assert.equal(at.memory.remove(HIGH), EMFILE);
    assert.equal(at.memory.lease, lease);
    assert.equal(at.memory.regionCount, 2);
    at.calls.spaceError = 0;
    assert.equal(at.memory.remove(HIGH), 0);
  });
});

describe('an old space', () => {
  it('lives as long as its lease is held', () => {
    const at = new Memory();
    at.set([LOW]);
    const { lease, space } = { lease: at.memory.lease, space: at.space };
    lease?.hold();
    lease?.hold();
    at.set([HIGH]);
    assert.equal(space.destroyed, false);
    lease?.release();
    assert.equal(space.destroyed, false);
    lease?.release();
    assert.equal(space.destroyed, true);
  });

  it('lives through the end of the connection', () => {
    const at = new Memory();
    at.set([LOW]);
    const { lease, space } = { lease: at.memory.lease, space: at.space };
    lease?.hold();
    at.memory.close();
    assert.equal(at.memory.lease, null);
    assert.equal(space.destroyed, false);
    lease?.release();
    assert.equal(space.destroyed, true);
  });

  it('is destroyed under its frames when there are too many', () => {
    const at = new Memory();
    const leases = [];
    for (let i = 0; i < 20; i++) {
      at.set([region(0, (i + 1) * 4096)]);
      at.memory.lease?.hold();
      leases.push(at.memory.lease);
    }
    assert.ok(at.calls.liveSpaces.length <= 5);
    assert.equal(at.memory.forced, 15);
    at.memory.close();
    for (const lease of leases) lease?.release();
    assert.equal(at.calls.liveSpaces.length, 0);
    assert.equal(at.memory.keptCount, 0);
  });

  it('of a region that went goes with what was lent of it, also after the connection', () => {
    const at = new Memory();
    at.set([LOW, HIGH]);
    const { lease } = at.memory;
    lease?.hold();
    at.memory.remove(HIGH);
    at.memory.close();
    assert.equal(at.calls.liveSpaces.length, 1);
    lease?.release();
    assert.equal(at.calls.liveSpaces.length, 0);
    assert.equal(at.memory.keptCount, 0);
  });
});

describe('a lease', () => {
  it('may not be released more often than it is held', () => {
    const lease = new Lease(new FakeCalls().createSpace() as FakeSpace);
    assert.throws(() => lease.release(), /zerotx bug/);
  });
});
