/**
 * Whatever a front-end sends, in whatever pieces, with whatever descriptors: nothing throws but the end of the connection, each
 * descriptor has one owner or is closed, what we keep is bounded, and the host is never told what it was promised not to be
 * (RecordingHost insists on that).
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { ZerotxError } from '../../src/core/errors.ts';
import { FDS_MAX, type Message } from '../../src/vhost/framing.ts';
import type { MemoryLease } from '../../src/vhost/lease.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import { scaled } from '../support/counts.ts';
import {
  bringUp,
  Dialogue,
  MIB,
  PLAIN_FEATURES,
  region,
  ringAddress,
  state,
  u64,
} from '../support/vhost-session.ts';

const seed = process.env.FC_SEED;
const parameters = { numRuns: scaled(500, 5000), ...(seed === undefined ? {} : { seed: Number(seed) }) };

interface Said {
  readonly request: number;
  readonly flags: number;
  readonly payload: Uint8Array;
  readonly fds: number;
  /** Where the stream is cut while this message is read, and with which piece its descriptors come. */
  readonly cuts: readonly number[];
  readonly late: boolean;
}

type Step =
  | { readonly kind: 'say'; readonly said: Said }
  /** A frame is lent, or one that was lent completes. */
  | { readonly kind: 'lend' }
  | { readonly kind: 'complete'; readonly which: number }
  | { readonly kind: 'hold'; readonly on: boolean }
  | { readonly kind: 'refuse'; readonly what: 'setFeatures' | 'setKick' | 'setMtu' | 'nothing' };

const index = fc.integer({ min: 0, max: 5 });
const regions = fc.array(
  fc
    .tuple(
      fc.integer({ min: 0, max: 3 }),
      fc.constantFrom(0, 4096, MIB, 16 * MIB),
      fc.constantFrom(0n, 0x1000_0000n),
    )
    .map(([slot, bytes, shift]) =>
      region(slot * 16 * MIB, bytes, region(slot * 16 * MIB, 0).userAddress + shift),
    ),
  { maxLength: 4 },
);

/** With the memory of the rings, alone and with more, and without. */
const TABLES = [
  [region(0, 16 * MIB)],
  [region(0, 16 * MIB), region(32 * MIB, MIB)],
  [region(0, 0x2_0000), region(0x2_0000, 0x4_0000)],
  [region(32 * MIB, MIB)],
];

const single = fc
  .oneof(fc.constantFrom(...TABLES), regions)
  .map((some) => vhost.encodeSingleRegion(some.at(-1) ?? region(0, 16 * MIB)));

/** Payloads that are in order, or nearly. */
const plausible: Record<number, fc.Arbitrary<Uint8Array>> = {
  2: fc
    .constantFrom(PLAIN_FEATURES, 0n, 1n << 32n, 1n << 34n, PLAIN_FEATURES & ~(1n << 30n), 1n << 11n)
    .map(u64),
  5: fc.oneof(fc.constantFrom(...TABLES), regions).map(vhost.encodeMemoryTable),
  8: fc.tuple(index, fc.constantFrom(0, 3, 64, 256, 65_536)).map(([i, n]) => state(i, n)),
  9: fc.tuple(index, fc.constantFrom(0n, 16n), fc.boolean()).map(([i, shift, log]) => {
    const { desc, ...rest } = ringAddress(i);
    return vhost.encodeVringAddress({ ...rest, desc: desc + shift, flags: log && shift > 0n ? 1 : 0 });
  }),
  10: fc.tuple(index, fc.constantFrom(0, 7, 65_535, 65_536)).map(([i, n]) => state(i, n)),
  11: index.map((i) => state(i, 0)),
  12: fc.tuple(index, fc.boolean()).map(([i, none]) => u64(none ? i | 0x100 : i)),
  13: fc.tuple(index, fc.boolean()).map(([i, none]) => u64(none ? i | 0x100 : i)),
  14: fc.tuple(index, fc.boolean()).map(([i, none]) => u64(none ? i | 0x100 : i)),
  16: fc.constantFrom(0n, 8n, 1n << 14n).map(u64),
  18: fc.tuple(index, fc.integer({ min: 0, max: 2 })).map(([i, n]) => state(i, n)),
  20: fc.constantFrom(0, 1500).map(u64),
  24: fc
    .tuple(fc.nat(260), fc.nat(260))
    .map(([offset, bytes]) => vhost.encodeConfig({ offset, bytes, flags: 0, data: new Uint8Array(bytes) })),
  37: single,
  38: single,
  39: fc.constantFrom(0, 3, 11, 15, 256).map(u64),
};
const PLAUSIBLE = Object.keys(plausible).map(Number);

