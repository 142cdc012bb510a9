/** Messages of the protocol, one by one and rule by rule; numbers of cases are those of the inputs that broke other back-ends. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { REGIONS_MAX } from '../../src/vhost/memory.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import {
  bringUp,
  Dialogue,
  MIB,
  PLAIN_FEATURES,
  readReply,
  region,
  ringAddress,
  setUpRing,
  state,
  u64,
} from '../support/vhost-session.ts';

const [ENOENT, EBUSY, EINVAL, EROFS, ENOSYS] = [2, 16, 22, 30, 38] as const;
const BIT30 = 0x4000_0000n;

/** Requests whose own reply is all that the front-end gets. */
const REPLIED: readonly number[] = [1, 11, 15, 17, 36, 40];
/** Requests with an acknowledgement, and a payload that is in order. */
const ACKED: readonly (readonly [number, string, Uint8Array])[] = [
  [2, 'SET_FEATURES', u64(PLAIN_FEATURES)],
  [3, 'SET_OWNER', new Uint8Array(0)],
  [4, 'RESET_OWNER', new Uint8Array(0)],
  [8, 'SET_VRING_NUM', state(1, 256)],
  [9, 'SET_VRING_ADDR', vhost.encodeVringAddress(ringAddress(1))],
  [10, 'SET_VRING_BASE', state(1, 7)],
  [12, 'SET_VRING_KICK', u64(0x101)],
  [13, 'SET_VRING_CALL', u64(0x101)],
  [14, 'SET_VRING_ERR', u64(0x101)],
  [16, 'SET_PROTOCOL_FEATURES', u64(8)],
  [18, 'SET_VRING_ENABLE', state(1, 1)],
  [19, 'SEND_RARP', u64(0x5634_1200_5452)],
  [20, 'NET_SET_MTU', u64(1500)],
  [34, 'RESET_DEVICE', new Uint8Array(0)],
  [39, 'SET_STATUS', u64(3)],
];

describe('replies', () => {
  for (const [request, name, payload] of ACKED) {
    it(`${name}: one if asked for, none if not`, () => {
      const dialogue = new Dialogue();
      assert.deepEqual(dialogue.send(request, payload), []);
      assert.equal(dialogue.ack(request, payload), 0);
      dialogue.end();
    });

    it(`${name}: a descriptor that does not belong there is closed, and the message refused`, () => {
      const dialogue = new Dialogue();
      const two = [dialogue.file(), dialogue.file()];
      assert.equal(dialogue.ack(request, payload, two), EINVAL);
      assert.equal(dialogue.calls.files.count, 0);
      assert.equal(dialogue.session.counters.strayFds, 2);
      assert.deepEqual(dialogue.host.log, []);
      dialogue.end();
    });

    if (payload.length === 0) continue;
    it(`${name}: refused when it is too short`, () => {
      const dialogue = new Dialogue();
      for (let bytes = 0; bytes < payload.length; bytes++) {
        assert.equal(dialogue.ack(request, payload.subarray(0, bytes)), EINVAL);
      }
      assert.deepEqual(dialogue.host.log, []);
      dialogue.end();
    });
  }

  for (const request of REPLIED) {
    it(`request ${request}: its own, whether an acknowledgement is asked for or not, and with stray descriptors too`, () => {
      const dialogue = new Dialogue();
      for (const ack of [false, true]) {
        const replies = dialogue.send(request, state(0, 0), { ack, fds: [dialogue.file()] });
        assert.equal(replies.length, 1);
        readReply(replies[0] as Uint8Array, request);
      }
      assert.equal(dialogue.calls.files.count, 0);
      dialogue.end();
    });
  }

  it('are given to whoever asks, whatever was negotiated', () => {
    assert.equal(new Dialogue().ack(vhost.VHOST_USER_SET_OWNER), 0);
  });

  it('a GET_VRING_BASE that cannot be read ends the connection', () => {
    assert.throws(() => new Dialogue().send(vhost.VHOST_USER_GET_VRING_BASE, new Uint8Array(7)), {
      code: 'EPROTO',
    });
  });

  for (const request of [
    0, 6, 7, 22, 23, 24, 25, 26, 28, 31, 32, 33, 35, 41, 42, 43, 44, 1000, 0xffff_ffff,
  ]) {
    it(`case 35: request ${request} is unknown: refused, its descriptors closed, the connection kept`, () => {
      const dialogue = new Dialogue();
      assert.deepEqual(dialogue.send(request, new Uint8Array(40), { fds: [dialogue.file()] }), []);
      assert.equal(dialogue.ack(request, new Uint8Array(40), [dialogue.file(), dialogue.file()]), ENOSYS);
      assert.equal(dialogue.calls.files.count, 0);
      assert.equal(dialogue.session.counters.unknown, 2);
      assert.equal(dialogue.get(vhost.VHOST_USER_GET_MAX_MEM_SLOTS), REGIONS_MAX);
      dialogue.end();
    });
  }

  it('case 33: GET_INFLIGHT_FD, again and again, leaves nothing behind', () => {
    const dialogue = new Dialogue();
    for (let i = 0; i < 1000; i++) assert.equal(dialogue.ack(31, new Uint8Array(20)), ENOSYS);
    assert.equal(dialogue.ack(32, new Uint8Array(20), [dialogue.file()]), ENOSYS);
    dialogue.end();
  });

  it('tell of each message', () => {
    const dialogue = new Dialogue();
    const seen: number[][] = [];
    dialogue.session.onMessage = (request, errno) => seen.push([request, errno]);
    dialogue.get(1);
    dialogue.send(8, state(0, 3));
    assert.deepEqual(seen, [
      [1, 0],
      [8, EINVAL],
    ]);
    assert.deepEqual({ ...dialogue.session.counters }, { messages: 2, refused: 1, unknown: 0, strayFds: 0 });
  });
});

