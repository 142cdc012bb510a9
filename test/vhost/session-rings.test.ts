/** Rings as messages set them up, start, switch and stop them; numbers of cases are those of the inputs that broke other back-ends. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { REGIONS_MAX } from '../../src/vhost/memory.ts';
import { RING_SIZE_MAX } from '../../src/vhost/rings.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import {
  bringUp,
  Dialogue,
  MIB,
  PLAIN_FEATURES,
  region,
  ringAddress,
  setUpRing,
  state,
  u64,
} from '../support/vhost-session.ts';

const [EFAULT, EINVAL, EPERM] = [14, 22, 1] as const;

describe('case 27: ring sizes', () => {
  for (const [size, errno] of [
    [0, EINVAL],
    [3, EINVAL],
    [96, EINVAL],
    [65_536, EINVAL],
    [2 ** 31, EINVAL],
    [RING_SIZE_MAX, 0],
    [2 * RING_SIZE_MAX, EINVAL],
    [1, 0],
    [1024, 0],
  ] as const) {
    it(`${size}: ${errno === 0 ? 'taken' : 'refused'}`, () => {
      const dialogue = new Dialogue();
      assert.equal(dialogue.ack(8, state(0, size)), errno);
      dialogue.end();
    });
  }

  it('100,000 times', () => {
    const dialogue = new Dialogue();
    for (let i = 0; i < 100_000; i++) dialogue.send(8, state(i & 1, 1 << (i % 13)));
    assert.equal(dialogue.session.counters.refused, 0);
    dialogue.end();
  });
});

describe('ring indexes beyond the queues', () => {
  for (const index of [2, 3, 255, 0xffff, 0x1_0000, 0xffff_ffff]) {
    it(`${index} is refused wherever it comes`, () => {
      const dialogue = new Dialogue();
      for (const request of [8, 10, 18]) assert.equal(dialogue.ack(request, state(index, 1)), EINVAL);
      assert.equal(dialogue.ack(9, vhost.encodeVringAddress({ ...ringAddress(0), index })), EINVAL);
      if (index < 256) {
        for (const request of [12, 13, 14]) {
          assert.equal(dialogue.ack(request, u64(index), [dialogue.file()]), EINVAL);
          assert.equal(dialogue.ack(request, u64(0x100 | index)), EINVAL);
        }
      }
      assert.equal(dialogue.base(index), 0);
      assert.deepEqual(dialogue.host.log, []);
      assert.equal(dialogue.calls.files.count, 0);
      dialogue.end();
    });
  }
});

describe('ring addresses', () => {
  for (const [part, step] of [
    ['desc', 8n],
    ['desc', 1n],
    ['avail', 1n],
    ['used', 2n],
    ['used', 1n],
  ] as const) {
    it(`case 75: ${part} ${step} beyond its alignment is refused`, () => {
      const dialogue = new Dialogue();
      const address = ringAddress(0);
      assert.equal(
        dialogue.ack(9, vhost.encodeVringAddress({ ...address, [part]: address[part] + step })),
        EINVAL,
      );
    });
  }

  it('log is not looked at, but refused if it is meant', () => {
    const dialogue = new Dialogue();
    const address = { ...ringAddress(0), log: 2n ** 64n - 1n };
    assert.equal(dialogue.ack(9, vhost.encodeVringAddress(address)), 0);
    assert.equal(dialogue.ack(9, vhost.encodeVringAddress({ ...address, flags: 1 })), EINVAL);
  });

  it('outside of the memory are told at the kick, and wait for memory that has them', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue, []);
    dialogue.ack(8, state(0, 256));
    dialogue.ack(9, vhost.encodeVringAddress(ringAddress(0, 0x1234_0000n)));
    assert.equal(dialogue.ack(12, u64(0), [dialogue.file()]), EFAULT);
    assert.equal(dialogue.host.running.size, 0);
    assert.equal(
      dialogue.ack(5, vhost.encodeMemoryTable([region(0, 16 * MIB, 0x1234_0000n)]), [dialogue.file('ram')]),
      0,
    );
    assert.equal(dialogue.host.running.size, 1);
    dialogue.end();
  });

  it('of a ring that ends beyond its region are not there', () => {
    const dialogue = new Dialogue();
    dialogue.ack(2, u64(PLAIN_FEATURES));
    // The used ring of 256 entries has 2054 bytes with its event index.
    const used = ringAddress(0).used - ringAddress(0, 0n).used;
    const end = 0x1_0000 + 0x8000;
    for (const [bytes, running] of [
      [end + 2052, 0],
      [end + 2054, 1],
    ] as const) {
      dialogue.ack(5, vhost.encodeMemoryTable([region(0, bytes, used)]), [dialogue.file('ram')]);
      if (running === 0) setUpRing0(dialogue);
      assert.equal(dialogue.host.running.size, running);
    }
    dialogue.end();
  });

  function setUpRing0(dialogue: Dialogue): void {
    dialogue.send(8, state(0, 256));
    dialogue.send(9, vhost.encodeVringAddress(ringAddress(0)));
    dialogue.send(12, u64(0x100));
  }
});

describe('descriptors of rings', () => {
  it('case 29: none is legal with the bit that says so, and another may come later', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue, []);
    for (const [request, name] of [
      [13, 'call'],
      [14, 'err'],
    ] as const) {
      assert.equal(dialogue.ack(request, u64(0x100)), 0);
      assert.equal(dialogue.ack(request, u64(0), [dialogue.file()]), 0);
      assert.deepEqual(dialogue.host.log.slice(-2), [`${name} 0 none`, `${name} 0`]);
    }
    assert.equal(dialogue.host.fdCount, 2);
    dialogue.end();
  });

  it('case 29: a ring starts without a call descriptor, and polled without a kick', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue, []);
    dialogue.ack(8, state(0, 256));
    dialogue.ack(9, vhost.encodeVringAddress(ringAddress(0)));
    assert.equal(dialogue.ack(12, u64(0x100)), 0);
    assert.equal(dialogue.host.running.size, 1);
    dialogue.end();
  });

  for (const request of [12, 13, 14]) {
    it(`request ${request} without the descriptor it promises, or with one it denies, is refused`, () => {
      const dialogue = new Dialogue();
      assert.equal(dialogue.ack(request, u64(0)), EINVAL);
      assert.equal(dialogue.ack(request, u64(0x100), [dialogue.file()]), EINVAL);
      assert.equal(dialogue.calls.files.count, 0);
    });
  }

  it('a kick that cannot be watched is refused, and does not start the ring', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue, []);
    dialogue.host.refuse = { setKick: EPERM };
    dialogue.ack(8, state(0, 256));
    dialogue.ack(9, vhost.encodeVringAddress(ringAddress(0)));
    assert.equal(dialogue.ack(12, u64(0), [dialogue.file()]), EPERM);
    assert.equal(dialogue.host.running.size, 0);
    dialogue.end();
  });

  it('a fresh one replaces the old', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue);
    for (let i = 0; i < 10; i++) {
      for (const request of [12, 13, 14]) dialogue.ack(request, u64(1), [dialogue.file()]);
    }
    assert.equal(dialogue.host.fdCount, 5);
    assert.equal(dialogue.host.log.filter((line) => line.startsWith('start')).length, 2);
    dialogue.end();
  });

  it('of the channel to the front-end is kept, one at a time', () => {
    const dialogue = new Dialogue({ frontend: 'uml' });
    assert.equal(dialogue.ack(21), EINVAL);
    assert.equal(dialogue.ack(21, new Uint8Array(0), [dialogue.file()]), 0);
    assert.equal(dialogue.ack(21, new Uint8Array(0), [dialogue.file()]), 0);
    assert.equal(dialogue.calls.files.count, 1);
    assert.equal(dialogue.session.configChanged(), false);
    dialogue.ack(16, u64(1 << 9));
    assert.equal(dialogue.session.configChanged(), true);
    assert.deepEqual(
      dialogue.calls.notified.map(([, bytes]) => Buffer.from(bytes).toString('hex')),
      ['020000000100000000000000'],
    );
    dialogue.end();
    assert.equal(dialogue.session.configChanged(), false);
  });
});

describe('the base of a ring', () => {
  it('case 37: of a ring that was never configured is 0, twice and a thousand times', () => {
    const dialogue = new Dialogue();
    for (let i = 0; i < 1000; i++) assert.equal(dialogue.base(1), 0);
    dialogue.end();
  });

  it('case 37: is what was set while it does not run, and where it stopped afterwards', () => {
    const dialogue = new Dialogue();
    assert.equal(dialogue.ack(10, state(1, 0xfffe)), 0);
    assert.equal(dialogue.base(1), 0xfffe);
    bringUp(dialogue);
    dialogue.host.bases = { 0: 17, 1: 0x1_0003 };
    assert.equal(dialogue.base(0), 17);
    assert.equal(dialogue.base(1), 3);
    assert.equal(dialogue.base(0), 17);
    assert.equal(dialogue.host.running.size, 0);
    // The kick descriptors are gone, the others stay.
    assert.equal(dialogue.host.fdCount, 2);
    dialogue.end();
  });

  it('beyond 16 bits is refused', () => {
    assert.equal(new Dialogue().ack(10, state(0, 0x1_0000)), EINVAL);
  });

  it('case 37: waits for what is lent, and everything after it waits too', async () => {
    const dialogue = new Dialogue();
    bringUp(dialogue);
    dialogue.host.holdStops = true;
    assert.deepEqual(dialogue.send(11, state(1, 0)), []);
    const { held } = dialogue;
    assert.ok(held);
    dialogue.host.release(99);
    await held;
    assert.equal(dialogue.replies.length, 1);
    assert.deepEqual(vhost.decodeState((dialogue.replies[0] as Uint8Array).subarray(12)), {
      index: 1,
      num: 99,
    });
    assert.equal(dialogue.get(36), REGIONS_MAX);
    dialogue.end();
  });

  it('is for nobody when the connection ends meanwhile', async () => {
    const dialogue = new Dialogue();
    bringUp(dialogue);
    dialogue.host.holdStops = true;
    dialogue.send(11, state(1, 0));
    dialogue.end();
    dialogue.host.release(99);
    await new Promise(setImmediate);
    assert.deepEqual(dialogue.replies, []);
  });

  it('case 43: is still right after SET_STATUS 0, and ENABLE 1 does not start the ring again', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue);
    dialogue.host.bases = { 0: 256, 1: 41 };
    assert.equal(dialogue.ack(39, u64(0)), 0);
    assert.equal(dialogue.base(0), 256);
    assert.equal(dialogue.base(1), 41);
    for (const index of [0, 1]) assert.equal(dialogue.ack(18, state(index, 1)), 0);
    assert.equal(dialogue.host.running.size, 0);
    setUpRing(dialogue, 1, 41);
    assert.ok(dialogue.host.log.includes('start 1 size 256 base 41'));
    dialogue.end();
  });
});

describe('rings that run', () => {
  it('start when the last of all that they need has come, whatever it is', () => {
    type Step = (dialogue: Dialogue) => void;
    const steps: Record<string, Step> = {
      features: (d) => d.send(2, u64(PLAIN_FEATURES)),
      memory: (d) => d.send(5, vhost.encodeMemoryTable([region(0, 16 * MIB)]), { fds: [d.file('ram')] }),
      size: (d) => d.send(8, state(0, 256)),
      addresses: (d) => d.send(9, vhost.encodeVringAddress(ringAddress(0))),
      kick: (d) => d.send(12, u64(0), { fds: [d.file('kick')] }),
      enable: (d) => d.send(18, state(0, 1)),
    };
    for (const last of Object.keys(steps)) {
      const dialogue = new Dialogue();
      for (const [name, step] of Object.entries(steps)) if (name !== last) step(dialogue);
      assert.equal(dialogue.host.running.size, last === 'enable' ? 1 : 0, last);
      (steps[last] as Step)(dialogue);
      assert.equal(dialogue.host.running.size, 1, last);
      dialogue.end();
    }
  });

  it('are switched on and off, once each', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue);
    dialogue.host.log.length = 0;
    for (const on of [1, 0, 0, 1]) assert.equal(dialogue.ack(18, state(1, on)), 0);
    assert.equal(dialogue.ack(18, state(1, 2)), EINVAL);
    assert.deepEqual(dialogue.host.log, ['disable 1', 'enable 1']);
    dialogue.end();
  });

  it('are quiet when a disable is acknowledged', async () => {
    const dialogue = new Dialogue();
    bringUp(dialogue);
    dialogue.host.holdStops = true;
    assert.deepEqual(dialogue.send(18, state(1, 0), { ack: true }), []);
    dialogue.host.release();
    await dialogue.held;
    assert.equal(dialogue.replies.length, 1);
    dialogue.end();
  });

  for (const [name, request, payload] of [
    ['size', 8, state(0, 512)],
    ['addresses', 9, vhost.encodeVringAddress({ ...ringAddress(0), used: ringAddress(1).used + 0x1_0000n })],
    ['base', 10, state(0, 5)],
  ] as const) {
    it(`stop for a new ${name}, and start again with the next kick only`, () => {
      const dialogue = new Dialogue();
      bringUp(dialogue);
      dialogue.host.log.length = 0;
      assert.equal(dialogue.ack(request, payload), 0);
      assert.deepEqual(dialogue.host.log, ['stop 0']);
      dialogue.ack(18, state(0, 1));
      assert.equal(dialogue.host.running.size, 1);
      assert.equal(dialogue.ack(12, u64(0), [dialogue.file()]), 0);
      assert.equal(dialogue.host.running.size, 2);
      dialogue.end();
    });
  }

  it('run on when the same size and addresses come again', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue);
    dialogue.host.log.length = 0;
    assert.equal(dialogue.ack(8, state(0, 256)), 0);
    assert.equal(dialogue.ack(9, vhost.encodeVringAddress(ringAddress(0))), 0);
    assert.deepEqual(dialogue.host.log, []);
    dialogue.end();
  });

  it('case 45: do not notice RESET_OWNER, nor do features and memory', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue);
    dialogue.host.log.length = 0;
    assert.equal(dialogue.ack(4), 0);
    assert.equal(dialogue.ack(2, u64(PLAIN_FEATURES)), 0);
    assert.deepEqual(dialogue.host.log, []);
    assert.equal(dialogue.host.running.size, 2);
    dialogue.end();
  });

  it('stop and are disabled by RESET_DEVICE, which wants features anew and keeps memory', () => {
    const dialogue = new Dialogue();
    bringUp(dialogue);
    dialogue.host.bases = { 1: 8 };
    dialogue.host.log.length = 0;
    assert.equal(dialogue.ack(34), 0);
    assert.deepEqual(dialogue.host.log, ['stop 0', 'stop 1', 'reset']);
    assert.equal(dialogue.get(40), 0);
    assert.equal(dialogue.base(1), 8);
    setUpRing(dialogue, 1);
    assert.equal(dialogue.host.running.size, 0);
    assert.equal(dialogue.ack(2, u64(PLAIN_FEATURES)), 0);
    assert.ok(dialogue.host.log.includes('start 1 size 256 base 0 disabled'));
    dialogue.end();
  });
});
