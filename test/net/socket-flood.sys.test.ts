/** A hundred thousand lent writes of a few bytes: each is released, and the event loop turns all the while. */
import assert from 'node:assert/strict';
import { afterEach, it } from 'node:test';
import { closeDoor, FORCE, numbers, rawPair, turn } from '../support/door.ts';

const COUNT = 100_000;
const BYTES = 16;
/** What the send buffer holds is the bound: 4 MiB (tcp_wmem), with a page for each lent piece. */
const PER_TURN_MAX = 8192;

afterEach(closeDoor);

it('a flood of completions leaves room for timers, and is worked off in bounded turns', {
  timeout: 120_000,
}, async (t) => {
  const { client, peer } = await rawPair({ zerocopy: FORCE });
  const reading = peer.read(COUNT * BYTES);
  const all = numbers(COUNT * BYTES);
  let released = 0;
  let timers = 0;
  const timer = setInterval(() => timers++, 1);
  for (let i = 0; i < COUNT; i++) {
    client.write(all.subarray(i * BYTES, (i + 1) * BYTES), (error) => {
      assert.ok(!error);
      released += 1;
    });
  }
  const completed = (): number => client.stats().zerocopy.latency.count;
  let before = 0;
  let most = 0;
  while (released < COUNT) {
    await turn();
    const now = completed();
    most = Math.max(most, now - before);
    before = now;
  }
  clearInterval(timer);
  await reading;
  const { lentCalls, lentBytes, fallbackBytes, pinnedBytes, unexpectedCompletions } = client.stats().zerocopy;
  assert.ok(most <= PER_TURN_MAX, `${most} completions in one turn`);
  // Where little memory may be pinned, most of it is copied, and that is over in a few turns.
  if (lentCalls > COUNT / 2) assert.ok(timers > 10, `${timers} timers`);
  else t.diagnostic(`only ${lentCalls} writes were lent`);
  assert.equal(lentBytes + fallbackBytes, COUNT * BYTES);
  assert.deepEqual([pinnedBytes, unexpectedCompletions], [0, 0]);
});
