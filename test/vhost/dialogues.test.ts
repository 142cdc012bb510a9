/**
 * What real front-ends say, message by message, as it was seen on their sockets: QEMU 7.2 with and without several queues,
 * DPDK's virtio-user, User-Mode Linux. Each table is played to a session, and what the device was told is compared.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Frontend } from '../../src/vhost/features.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import { Dialogue, MIB, region, ringAddress, state, u64 } from '../support/vhost-session.ts';

/** Request, payload, files that come with it, and what is asked for: `ack`, or the request's own `reply`. */
type Line = readonly [
  request: number,
  payload?: Uint8Array,
  files?: readonly string[],
  wants?: 'ack' | 'reply',
];

const NOTHING = new Uint8Array(0);
const GET_FEATURES: Line = [1, NOTHING, [], 'reply'];
/** VERSION_1, EVENT_IDX, INDIRECT_DESC and the offloads of an ordinary guest, with bit 30. */
const GUEST_FEATURES = 0x1_7000_bb8bn;

/** Plays the lines; returns what the host was told meanwhile. */
async function play(dialogue: Dialogue, lines: readonly Line[]): Promise<string[]> {
  dialogue.host.log.length = 0;
  for (const [i, [request, payload = NOTHING, files = [], wants]] of lines.entries()) {
    const fds = files.map((name) => dialogue.file(name));
    const replies = dialogue.send(request, payload, { fds, ack: wants === 'ack' });
    await dialogue.held;
    assert.equal(replies.length, wants === undefined ? 0 : 1, `line ${i}, request ${request}`);
    if (wants === 'ack') {
      const reply = replies[0] as Uint8Array;
      assert.deepEqual(
        vhost.decodeU64(reply.subarray(12)),
        { lo: 0, hi: 0 },
        `line ${i}, request ${request}`,
      );
    }
  }
  assert.equal(dialogue.session.counters.refused, 0);
  assert.equal(dialogue.session.counters.strayFds, 0);
  return [...dialogue.host.log];
}

function open(frontend: Frontend = 'qemu', pairs = 1): Dialogue {
  return new Dialogue({ frontend, pairs });
}

/** NUM, BASE, ADDR, KICK, CALL of one ring; `log` is filled with an address that nobody asked for. */
function ring(index: number, size = 256, base = 0): Line[] {
  const address = { ...ringAddress(index), log: 0x3c00_0000n };
  return [
    [8, state(index, size)],
    [10, state(index, base)],
    [9, vhost.encodeVringAddress(address)],
    [12, u64(index), ['eventfd']],
    [13, u64(index), ['eventfd']],
  ];
}

