/** The talks of a front-end with a back-end that offers anything, without a socket between them. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { refusal, usable } from '../../src/vhost/features.ts';
import { FRONTEND_FEATURES, FRONTEND_PROTOCOL_FEATURES } from '../../src/vhost/frontend-features.ts';
import type { Request, Talk } from '../../src/vhost/frontend-line.ts';
import {
  type Agreement,
  announce,
  bringUp,
  enableRings,
  leave,
  negotiate,
  type RingPlan,
  type Wishes,
} from '../../src/vhost/frontend-protocol.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import {
  and,
  bitsOf,
  type Features,
  features,
  has,
  isEmpty,
  or,
  VIRTIO_NET_F_MQ,
  VIRTIO_NET_F_MTU,
  without,
} from '../../src/wire/virtio.ts';
import { ALL_PROTOCOL } from '../support/vhost-backend.ts';

const SEED = process.env.FC_SEED === undefined ? {} : { seed: Number(process.env.FC_SEED) };
const ZERO = vhost.encodeU64({ lo: 0, hi: 0 });

interface Back {
  readonly features: Features;
  readonly protocol: Features;
  readonly pairs: number;
  readonly slots: number;
  readonly config: Uint8Array;
  /** Request that is refused, if acknowledged. */
  readonly refuses?: number;
  /** FEATURES_OK does not stay. */
  readonly dropsFeaturesOk?: boolean;
}

const FULL: Back = {
  features: or(FRONTEND_FEATURES, features(30, 32, 35)),
  protocol: ALL_PROTOCOL,
  pairs: 4,
  slots: 8,
  config: new Uint8Array(0),
};

const WISHES: Wishes = {
  features: FRONTEND_FEATURES,
  protocolFeatures: FRONTEND_PROTOCOL_FEATURES,
  queuePairs: 1,
  bufferBytes: 2048,
  mtu: null,
  again: null,
};

/** Runs a talk to its end; what was asked, and what came of it. */
function converse<T>(talk: Talk<T>, back: Back): { requests: Request[]; value: T } {
  const requests: Request[] = [];
  let status = 0;
  let step = talk.next(new Uint8Array(0));
  while (step.done !== true) {
    const asked = step.value;
    requests.push(asked);
    if (asked.request === vhost.VHOST_USER_SET_STATUS) {
      status = (vhost.decodeU64(asked.payload) as Features).lo;
      if (back.dropsFeaturesOk === true) status &= ~8;
    }
    const reply = asked.reply === null ? new Uint8Array(0) : answer(asked, back, status);
    step = talk.next(reply);
  }
  return { requests, value: step.value };
}

function answer({ request, payload, reply }: Request, back: Back, status: number): Uint8Array {
  if (reply?.isAck === true) {
    return request === back.refuses ? vhost.encodeU64({ lo: 1, hi: 0 }) : ZERO;
  }
  switch (request) {
    case vhost.VHOST_USER_GET_FEATURES:
      return vhost.encodeU64(back.features);
    case vhost.VHOST_USER_GET_PROTOCOL_FEATURES:
      return vhost.encodeU64(back.protocol);
    case vhost.VHOST_USER_GET_QUEUE_NUM:
      return vhost.encodeU64({ lo: back.pairs, hi: 0 });
    case vhost.VHOST_USER_GET_MAX_MEM_SLOTS:
      return vhost.encodeU64({ lo: back.slots, hi: 0 });
    case vhost.VHOST_USER_GET_STATUS:
      return vhost.encodeU64({ lo: status, hi: 0 });
    case vhost.VHOST_USER_GET_VRING_BASE:
      return vhost.encodeState({ index: vhost.decodeState(payload)?.index ?? 0, num: 77 });
    case vhost.VHOST_USER_GET_CONFIG:
      return back.config.length === 0
        ? back.config
        : vhost.encodeConfig({ offset: 0, bytes: 12, flags: 0, data: back.config });
    default:
      throw new Error(`request ${request} has no reply`);
  }
}

function ring(index: number): RingPlan {
  return { index, size: 256, base: 3, desc: 1n, avail: 2n, used: 3n, kickFd: 10, callFd: 11, errFd: 12 };
}

