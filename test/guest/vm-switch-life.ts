/** Guests and switches that end, crash and come again: see vm-switch.guest.test.ts. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { scaled } from '../support/counts.ts';
import { run } from '../support/netns.ts';
import { Vm } from './vm.ts';
import { Cabling, cabled, type Pair, type Side } from './vm-cabling.ts';
import { blast, Host, reaches } from './vm-machines.ts';

const MB = 1_000_000;
const RESETS = scaled(2, 20);

/** What a guest's kernel says when a device does what none should: an entry that was not in the ring, a queue that stands still. */
const COMPLAINTS = 'BUG|WARNING|Call Trace|is not a head|NETDEV WATCHDOG|hw csum failure|bad gso';

async function complaints(guest: Vm): Promise<string> {
  return await guest.run(`dmesg | grep -E '${COMPLAINTS}' || true`);
}

export function lifeTests(pair: Pair, path: (name: string) => string): void {
  const stream = (cabling: Cabling, from: Side, to: Side, bytes: number): Promise<unknown> =>
    blast({ from: pair[from], to: pair[to], at: `${cabling.address(to)}:5000`, bytes, zerocopy: true });

  /** Resolves when so much has come from the port. */
  async function flowing({ lab }: Cabling, port: Side, bytes: number): Promise<void> {
    const before = (await lab.counters())[port]?.rxBytes ?? 0;
    while (((await lab.counters())[port]?.rxBytes ?? 0) < before + bytes);
  }

  describe('a switch that crashes', () => {
    // One QEMU dials again, the other one is dialled again.
    const made = cabled(pair, { name: 'crash', net: 40, path, right: { server: true } });

    for (const [from, to] of Cabling.ways) {
      it(`and comes again, in the middle of a stream from the ${from}`, { timeout: 150_000 }, async () => {
        const { cabling } = made;
        const crash = async (): Promise<void> => {
          await flowing(cabling, from, 20 * MB);
          await cabling.lab.kill();
          for (const side of [from, to])
            await pair[side].run(
              `until [ $(cat /sys/class/net/${cabling.names[side]}/carrier) = 0 ]; do :; done`,
            );
          await cabling.restart();
          await cabling.lab.up('left', 'right');
        };
        await Promise.all([stream(cabling, from, to, 150 * MB), crash()]);
      });
    }
  });

  it('no guest has complained', { timeout: 30_000 }, async () => {
    for (const guest of [pair.left, pair.right]) assert.equal(await complaints(guest), '');
  });

  describe('a guest that is reset', () => {
    const made = cabled(pair, { name: 'reset', net: 41, path });

    it(`${RESETS} times, under traffic`, { timeout: 60_000 + RESETS * 60_000 }, async () => {
      const { cabling } = made;
      const { lab } = cabling;
      await stream(cabling, 'left', 'right', 5 * MB);
      const before = [lab.descriptors(), lab.memory().length];
      for (let i = 0; i < RESETS; i++) {
        const at = `${cabling.address('left')}:5000`;
        await pair.left.start(`tcp-blast receive at=${at} crc=0`, 100).line('listening');
        const sender = pair.right.start(`tcp-blast send to=${at} bytes=${10_000 * MB} crc=0`, 20);
        const outgoing = pair.left.start(`ping -i 0.01 -q ${cabling.address('right')}`, 100);
        await flowing(cabling, 'right', 20 * MB);
        const begun = performance.now();
        await pair.left.reset();
        console.log(`up again after ${Math.round(performance.now() - begun)} ms`);
        await assert.rejects(outgoing.done, /reset/);
        await reaches(pair.right, cabling.address('left'));
        for (const [from, to] of Cabling.ways) await stream(cabling, from, to, 10 * MB);
        // The peer that was there is unknown now.
        await assert.rejects(sender.done);
      }
      assert.deepEqual([lab.descriptors(), lab.memory().length], before);
      const { left } = await lab.counters();
      assert.deepEqual([left?.device?.details.ringsBroken, left?.device?.lentNow], [0, 0]);
    });
  });

  describe('a guest that is killed', () => {
    const made = cabled(pair, { name: 'kill', net: 42, path, ports: { lan: { tap: 'kill0' } } });
    let here: Host;
    before(async () => {
      here = await Host.make();
      run('ip address add 10.42.0.100/24 dev kill0', 'ip link set kill0 up');
    });
    let next: Vm | null = null;
    after(() => next?.stop());

    it('is no loss to others, and another one takes its place', { timeout: 200_000 }, async () => {
      const { cabling } = made;
      const { lab } = cabling;
      const descriptors = lab.descriptors();
      const toHost = (): Promise<unknown> =>
        blast({ from: pair.right, to: here, at: '10.42.0.100:5000', bytes: 50 * MB });
      await pair.right.start('tcp-blast receive at=10.42.0.2:5000 crc=0', 100).line('listening');
      pair.left.start('tcp-blast send to=10.42.0.2:5000 bytes=10000000000 crc=0', 100);
      const kill = async (): Promise<void> => {
        await flowing(cabling, 'left', 20 * MB);
        await pair.left.stop();
        await lab.down('left');
      };
      await Promise.all([toHost(), kill()]);
      await toHost();
      assert.equal(lab.memory().length, 1);
      assert.ok(lab.descriptors() < descriptors);
      next = await Vm.boot({ nics: [cabling.nic('left')] });
      await lab.up('left');
      await reaches(pair.right, cabling.address('left'));
      const again = { left: next, right: pair.right };
      for (const [from, to] of Cabling.ways)
        await blast({ from: again[from], to: again[to], at: `${cabling.address(to)}:5001`, bytes: 20 * MB });
      assert.deepEqual([lab.memory().length, lab.descriptors()], [2, descriptors]);
      assert.equal((await complaints(next)) + (await complaints(pair.right)), '');
    });
  });
}
