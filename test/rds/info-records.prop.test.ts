/** Records of a node on their way to rds-info: they come out as they went in, and a stranger's are refused. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import type { ConnectionInfo, MessageInfo } from '../../src/rds/info.ts';
import { countersFromJson, fromJson, INFO_LISTS, LISTED_MAX, toJson } from '../../src/rds/info-records.ts';

const u64 = fc.bigInt(0n, 2n ** 64n - 1n);
const port = fc.integer({ min: 0, max: 65535 });

const messages: fc.Arbitrary<MessageInfo> = fc.record({
  sequence: u64,
  bytes: fc.nat(1 << 20),
  localAddress: fc.string(),
  localPort: port,
  remoteAddress: fc.string(),
  remotePort: port,
});

const connections: fc.Arbitrary<ConnectionInfo> = fc.record({
  localAddress: fc.string(),
  remoteAddress: fc.string(),
  lane: fc.nat(7),
  transport: fc.constantFrom('tcp', 'loopback'),
  nextTx: u64,
  nextRx: u64,
  sending: fc.boolean(),
  connecting: fc.boolean(),
  connected: fc.boolean(),
  npaths: fc.option(fc.nat(8)),
  peerGeneration: fc.option(fc.nat(2 ** 31 - 1)),
});

function plain(values: readonly object[]): object[] {
  return values.map((value) => ({ ...value }));
}

describe('records of a node', () => {
  it('survive the way through JSON', () => {
    fc.assert(
      fc.property(fc.array(messages), fc.array(connections), (some, others) => {
        const wire = JSON.parse(JSON.stringify([toJson(some), toJson(others)])) as unknown[];
        assert.deepEqual(plain(fromJson('sendQueue', wire[0])), plain(some));
        assert.deepEqual(plain(fromJson('connections', wire[1])), plain(others));
      }),
    );
  });

  it('of a stranger give records of the right kinds, or EPROTO', () => {
    fc.assert(
      fc.property(fc.constantFrom(...INFO_LISTS), fc.jsonValue(), (list, value) => {
        try {
          for (const record of fromJson(list, value)) assert.equal(typeof record, 'object');
        } catch (error) {
          assert.equal((error as { code?: string }).code, 'EPROTO');
        }
      }),
    );
  });

  const [message] = fc.sample(messages, 1);
  const wrong: [why: string, change: object][] = [
    ['a sequence number that is none', { sequence: '12a' }],
    ['a sequence number beyond 64 bits', { sequence: '18446744073709551616' }],
    ['a sequence number as a number', { sequence: 5 }],
    ['an address that is no text', { localAddress: 7 }],
    ['a port that is missing', { localPort: undefined }],
  ];
  for (const [why, change] of wrong) {
    it(`are refused for ${why}`, () => {
      const [json] = toJson([message as object]);
      assert.throws(() => fromJson('sendQueue', [{ ...json, ...change }]), { code: 'EPROTO' });
    });
  }

  it('have texts of bounded length', () => {
    const [json] = toJson([{ ...(message as object), localAddress: 'x'.repeat(1e6) }]);
    assert.equal(fromJson('sendQueue', [json])[0]?.localAddress.length, 256);
    assert.deepEqual(Object.keys(countersFromJson({ ['y'.repeat(1e6)]: 1 }))[0]?.length, 256);
    assert.throws(() => countersFromJson({ conn_reset: '1' }), { code: 'EPROTO' });
  });

  it('are not more than an answer may have', () => {
    const [json] = toJson([message as object]);
    assert.equal(fromJson('sendQueue', new Array(LISTED_MAX).fill(json)).length, LISTED_MAX);
    assert.throws(() => fromJson('sendQueue', new Array(LISTED_MAX + 1).fill(json)), { code: 'EPROTO' });
    const counters = Object.fromEntries(Array.from({ length: 1025 }, (_, i) => [`c${i}`, i]));
    assert.throws(() => countersFromJson(counters), { code: 'EPROTO' });
  });
});