const MEMORY = {
  regions: [{ guestAddress: 0n, bytes: 4096n, userAddress: 0n, mmapOffset: 0n }],
  fds: [9],
};

const names = (requests: readonly Request[]): number[] => requests.map(({ request }) => request);

const masks = fc.tuple(fc.nat(0xffff_ffff), fc.nat(0xffff_ffff)).map(([lo, hi]) => ({ lo, hi }));

describe('what is accepted', () => {
  it('was offered, is supported, and has what it depends on', () => {
    const property = fc.property(
      masks,
      masks,
      masks,
      fc.integer({ min: 1, max: 4 }),
      fc.nat(5),
      fc.boolean(),
      fc.option(fc.integer({ min: 68, max: 9000 }), { nil: null }),
      (offered, asked, protocol, queuePairs, pairs, big, mtu) => {
        const back: Back = { ...FULL, features: or(offered, features(32)), protocol, pairs };
        const bufferBytes = big ? 70_000 : 2048;
        const wishes = { ...WISHES, features: asked, queuePairs, mtu, bufferBytes };
        const { value } = converse(negotiate(wishes), back);
        assert.equal(refusal(value.features, back.features), null);
        assert.deepEqual(usable(value.features), value.features);
        assert.equal(has(value.features, 34), false, 'packed rings');
        const extra = without(value.features, or(asked, features(30, 32)));
        assert.ok(isEmpty(extra), `not asked for: ${bitsOf(extra)}`);
        const agreed = has(value.features, 30) ? value.protocolFeatures : features();
        assert.ok(isEmpty(without(value.protocolFeatures, and(protocol, FRONTEND_PROTOCOL_FEATURES))));
        assert.ok(value.queuePairs >= 1 && value.queuePairs <= queuePairs);
        assert.ok(value.queuePairs === 1 || (has(value.features, VIRTIO_NET_F_MQ) && has(agreed, 0)));
        assert.ok(value.queuePairs <= Math.max(pairs, 1));
        // Segments come only where they fit.
        const segments = [7, 8, 9, 10, 54, 55].some((bit) => has(value.features, bit));
        assert.ok(!segments || big || has(value.features, 15));
      },
    );
    fc.assert(property, SEED);
  });

  it('is the same again after a reconnection, or nothing', () => {
    const { value: first } = converse(negotiate(WISHES), FULL);
    const again = { ...WISHES, again: first };
    assert.deepEqual(converse(negotiate(again), FULL).value.features, first.features);
    const poorer = { ...FULL, features: without(FULL.features, features(15)) };
    assert.throws(() => converse(negotiate(again), poorer), { code: 'ZTX_FEATURES' });
    const richer = { ...FULL, features: or(FULL.features, features(56, 10)) };
    assert.deepEqual(converse(negotiate(again), richer).value.features, first.features);
  });
});