const payloadOf = (request: number): fc.Arbitrary<Uint8Array> => {
  const good = plausible[request] ?? fc.constant(new Uint8Array(0));
  return fc.oneof(
    { weight: 12, arbitrary: good },
    { weight: 1, arbitrary: fc.uint8Array({ maxLength: 80 }) },
  );
};

/** As many descriptors as belong there. */
function fdsFor(request: number, payload: Uint8Array): number {
  if (request === 5) return Math.min(payload[0] ?? 0, 8);
  if (request >= 12 && request <= 14) return payload[1] === 0 ? 1 : 0;
  return request === 21 || request === 37 ? 1 : 0;
}

const said: fc.Arbitrary<Said> = fc
  .oneof(
    { weight: 8, arbitrary: fc.constantFrom(...PLAUSIBLE) },
    { weight: 2, arbitrary: fc.integer({ min: 0, max: 45 }) },
  )
  .chain((request) =>
    fc
      .record({
        request: fc.constant(request),
        flags: fc.oneof(
          { weight: 300, arbitrary: fc.constantFrom(1, 9) },
          { weight: 1, arbitrary: fc.nat(15) },
        ),
        payload: payloadOf(request),
        fds: fc.oneof(
          { weight: 100, arbitrary: fc.constant(-1) },
          { weight: 10, arbitrary: fc.constantFrom(0, 1, 2, 4, FDS_MAX) },
          { weight: 1, arbitrary: fc.constant(FDS_MAX + 1) },
        ),
        cuts: fc.array(fc.integer({ min: 1, max: 40 }), { maxLength: 4 }),
        late: fc.boolean(),
      })
      .map((one) => (one.fds < 0 ? { ...one, fds: fdsFor(request, one.payload) } : one)),
  );

const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.oneof(
    { weight: 20, arbitrary: said.map((one): Step => ({ kind: 'say', said: one })) },
    { weight: 2, arbitrary: fc.constant<Step>({ kind: 'lend' }) },
    { weight: 2, arbitrary: fc.nat(50).map((which): Step => ({ kind: 'complete', which })) },
    { weight: 1, arbitrary: fc.boolean().map((on): Step => ({ kind: 'hold', on })) },
    {
      weight: 1,
      arbitrary: fc
        .constantFrom('setFeatures' as const, 'setKick' as const, 'setMtu' as const, 'nothing' as const)
        .map((what): Step => ({ kind: 'refuse', what })),
    },
  ),
  { minLength: 10, maxLength: 120 },
);

const frontend = fc.constantFrom('qemu' as const, 'uml' as const);

/** Feeds one message in pieces. False: the connection is over. */
async function say(dialogue: Dialogue, { request, flags, payload, fds, cuts, late }: Said): Promise<boolean> {
  const bytes = new Uint8Array(12 + payload.length);
  bytes.set(new Uint8Array(Uint32Array.of(request, flags, payload.length).buffer));
  bytes.set(payload, 12);
  const with_ = Array.from({ length: fds }, (_, i) => dialogue.file(i < 3 ? 'ram' : 'unmappable'));
  dialogue.replies = [];
  let message: Message | null = null;
  try {
    let given = false;
    let cut = 0;
    for (let at = 0; at < bytes.length; ) {
      const room = dialogue.framer.wanted();
      const length = Math.min(room.length, bytes.length - at, cuts[cut++] ?? room.length);
      room.set(bytes.subarray(at, at + length));
      at += length;
      const comes: boolean = !given && (!late || at === bytes.length);
      given ||= comes;
      message = dialogue.framer.took(length, comes ? with_ : []);
      assert.equal(message === null, at < bytes.length, 'a message ends with its last byte');
    }
    const held = dialogue.session.handle(message as unknown as Message);
    await settle(dialogue, held);
  } catch (error) {
    if (!(error instanceof ZerotxError)) throw error;
    assert.equal(error.code, 'EPROTO');
    // Those that no read came to give are still the sender's.
    for (const fd of with_)
      if (dialogue.calls.files.nameOf(fd) !== null && message === null) dialogue.calls.close(fd);
    return false;
  }
  if ((flags & vhost.VHOST_USER_NEED_REPLY) !== 0)
    assert.equal(dialogue.replies.length, 1, 'exactly one reply');
  assert.ok(dialogue.replies.length <= 1);
  return true;
}