describe('features', () => {
  it('are set without bit 30, and once', () => {
    const dialogue = new Dialogue();
    assert.equal(dialogue.ack(2, u64(PLAIN_FEATURES)), 0);
    assert.equal(dialogue.ack(2, u64(PLAIN_FEATURES)), 0);
    assert.deepEqual(dialogue.host.log, ['features 28,29,32,35']);
  });

  it('case 39: bits that were not offered are refused; no ring starts until better ones come', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue, []);
    assert.equal(dialogue.ack(2, u64(PLAIN_FEATURES | (1n << 34n))), EINVAL);
    setUpRing(dialogue, 0);
    assert.equal(dialogue.host.running.size, 0);
    dialogue.send(39, u64(0xb));
    assert.equal(dialogue.get(40), 3);
    assert.equal(dialogue.ack(2, u64(PLAIN_FEATURES)), 0);
    assert.deepEqual([...dialogue.host.running.keys()], [0]);
    dialogue.send(39, u64(0xb));
    assert.equal(dialogue.get(40), 0xb);
    dialogue.end();
  });

  it('case 39: without bit 30 all rings are enabled', () => {
    const dialogue = new Dialogue();
    assert.equal(dialogue.ack(2, u64(PLAIN_FEATURES & ~BIT30)), 0);
    dialogue.ack(5, vhost.encodeMemoryTable([region(0, 16 * MIB)]), [dialogue.file('ram')]);
    setUpRing(dialogue, 0);
    setUpRing(dialogue, 1);
    assert.ok(dialogue.host.log.includes('start 0 size 256 base 0'));
    assert.ok(dialogue.host.log.includes('start 1 size 256 base 0'));
    dialogue.end();
  });

  it('case 39: the same again while rings run disturbs nothing, and does not disable them', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue);
    dialogue.host.log.length = 0;
    assert.equal(dialogue.ack(2, u64(PLAIN_FEATURES)), 0);
    assert.equal(dialogue.ack(2, u64(PLAIN_FEATURES & ~BIT30)), 0);
    assert.deepEqual(dialogue.host.log, []);
    dialogue.end();
  });

  it('case 39: others while rings run are refused, and the rings run on', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue);
    assert.equal(dialogue.ack(2, u64(PLAIN_FEATURES & ~(1n << 29n))), EBUSY);
    assert.equal(dialogue.host.running.size, 2);
    // They have event indexes, refused or not, also in another memory.
    const used = dialogue.host.running.get(1)?.memory.used.byteLength;
    const more = [region(0, 16 * MIB), region(32 * MIB, MIB)];
    dialogue.ack(5, vhost.encodeMemoryTable(more), [dialogue.file('ram'), dialogue.file('more')]);
    assert.equal(dialogue.host.running.get(1)?.memory.used.byteLength, used);
    dialogue.end();
  });

  it('others while all rings are disabled stop these first', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue);
    for (const index of [1, 0]) assert.equal(dialogue.ack(18, state(index, 0)), 0);
    dialogue.host.log.length = 0;
    assert.equal(dialogue.ack(2, u64(1n << 32n)), 0);
    assert.deepEqual(dialogue.host.log, ['stop 0', 'stop 1', 'features 32']);
    dialogue.end();
  });

  it('come late, after the rings, which start then', () => {
    const dialogue = new Dialogue();
    dialogue.ack(5, vhost.encodeMemoryTable([region(0, 16 * MIB)]), [dialogue.file('ram')]);
    setUpRing(dialogue, 0);
    assert.equal(dialogue.host.running.size, 0);
    assert.equal(dialogue.ack(2, u64(PLAIN_FEATURES)), 0);
    assert.ok(dialogue.host.log.includes('start 0 size 256 base 0 disabled'));
    dialogue.end();
  });

  it('may be refused by the device', () => {
    const dialogue = new Dialogue();
    dialogue.host.refuse = { setFeatures: EINVAL };
    assert.equal(dialogue.ack(2, u64(PLAIN_FEATURES)), EINVAL);
    dialogue.send(39, u64(8));
    assert.equal(dialogue.get(40), 0);
  });

  it('of the protocol are refused when they were not offered', () => {
    const dialogue = new Dialogue();
    assert.equal(dialogue.ack(16, u64(1n << 14n)), EINVAL);
    assert.equal(dialogue.ack(16, u64(1n << 9n)), EINVAL);
    assert.equal(dialogue.ack(16, u64(dialogue.get(15))), 0);
  });
});