describe('the greeting', () => {
  it('needs VERSION_1', () => {
    const back = { ...FULL, features: without(FULL.features, features(32)) };
    assert.throws(() => converse(negotiate(WISHES), back), { code: 'ZTX_FEATURES' });
  });

  it('does without protocol features', () => {
    const back = { ...FULL, features: features(32) };
    const { requests, value } = converse(negotiate(WISHES), back);
    assert.deepEqual(names(requests), [3, 1, 2]);
    assert.deepEqual(value, {
      features: features(32),
      protocolFeatures: features(),
      queuePairs: 1,
      mac: null,
      mtu: null,
    });
    const up = converse(bringUp(value, MEMORY, [ring(0), ring(1)]), back).requests;
    // The last one is the barrier.
    assert.deepEqual(names(up), [5, 8, 10, 9, 13, 14, 12, 8, 10, 9, 13, 14, 12, 1]);
    assert.ok(up.slice(0, -1).every(({ reply }) => reply === null));
    assert.deepEqual(names(converse(leave(value, [0, 1]), back).requests), [11, 11]);
    assert.equal(converse(announce(value, new Uint8Array(6)), back).value, false);
  });

  it('asks for what each protocol feature has', () => {
    const config = Uint8Array.of(2, 0, 0, 0, 0, 9, 1, 0, 4, 0, 0xdc, 5);
    const { requests, value } = converse(negotiate({ ...WISHES, queuePairs: 2 }), { ...FULL, config });
    assert.deepEqual(names(requests), [3, 1, 15, 16, 17, 24, 2, 39, 40]);
    assert.deepEqual(value.mac, Uint8Array.of(2, 0, 0, 0, 0, 9));
    assert.equal(value.mtu, 1500);
    assert.equal(value.queuePairs, 2);
    const up = converse(bringUp(value, MEMORY, [ring(0), ring(1)]), FULL).requests;
    const rings = [8, 10, 9, 13, 14, 12, 8, 10, 9, 13, 14, 12];
    assert.deepEqual(names(up), [36, 37, ...rings, 18, 18, 20, 39]);
    assert.ok(up.every(({ request, reply }) => request === 36 || reply?.isAck === true));
    assert.deepEqual(names(converse(leave(value, [0]), FULL).requests), [11, 39]);
    assert.deepEqual(names(converse(enableRings(value, [0], false), FULL).requests), [18]);
    assert.equal(converse(announce(value, new Uint8Array(6)), FULL).value, true);
  });

  it('uses one pair where the back-end has no more, or says none', () => {
    for (const pairs of [0, 1]) {
      assert.equal(converse(negotiate({ ...WISHES, queuePairs: 4 }), { ...FULL, pairs }).value.queuePairs, 1);
    }
  });

  it('does without a configuration that is not there', () => {
    for (const config of [new Uint8Array(0), new Uint8Array(5)]) {
      const { value } = converse(negotiate(WISHES), { ...FULL, config });
      assert.deepEqual([value.mac, value.mtu], [null, null]);
      assert.equal(has(value.features, VIRTIO_NET_F_MTU), false);
    }
  });

  it('tells the MTU that was asked for', () => {
    const { value } = converse(negotiate({ ...WISHES, mtu: 9000 }), FULL);
    assert.equal(value.mtu, 9000);
    const told = converse(bringUp(value, MEMORY, [ring(0)]), FULL).requests.find(
      ({ request }) => request === 20,
    );
    assert.deepEqual(told?.payload, vhost.encodeU64({ lo: 9000, hi: 0 }));
  });

  it('hears a refusal', () => {
    assert.throws(() => converse(negotiate(WISHES), { ...FULL, refuses: 2 }), { code: 'ZTX_REFUSED' });
    assert.throws(() => converse(negotiate(WISHES), { ...FULL, dropsFeaturesOk: true }), {
      code: 'ZTX_REFUSED',
    });
    const { value } = converse(negotiate(WISHES), FULL);
    for (const refuses of [37, 8, 10, 9, 13, 14, 12, 18, 39]) {
      assert.throws(() => converse(bringUp(value, MEMORY, [ring(0)]), { ...FULL, refuses }), {
        code: 'ZTX_REFUSED',
      });
    }
    assert.throws(() => converse(bringUp(value, MEMORY, [ring(0)]), { ...FULL, slots: 0 }), {
      code: 'ZTX_REFUSED',
    });
  });

  it('says where there is no descriptor', () => {
    const { value } = converse(negotiate(WISHES), FULL);
    const polled = { ...ring(1), kickFd: -1, callFd: -1, errFd: -1 };
    const { requests } = converse(bringUp(value, MEMORY, [polled]), FULL);
    const [call, kick] = [13, 12].map((wanted) => requests.find(({ request }) => request === wanted));
    for (const request of [call, kick]) {
      assert.deepEqual(request?.payload, vhost.encodeU64({ lo: 0x101, hi: 0 }));
      assert.deepEqual(request?.fds, []);
    }
    assert.equal(
      requests.find(({ request }) => request === 14),
      undefined,
    );
  });

  it('uses a barrier where nothing is acknowledged', () => {
    const back = { ...FULL, protocol: features() };
    const agreed: Agreement = converse(negotiate(WISHES), back).value;
    assert.deepEqual(names(converse(enableRings(agreed, [0, 1], false), back).requests), [18, 18, 1]);
  });

  it('finds out a base of another ring', () => {
    const { value } = converse(negotiate(WISHES), FULL);
    const talk = leave(value, [3]);
    talk.next(new Uint8Array(0));
    assert.throws(() => talk.next(vhost.encodeState({ index: 2, num: 0 })), { code: 'EPROTO' });
  });
});
