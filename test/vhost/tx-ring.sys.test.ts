/** A transmit ring that is disabled while frames of it are lent, with a guest's memory and a ring of the test's own. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { type FrameReceiver, portCounters } from '../../src/core/port.ts';
import type { Ubuf } from '../../src/core/ubuf.ts';
import { native } from '../../src/sys/binding.ts';
import { chainCounters } from '../../src/vhost/chain.ts';
import { ledgerCounters } from '../../src/vhost/ledger-counters.ts';
import { Poller } from '../../src/vhost/poller.ts';
import { Borrowers } from '../../src/vhost/selector.ts';
import { TxRing, type TxRingOptions } from '../../src/vhost/tx-ring.ts';
import { type GuestMemory, guestMemory } from '../support/guest-memory.ts';
import { MockDriver, PLAIN } from '../support/vring.ts';

const SIZE = 64;
const FRAME_BYTES = 9000;

/** What the code under test looks at of a port, of descriptors, and of a space. */
class Scene {
  readonly memory: GuestMemory = guestMemory(1 << 16);
  readonly driver = new MockDriver(SIZE);
  readonly lent: Ubuf[] = [];
  readonly ring: TxRing;
  readonly broken: string[] = [];
  #round: () => void = () => {};

  constructor(other?: FrameReceiver) {
    const receiver: FrameReceiver = (table, from) => {
      if (other !== undefined) return other(table, from);
      for (let frame = 0; frame < table.count; frame++) {
        const ubuf = table.owner.lend(frame, this);
        if (ubuf !== null) this.lent.push(ubuf);
      }
      return table.count;
    };
    const options = {
      sys: native(),
      poller: new Poller((round) => {
        this.#round = round;
      }),
      fds: { isPolled: false, call: () => {} },
      port: { receiver },
      drainMs: 10_000,
      hasLink: () => true,
      features: PLAIN,
      headerBytes: 12,
      borrowers: new Borrowers(),
      lends: true,
      now: () => 0,
      counters: portCounters(),
      chainCounters: chainCounters(),
      ledgerCounters: ledgerCounters(),
      onBroken: (reason: string) => this.broken.push(reason),
      onPoisoned: () => this.broken.push('poisoned'),
    } as unknown as TxRingOptions;
    const { space } = this.memory;
    const lease = { space, hold: () => {}, release: () => {} };
    const { memory } = this.driver;
    this.ring = new TxRing({ index: 1, size: SIZE, base: 0, enabled: true, memory, lease }, options);
  }

  /** The guest sends a frame, and the ring has its turn. */
  send(): void {
    this.driver.chain([{ address: 0n, length: 12 + FRAME_BYTES }]);
    this.driver.show();
    this.ring.wake();
    this.turn();
  }

  turn(): void {
    this.#round();
  }

  end(): void {
    this.ring.abandon();
    this.memory.end();
  }
}

/** Releases, and what they lead to. */
async function settled(): Promise<void> {
  for (let i = 0; i < 10; i++) await Promise.resolve();
}

describe('a ring that is disabled while a frame is lent', () => {
  it('is quiet when the frame is back', async () => {
    const scene = new Scene();
    scene.send();
    const [ubuf] = scene.lent as [Ubuf];
    const off = scene.ring.enable(false);
    assert.ok(off instanceof Promise);
    ubuf.unref();
    assert.equal(await off, 0);
    assert.equal(scene.driver.reap().length, 1);
    assert.equal(scene.ring.queue.queue.broken, null);
    scene.end();
  });

  for (const when of ['before', 'meanwhile']) {
    it(`is quiet though the frame is in quarantine (${when}): what comes back late is not reported`, async () => {
      const scene = new Scene();
      scene.send();
      const [ubuf] = scene.lent as [Ubuf];
      if (when === 'before') ubuf.quarantine();
      const off = scene.ring.enable(false);
      if (when === 'meanwhile') ubuf.quarantine();
      assert.equal(await off, 0);
      assert.notEqual(scene.ring.queue.queue.broken, null, 'a chain of it is lost');
      ubuf.unref();
      await settled();
      assert.equal(scene.driver.reap().length, 0);
      await scene.ring.enable(true);
      scene.turn();
      assert.equal(scene.driver.reap().length, 0);
      assert.equal(scene.broken.length, 1);
      scene.end();
    });
  }
});

it('gives chains back whose receiver threw, and the error is uncaught', async () => {
  let calls = 0;
  const scene = new Scene((table) => {
    calls += 1;
    if (calls === 1) throw new RangeError('of the program');
    return table.count;
  });
  const uncaught = new Promise<Error>((resolve) => {
    process.setUncaughtExceptionCaptureCallback(resolve);
  });
  scene.send();
  assert.equal((await uncaught).message, 'of the program');
  process.setUncaughtExceptionCaptureCallback(null);
  scene.send();
  assert.equal(scene.driver.reap().length, 2);
  scene.end();
});