describe('QEMU 7.2', () => {
  const connect = (reconnected = false): Line[] => [
    GET_FEATURES,
    [15, NOTHING, [], 'reply'],
    [16, u64(0x1_a03dn)],
    [17, NOTHING, [], 'reply'],
    [36, NOTHING, [], 'reply'],
    [21, NOTHING, ['socket'], 'ack'],
    ...(reconnected ? [] : ([[3]] as Line[])),
    GET_FEATURES,
  ];
  const vrings = (first: number): Line[] => [
    [13, u64(first), ['eventfd']],
    [14, u64(first), ['eventfd']],
    [13, u64(first + 1), ['eventfd']],
    [14, u64(first + 1), ['eventfd']],
  ];
  const enable = (on: number): Line[] => [
    [18, state(0, on)],
    [18, state(1, on)],
  ];
  /** Two regions of one memfd, with a hole between them. */
  const LOW = region(0, 0xa_0000);
  const HIGH = region(0xc_0000, 0x7f4_0000);
  const driverOk = (base: number): Line[] => [
    ...enable(1),
    [2, u64(GUEST_FEATURES)],
    [40, NOTHING, [], 'reply'],
    [39, u64(8)],
    [37, vhost.encodeSingleRegion(LOW), ['memfd'], 'ack'],
    [37, vhost.encodeSingleRegion(HIGH), ['memfd'], 'ack'],
    ...ring(0, 256, base),
    ...ring(1, 256, base),
    [40, NOTHING, [], 'reply'],
    [39, u64(0xf)],
  ];
  const stop: Line[] = [
    [39, u64(0)],
    [11, state(0, 0), [], 'reply'],
    [11, state(1, 0), [], 'reply'],
    ...enable(1),
    [38, vhost.encodeSingleRegion(HIGH)],
    [38, vhost.encodeSingleRegion(LOW)],
  ];

  it('connects, starts a driver, resets it and starts it again', async () => {
    const dialogue = open();
    await play(dialogue, [...connect(), ...vrings(0), ...enable(1), ...enable(1)]);
    const started = await play(dialogue, driverOk(0));
    assert.deepEqual(
      started.filter((line) => line.startsWith('start')),
      ['start 0 size 256 base 0', 'start 1 size 256 base 0'],
    );
    dialogue.host.bases = { 0: 256, 1: 12 };
    const stopped = await play(dialogue, stop);
    assert.deepEqual(stopped, ['stop 0', 'stop 1', 'status 0']);
    assert.equal(dialogue.host.running.size, 0);
    // A machine that boots passes through firmware and several drivers; nothing piles up.
    for (let i = 0; i < 100; i++) {
      await play(dialogue, driverOk(i));
      assert.equal(dialogue.host.running.size, 2);
      await play(dialogue, stop);
    }
    assert.equal(dialogue.host.fdCount, 4);
    assert.equal(dialogue.session.state.memory.regionCount, 0);
    dialogue.end();
  });

  it('without the slots for memory sends tables, again for a device that is plugged in elsewhere', async () => {
    const dialogue = open();
    const table = vhost.encodeMemoryTable([LOW, HIGH]);
    const memory: Line = [5, table, ['memfd', 'memfd'], 'ack'];
    await play(dialogue, [...connect(), ...vrings(0), ...enable(1), [2, u64(GUEST_FEATURES)], memory]);
    await play(dialogue, [...ring(0), ...ring(1)]);
    assert.deepEqual(await play(dialogue, [memory, memory]), []);
    assert.equal(dialogue.host.running.size, 2);
    dialogue.end();
  });

  it('with two queues says hello twice, and starts only what its guest uses', async () => {
    const dialogue = open('qemu', 2);
    await play(dialogue, [...connect(), ...vrings(0), ...connect(true), ...vrings(2)]);
    const started = await play(dialogue, [...driverOk(0), [18, state(2, 0)], [18, state(3, 0)]]);
    assert.equal(dialogue.host.running.size, 2);
    assert.equal(started.filter((line) => line.startsWith('start')).length, 2);
    dialogue.end();
  });

  it('reconnects with the whole handshake, and the index that it read from guest memory', async () => {
    const first = open();
    await play(first, [...connect(), ...vrings(0), ...driverOk(0)]);
    first.end();
    const second = open();
    await play(second, [...connect(), ...vrings(0)]);
    const started = await play(second, driverOk(4321));
    assert.ok(started.includes('start 1 size 256 base 4321'));
    second.end();
  });

  it('migrates: the new back-end announces the guest', async () => {
    const dialogue = open();
    await play(dialogue, [...connect(), ...vrings(0), ...driverOk(0)]);
    assert.deepEqual(await play(dialogue, [[19, u64(0x5634_1200_5452)]]), ['rarp 525400123456']);
    dialogue.end();
  });
});

describe('virtio-user of DPDK', () => {
  /** Guest and user addresses are the same, and no multiple of 2 MiB. */
  const BASE = 0x1_000f_6000n;
  const table = vhost.encodeMemoryTable([
    { guestAddress: BASE, bytes: BigInt(64 * MIB), userAddress: BASE, mmapOffset: 0n },
  ]);
  const vring = (index: number): Line[] => [
    [8, state(index, 256)],
    [10, state(index, 0)],
    [9, vhost.encodeVringAddress(ringAddress(index, BASE))],
    [12, u64(index), ['eventfd']],
  ];

  it('gives call descriptors before everything, no error descriptors, and asks before it closes', async () => {
    const dialogue = open();
    await play(dialogue, [
      [3],
      GET_FEATURES,
      [15, NOTHING, [], 'reply'],
      [16, u64(0x1_0009)],
      [13, u64(0), ['eventfd']],
      [13, u64(1), ['eventfd']],
    ]);
    const started = await play(dialogue, [
      [2, u64(0x1_7000_8000n)],
      [39, u64(0xb), [], 'ack'],
      [40, NOTHING, [], 'reply'],
      [40, NOTHING, [], 'reply'],
      [5, table, ['nohuge'], 'ack'],
      ...vring(0),
      ...vring(1),
      [18, state(0, 1)],
      [18, state(1, 1)],
      [39, u64(0xf), [], 'ack'],
    ]);
    assert.deepEqual(started, [
      'features 15,28,29,32',
      'status 11',
      'kick 0',
      'start 0 size 256 base 0 disabled',
      'kick 1',
      'start 1 size 256 base 0 disabled',
      'enable 0',
      'enable 1',
      'status 15',
    ]);
    dialogue.host.bases = { 0: 512, 1: 77 };
    const stopped = await play(dialogue, [
      [18, state(0, 0)],
      [18, state(1, 0)],
      [11, state(0, 0), [], 'reply'],
    ]);
    assert.deepEqual(stopped, ['disable 0', 'disable 1', 'stop 0']);
    assert.equal(dialogue.base(1), 77);
    dialogue.end();
  });
});