/** What waits is let go, one after the other, until the message is done. */
async function settle(dialogue: Dialogue, held: Promise<void> | null): Promise<void> {
  if (held === null) return;
  let done = false;
  const watched = held.then(() => {
    done = true;
  });
  for (let i = 0; i < 100 && !done; i++) {
    if (dialogue.host.held.length > 0) dialogue.host.release(i);
    await new Promise(setImmediate);
  }
  assert.ok(done, 'a message that waits is done when what it waits for is');
  await watched;
}

/** From nothing, or from rings that run. */
async function run(dialogue: Dialogue, script: readonly Step[], ready: boolean): Promise<void> {
  const lent: MemoryLease[] = [];
  if (ready) bringUp(dialogue);
  for (const step of script) {
    if (step.kind === 'say' && !(await say(dialogue, step.said))) break;
    if (step.kind === 'lend' && dialogue.host.running.size > 0) {
      const [ring] = dialogue.host.running.values();
      ring?.lease.hold();
      if (ring !== undefined) lent.push(ring.lease);
    }
    if (step.kind === 'complete') lent.splice(step.which % (lent.length || 1), 1)[0]?.release();
    if (step.kind === 'hold') dialogue.host.holdStops = step.on;
    if (step.kind === 'refuse') dialogue.host.refuse = step.what === 'nothing' ? {} : { [step.what]: 22 };
    assert.ok(dialogue.calls.liveSpaces.length <= 6, 'old spaces are bounded');
    // Three of each ring, and the channel.
    assert.ok(dialogue.calls.files.count <= 3 * 4 + 1, 'descriptors are bounded');
  }
  dialogue.framer.end();
  dialogue.session.end(null);
  assert.equal(dialogue.calls.files.count, 0, 'descriptors are closed');
  for (const lease of lent) lease.release();
  assert.equal(dialogue.calls.liveSpaces.length, 0, 'spaces are destroyed');
}

describe('a session', () => {
  it('bears anything that a front-end says', async () => {
    await fc.assert(
      fc.asyncProperty(frontend, steps, fc.boolean(), (kind, script, ready) =>
        run(new Dialogue({ frontend: kind, pairs: 2 }), script, ready),
      ),
      parameters,
    );
  });

  it('may end at any time, also while it waits', async () => {
    await fc.assert(
      fc.asyncProperty(frontend, steps, fc.nat(100), async (kind, script, when) => {
        const dialogue = new Dialogue({ frontend: kind, pairs: 2 });
        bringUp(dialogue);
        dialogue.host.holdStops = true;
        let held: Promise<void> | null = null;
        for (const [i, step] of script.entries()) {
          if (step.kind !== 'say' || held !== null || i > when) continue;
          const { request, payload } = step.said;
          const fds = Array.from({ length: Math.min(step.said.fds, FDS_MAX) }, () => dialogue.file('ram'));
          const message = { request, flags: 1, size: payload.length, payload, fds };
          try {
            held = dialogue.session.handle(message);
          } catch (error) {
            if (!(error instanceof ZerotxError)) throw error;
          }
        }
        dialogue.end();
        // What comes now is for nobody: the host would object to any further call.
        while (dialogue.host.held.length > 0) dialogue.host.release(1);
        await new Promise(setImmediate);
      }),
      parameters,
    );
  });
});