describe('memory', () => {
  const TABLE = vhost.encodeMemoryTable([region(0, 16 * MIB)]);

  it('case 51: a table that came before, for a device that was plugged in elsewhere, disturbs nothing', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue);
    dialogue.host.log.length = 0;
    for (let i = 0; i < 10; i++) assert.equal(dialogue.ack(5, TABLE, [dialogue.file('ram')]), 0);
    assert.deepEqual(dialogue.host.log, []);
    assert.equal(dialogue.calls.spaces.length, 1);
    dialogue.end();
  });

  it('a new table under running rings moves them, without new addresses', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue);
    dialogue.host.log.length = 0;
    const more = vhost.encodeMemoryTable([region(0, 16 * MIB), region(32 * MIB, MIB)]);
    assert.equal(dialogue.ack(5, more, [dialogue.file('ram'), dialogue.file('more')]), 0);
    assert.deepEqual(dialogue.host.log, ['moved 0', 'moved 1']);
    assert.equal(dialogue.calls.liveSpaces.length, 1);
    dialogue.end();
  });

  it('a new table without the memory of a ring stops it; it starts again where it was when its memory is back', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue);
    dialogue.host.bases = { 0: 5, 1: 6 };
    dialogue.host.log.length = 0;
    assert.equal(
      dialogue.ack(5, vhost.encodeMemoryTable([region(32 * MIB, MIB)]), [dialogue.file('ram')]),
      0,
    );
    assert.deepEqual(dialogue.host.log, ['stop 0', 'stop 1']);
    assert.equal(dialogue.ack(5, TABLE, [dialogue.file('ram')]), 0);
    assert.deepEqual(dialogue.host.log.slice(2), ['start 0 size 256 base 5', 'start 1 size 256 base 6']);
    dialogue.end();
  });

  it('a new table while a ring drains: the old memory stays for it', async () => {
    const dialogue = new Dialogue();
    bringUp(dialogue);
    dialogue.host.holdStops = true;
    dialogue.send(5, vhost.encodeMemoryTable([region(32 * MIB, MIB)]), {
      fds: [dialogue.file('ram')],
      ack: true,
    });
    assert.equal(dialogue.calls.liveSpaces.length, 2);
    for (let i = 0; i < 2; i++) {
      dialogue.host.release();
      await new Promise(setImmediate);
    }
    await dialogue.held;
    assert.equal(dialogue.calls.liveSpaces.length, 1);
    assert.equal(dialogue.replies.length, 1);
    dialogue.end();
  });

  it('case 31: a table that is refused leaves rings running', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue);
    dialogue.host.log.length = 0;
    assert.equal(dialogue.ack(5, vhost.encodeMemoryTable([region(0, 0)]), [dialogue.file('ram')]), EINVAL);
    assert.equal(dialogue.ack(5, TABLE), EINVAL);
    assert.equal(dialogue.ack(5, new Uint8Array(9), [dialogue.file('ram')]), EINVAL);
    assert.deepEqual(dialogue.host.log, []);
    assert.equal(dialogue.host.running.size, 2);
    dialogue.end();
  });

  it('single regions come with one descriptor and go with none, or one', () => {
    const dialogue = new Dialogue();
    const one = vhost.encodeSingleRegion(region(0, 16 * MIB));
    assert.equal(dialogue.get(36), REGIONS_MAX);
    assert.equal(dialogue.ack(37, one), EINVAL);
    assert.equal(dialogue.ack(37, one, [dialogue.file('ram')]), 0);
    assert.equal(dialogue.ack(38, one), 0);
    assert.equal(dialogue.ack(38, one), ENOENT);
    assert.equal(dialogue.ack(37, one, [dialogue.file('ram')]), 0);
    assert.equal(dialogue.ack(38, one, [dialogue.file('ram')]), 0);
    assert.equal(dialogue.ack(38, one.subarray(0, 39)), EINVAL);
    assert.equal(dialogue.calls.files.count, 0);
    dialogue.end();
  });

  it('a region that goes stops the rings in it and leaves the others, which are told of the lease', () => {
    const dialogue = new Dialogue();
    dialogue.ack(2, u64(PLAIN_FEATURES));
    // Ring 0 in the first region, ring 1 in the second.
    const parts = [region(0, 0x2_0000), region(0x2_0000, 0x2_0000)];
    for (const part of parts) dialogue.ack(37, vhost.encodeSingleRegion(part), [dialogue.file('ram')]);
    for (const index of [0, 1]) setUpRing(dialogue, index);
    assert.equal(dialogue.host.running.size, 2);
    dialogue.host.log.length = 0;
    assert.equal(dialogue.ack(38, vhost.encodeSingleRegion(parts[1] as vhost.MemoryRegion)), 0);
    // Its region is mapped for as long as anything of it is held; afterwards there is nothing to find.
    assert.equal(dialogue.calls.liveSpaces[0]?.regions.length, 1);
    assert.deepEqual(dialogue.host.log, ['moved 0', 'stop 1']);
    dialogue.end();
  });

  it('is no more than the front-end may have mapped', () => {
    const dialogue = new Dialogue({ regionBytesMax: 8 * MIB });
    assert.equal(dialogue.ack(5, TABLE, [dialogue.file('ram')]), 12);
    assert.equal(new Dialogue().ack(5, TABLE), EINVAL);
    const wide = new Dialogue();
    const two = [region(0, 64 * 2 ** 30), region(128 * 2 ** 30, 4096)];
    assert.equal(wide.ack(5, vhost.encodeMemoryTable(two), [wide.file(), wide.file()]), 12);
    assert.equal(wide.ack(5, vhost.encodeMemoryTable(two.slice(0, 1)), [wide.file()]), 0);
    wide.end();
  });
});

