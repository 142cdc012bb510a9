/**
 * The front-end with back-ends of others, DPDK's and passt. They are fetched if the machine has none; with
 * ZEROTX_GUEST=required the tests fail where they would be skipped.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, describe, it } from 'node:test';
import { type Dpdk, dpdk } from '../../bench/baselines/dpdk.ts';
import { Testpmd, type TestpmdOptions } from '../../bench/baselines/testpmd.ts';
import { VhostUserFrontend } from '../../src/vhost/frontend.ts';
import { FRONTEND_FEATURES } from '../../src/vhost/frontend-features.ts';
import type { VhostUserFrontendOptions } from '../../src/vhost/frontend-options.ts';
import { features, or } from '../../src/wire/virtio.ts';
import { PASST, Passt, passtPackage } from '../guest/passt.ts';
import type { DebianPackages } from '../support/debian.ts';
import { frameOf } from '../support/frontend-queues.ts';
import { until } from '../support/raw-peer.ts';
import { socketPath } from '../support/vhost-backend.ts';

const TIMEOUT = { timeout: 60_000 };

/** What `get` gives, or why not. */
async function had<T>(get: () => Promise<T>): Promise<{ value: T | null; skip: string | false }> {
  try {
    return { value: await get(), skip: false };
  } catch (error) {
    if (process.env.ZEROTX_GUEST === 'required') throw error;
    return { value: null, skip: (error as Error).message };
  }
}

const { value: testpmdFrom, skip: noDpdk } = await had<Dpdk>(dpdk);
const { value: passtFrom, skip: noPasst } = await had<DebianPackages>(passtPackage);

/** With Ethernet addresses, as io forwarding does not look further. */
function frame(bytes: number, id: number): Buffer {
  const made = frameOf(bytes, id);
  made.set([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
  return made;
}

describe("DPDK's back-end", { skip: noDpdk, ...TIMEOUT }, () => {
  let folder: ReturnType<typeof socketPath>;
  before(() => {
    folder = socketPath();
  });
  after(() => folder.end());

  function start(options: Partial<TestpmdOptions> = {}): Promise<Testpmd> {
    return Testpmd.start(testpmdFrom as Dpdk, {
      role: 'back-end',
      path: folder.path,
      core: 1,
      forward: 'io',
      ...options,
    });
  }

  const rings: [string, Partial<VhostUserFrontendOptions>][] = [
    ['as they come', {}],
    ['in order', { features: or(FRONTEND_FEATURES, features(35)) }],
    ['with nothing', { features: features(), protocolFeatures: features() }],
    ['polled by both', { polled: true, devicePolls: true }],
  ];
  it('returns what it is sent', async () => {
    const testpmd = await start();
    try {
      for (const [what, options] of rings) {
        const nic = await VhostUserFrontend.connect({ path: folder.path, ...options });
        const got: Buffer[] = [];
        nic.on('frame', (one) => got.push(one));
        for (let i = 0; i < 100; i++) {
          const one = frame([60, 257, 1514][i % 3] as number, i);
          assert.equal(nic.send(one), true, what);
          await until('the frame', () => {
            if (options.polled === true) nic.poll();
            return got.length === i + 1;
          });
          assert.deepEqual(got[i], one, what);
        }
        assert.equal(nic.tx.ring.counters.outOfOrder, 0);
        if (options.polled !== true) {
          assert.deepEqual(await nic.stopRings(), [100, 100]);
          await nic.startRings();
          nic.send(frame(99, 7));
          await until('a frame after a stop', () => got.length === 101);
        }
        await nic.close();
      }
    } finally {
      await testpmd.stop();
    }
  });

  it('comes back, and gets what it had not returned', async () => {
    let testpmd = await start({ forward: 'rxonly' });
    const nic = await VhostUserFrontend.connect({ path: folder.path, reconnect: true, retryMinMs: 10 });
    await nic.sendFrame(frame(60, 1));
    const lost = once(nic, 'disconnect');
    await testpmd.kill();
    await lost;
    const found = once(nic, 'connect');
    testpmd = await start({ forward: 'rxonly' });
    await found;
    for (let i = 0; i < 300; i++) await nic.sendFrame(frame(60, i));
    assert.equal(nic.tx.counters.completed, 301);
    await nic.close();
    await testpmd.stop();
  });
});

describe('passt', { skip: noPasst, ...TIMEOUT }, () => {
  it('answers ARP', async () => {
    const folder = socketPath();
    const passt = await Passt.start(passtFrom as DebianPackages, { path: folder.path });
    try {
      const nic = await VhostUserFrontend.connect({ path: folder.path });
      const [mine, theirs] = [PASST.guest, PASST.host].map((text) =>
        text.split(/[./]/).slice(0, 4).map(Number),
      );
      const question = Buffer.alloc(60);
      question.fill(0xff, 0, 6);
      question.set([...nic.mac, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, ...nic.mac, ...(mine as number[])], 6);
      question.set(theirs as number[], 38);
      const came = once(nic, 'frame');
      await nic.sendFrame(question);
      const [answer] = await came;
      assert.deepEqual([answer[20], answer[21]], [0, 2]);
      assert.deepEqual([...answer.subarray(28, 32)], theirs);
      assert.deepEqual(await nic.stopRings(), [1, 1]);
      await nic.close();
    } finally {
      await passt.stop();
      folder.end();
    }
  });
});