describe('User-Mode Linux', () => {
  const START = 0x60a0_0000n;
  /** Room for two regions, whatever there is. */
  const table = new Uint8Array(72);
  table.set(
    vhost.encodeMemoryTable([
      { guestAddress: START, bytes: BigInt(32 * MIB), userAddress: START, mmapOffset: 0xa0_0000n },
    ]),
  );
  const probe: Line[] = [
    [3],
    GET_FEATURES,
    [15, NOTHING, [], 'reply'],
    [16, u64(0x228), [], 'ack'],
    [21, NOTHING, ['socket'], 'ack'],
  ];
  const vring = (index: number): Line[] => [
    // No eventfd: one end of a pair.
    [13, u64(index), ['socketpair'], 'ack'],
    [8, state(index, 256), [], 'ack'],
    [10, state(index, 0), [], 'ack'],
    [9, vhost.encodeVringAddress({ ...ringAddress(index, START), log: 2n ** 64n - 1n }), [], 'ack'],
  ];
  const kick = (index: number): Line[] => [
    [12, u64(index), ['eventfd'], 'ack'],
    [18, state(index, 1), [], 'ack'],
  ];
  const driver = (features: bigint): Line[] => [
    [24, vhost.encodeConfig({ offset: 0, bytes: 6, flags: 0, data: new Uint8Array(6) }), [], 'reply'],
    [2, u64(features), [], 'ack'],
    [5, table, ['file'], 'ack'],
    ...vring(0),
    ...vring(1),
    ...kick(0),
    ...kick(1),
  ];
  const remove: Line[] = [[18, state(1, 0), [], 'ack'], [18, state(0, 0), [], 'ack'], GET_FEATURES];

  for (const [name, features] of [
    ['with bit 30', 0x1_7001_8020n],
    ['without bit 30', 0x1_3001_8020n],
  ] as const) {
    it(`probes, disables its rings in reverse and probes again, ${name}`, async () => {
      const dialogue = open('uml');
      await play(dialogue, probe);
      for (let i = 0; i < 5; i++) {
        await play(dialogue, driver(features));
        assert.equal(dialogue.host.running.size, 2);
        const removed = await play(dialogue, remove);
        assert.deepEqual(removed, ['stop 1', 'stop 0']);
        assert.equal(dialogue.host.running.size, 0);
      }
      dialogue.end();
    });
  }

  it('is suspended and resumed: rings go on where they were, without a kick', async () => {
    const dialogue = open('uml');
    await play(dialogue, [...probe, ...driver(0x1_7001_8020n)]);
    dialogue.host.bases = { 0: 10, 1: 20 };
    await play(dialogue, remove);
    const resumed = await play(dialogue, [
      [18, state(0, 1), [], 'ack'],
      [18, state(1, 1), [], 'ack'],
    ]);
    assert.deepEqual(resumed, ['start 0 size 256 base 10', 'start 1 size 256 base 20']);
    dialogue.end();
  });

  it('loads another driver, with other features, over rings that it never stopped', async () => {
    const dialogue = open('uml');
    await play(dialogue, [...probe, ...driver(0x1_7001_8020n), ...remove]);
    const again = await play(dialogue, driver(0x1_5001_0020n));
    assert.deepEqual(again.slice(0, 1), ['features 5,16,28,32']);
    assert.equal(dialogue.host.running.size, 2);
    dialogue.end();
  });
});

describe('a front-end without protocol features', () => {
  it('has rings that are enabled by SET_FEATURES, and its GET_FEATURES as a barrier', async () => {
    const dialogue = open();
    const log = await play(dialogue, [
      [3],
      GET_FEATURES,
      [2, u64(0x8000)],
      [5, vhost.encodeMemoryTable([region(0, 16 * MIB)]), ['ram']],
      GET_FEATURES,
      ...ring(0),
      ...ring(1),
      [11, state(0, 0), [], 'reply'],
      [11, state(1, 0), [], 'reply'],
      [4],
      [2, u64(0x8000)],
      ...ring(0, 256, 9),
    ]);
    assert.ok(log.includes('start 1 size 256 base 0'));
    assert.ok(log.includes('start 0 size 256 base 9'));
    dialogue.end();
  });
});