describe('small things', () => {
  it('GET_QUEUE_NUM is right for pairs and for rings', () => {
    assert.equal(new Dialogue().get(17), 2);
    assert.equal(new Dialogue({ pairs: 4 }).get(17), 4);
    assert.equal(new Dialogue({ pairs: 4, frontend: 'uml' }).get(17), 8);
  });

  it('status reads back as it was set, and is one byte', () => {
    const dialogue = new Dialogue();
    dialogue.ack(2, u64(PLAIN_FEATURES));
    for (const value of [1, 3, 0xb, 0xf]) {
      assert.equal(dialogue.ack(39, u64(value)), 0);
      assert.equal(dialogue.get(40), value);
    }
    assert.equal(dialogue.ack(39, u64(0x100)), EINVAL);
    assert.equal(dialogue.ack(39, u64(2n ** 32n)), EINVAL);
    assert.equal(dialogue.get(40), 0xf);
  });

  it('FEATURES_OK does not stay before features are accepted', () => {
    const dialogue = new Dialogue();
    dialogue.ack(39, u64(0xb));
    assert.equal(dialogue.get(40), 3);
  });

  it('SEND_RARP has the address in its first six bytes', () => {
    const dialogue = new Dialogue();
    assert.equal(dialogue.ack(19, Uint8Array.of(0x52, 0x54, 0, 0x12, 0x34, 0x56, 0, 0)), 0);
    assert.deepEqual(dialogue.host.log, ['rarp 525400123456']);
  });

  it('NET_SET_MTU is from 68 to 65,535, and may be refused by the device', () => {
    const dialogue = new Dialogue();
    for (const [mtu, errno] of [
      [67, EINVAL],
      [68, 0],
      [65_535, 0],
      [65_536, EINVAL],
      [2 ** 32 + 1500, EINVAL],
    ] as const) {
      assert.equal(dialogue.ack(20, u64(mtu)), errno);
    }
    dialogue.host.refuse = { setMtu: EINVAL };
    assert.equal(dialogue.ack(20, u64(9000)), EINVAL);
  });

  it('the configuration is for User-Mode Linux: any part of 256 bytes, zeros behind our fields', () => {
    const dialogue = new Dialogue({ frontend: 'uml' });
    const ask = (offset: number, bytes: number): Uint8Array => {
      const payload = vhost.encodeConfig({
        offset,
        bytes,
        flags: 0,
        data: new Uint8Array(Math.min(bytes, 256)),
      });
      return readReply(dialogue.send(24, payload)[0] as Uint8Array, 24).payload;
    };
    const mac = vhost.decodeConfig(ask(0, 6));
    assert.equal(Buffer.from(mac?.data ?? []).toString('hex'), '525400123456');
    const mtu = vhost.decodeConfig(ask(10, 4));
    assert.equal(Buffer.from(mtu?.data ?? []).toString('hex'), 'dc050000');
    assert.equal(vhost.decodeConfig(ask(0, 256))?.data.length, 256);
    assert.equal(vhost.decodeConfig(ask(255, 1))?.data[0], 0);
    for (const [offset, bytes] of [
      [0, 0],
      [0, 257],
      [1, 256],
      [0xffff_ffff, 1],
      [0, 0xffff_ffff],
    ] as const) {
      assert.equal(ask(offset, bytes).length, 0);
    }
    assert.equal(readReply(dialogue.send(24, new Uint8Array(3))[0] as Uint8Array, 24).payload.length, 0);
    assert.equal(dialogue.ack(25, new Uint8Array(18)), EROFS);
  });
});
