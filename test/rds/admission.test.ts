/** Who is let in, in which order that is decided, what is counted; and how many warnings a flood makes. No I/O. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Admission, type Arrival, countRefusal, type Refusal } from '../../src/rds/admission.ts';
import { rdsCounters } from '../../src/rds/counters.ts';
import { allowedBlocks, type NodeKey, tcpKeys } from '../../src/rds/keys.ts';
import { Warnings } from '../../src/rds/warnings.ts';
import { formatCidr, parseCidr } from '../../src/wire/cidr.ts';
import { parseIp } from '../../src/wire/sockaddr.ts';

const welcome: Arrival = {
  ip: parseIp('192.0.2.1'),
  isLocal: false,
  isPeer: false,
  connections: 0,
  hasPlace: () => true,
};

function admission(allow: string[] | null = null, connectionsMax = 8): Admission {
  return new Admission(allow === null ? null : allow.map(parseCidr), connectionsMax, rdsCounters());
}

describe('admission', () => {
  it('is decided in the order that is documented, each with a counter of its own', () => {
    const all: Arrival = {
      ip: parseIp('203.0.113.1'),
      isLocal: true,
      isPeer: false,
      connections: 8,
      hasPlace: () => false,
    };
    // Each row mends what the one before was refused for.
    const rows: [Refusal | null, Arrival, boolean][] = [
      ['closing', all, true],
      ['local', all, false],
      ['not allowed', { ...all, isLocal: false }, false],
      ['connections', { ...all, isLocal: false, ip: welcome.ip }, false],
      ['peers', { ...welcome, hasPlace: () => false }, false],
      [null, welcome, false],
    ];
    for (const [expected, arrival, isClosing] of rows) {
      const counters = rdsCounters();
      const subject = new Admission([parseCidr('192.0.2.0/24')], 8, counters);
      subject.isClosing = isClosing;
      assert.equal(subject.refuse(arrival), expected);
      const refused = Object.entries(counters).filter(
        ([name, count]) => name.startsWith('accept_refused_') && count > 0,
      );
      assert.equal(counters.accept_refused, expected === null ? 0 : 1);
      assert.equal(refused.length, expected === null ? 0 : 1, JSON.stringify(refused));
    }
  });

  it('every reason has a counter', () => {
    const counters = rdsCounters();
    const reasons: Refusal[] = ['closing', 'local', 'not allowed', 'connections', 'peers', 'waiting'];
    for (const reason of reasons) countRefusal(counters, reason);
    const names = Object.keys(counters).filter((name) => name.startsWith('accept_refused_'));
    assert.equal(names.length, reasons.length);
    for (const name of names) assert.equal(counters[name as keyof typeof counters], 1, name);
    assert.equal(counters.accept_refused, reasons.length);
  });

  it('a peer needs no new place, and may come back to a node that is closing', () => {
    const subject = admission();
    assert.equal(subject.refuse({ ...welcome, isPeer: true, hasPlace: () => assert.fail() }), null);
    subject.isClosing = true;
    assert.equal(subject.refuse({ ...welcome, isPeer: true }), null);
    assert.equal(subject.refuse(welcome), 'closing');
  });

  it('is not asked for a place by who is refused anyway: nobody is forgotten for it', () => {
    const hasPlace = (): boolean => assert.fail('asked');
    assert.equal(admission([]).refuse({ ...welcome, hasPlace }), 'not allowed');
    assert.equal(admission(null, 1).refuse({ ...welcome, connections: 1, hasPlace }), 'connections');
    assert.equal(admission().refuse({ ...welcome, isLocal: true, hasPlace }), 'local');
  });

  it('allow: everybody, nobody, one, a block; families do not mix', () => {
    assert.ok(admission().allows(welcome.ip));
    assert.ok(!admission([]).allows(welcome.ip));
    assert.ok(admission(['192.0.2.1']).allows(welcome.ip));
    assert.ok(!admission(['192.0.2.2']).allows(welcome.ip));
    assert.ok(admission(['203.0.113.0/24', '192.0.2.0/24']).allows(welcome.ip));
    assert.ok(!admission(['::/0']).allows(welcome.ip));
  });
});

describe('allow and keys, as programs write them', () => {
  const ipv4 = parseIp('192.0.2.1');
  const ao = { algorithm: 'hmac(sha1)', key: 'secret', sendId: 1, receiveId: 2 };

  it('without allow those are let in whom a key is for', () => {
    const keys = tcpKeys(
      [
        { peer: '192.0.2.0/24', md5: 'secret' },
        { peer: '198.51.100.7', ao },
      ],
      ipv4,
    );
    const texts = (allow?: string[]): string[] | undefined => allowedBlocks(allow, keys)?.map(formatCidr);
    assert.deepEqual(texts(), ['192.0.2.0/24', '198.51.100.7']);
    assert.deepEqual(texts(['192.0.2.0/25']), ['192.0.2.0/25']);
    assert.deepEqual(texts([]), []);
    assert.equal(allowedBlocks(undefined, []), null);
  });

  it('keys are copied', () => {
    const md5 = Uint8Array.of(1, 2, 3);
    const [key] = tcpKeys([{ peer: '192.0.2.0/24', md5 }], ipv4);
    md5.fill(0);
    assert.deepEqual(key!.key, Uint8Array.of(1, 2, 3));
  });

  it('what is wrong is named, and no key is told', () => {
    const wrong: [unknown, RegExp][] = [
      ['secret', /options\.keys" argument must be an array/],
      [['secret'], /options\.keys\[0\]/],
      [[{ peer: '192.0.2.0/24' }], /options\.keys\[0\]\.md5/],
      [[{ peer: '192.0.2.1/24', md5: 'secret' }], /options\.keys\[0\]\.peer: .*192\.0\.2\.0\/24/],
      [[{ peer: 7, md5: 'secret' }], /options\.keys\[0\]\.peer/],
      [[{ peer: '192.0.2.0/24', md5: '' }], /192\.0\.2\.0\/24 has 0 bytes/],
      [[{ peer: '192.0.2.0/24', md5: 'secret'.repeat(20) }], /120 bytes: 1 to 80/],
      [[{ peer: '2001:db8::/32', md5: 'secret' }], /family/],
      [
        [
          { peer: '0.0.0.0/0', md5: 'secret' },
          { peer: '0.0.0.0/0', md5: 'secret2' },
        ],
        /has an md5 key already/,
      ],
      [[{ peer: '192.0.2.7', ao: { ...ao, sendId: 256 } }], /options\.keys\[0\]\.ao\.sendId/],
      [[{ peer: '192.0.2.7', ao: { ...ao, algorithm: '' } }], /algorithm/],
      [[{ peer: '192.0.2.7', ao: null }], /options\.keys\[0\]\.ao/],
    ];
    for (const [keys, expected] of wrong) {
      assert.throws(
        () => tcpKeys(keys as NodeKey[], ipv4),
        (error: Error) => {
          assert.match(error.message, expected);
          if (expected.source !== 'options\\.keys" argument must be an array') {
            assert.ok(typeof keys === 'string' || !error.message.includes('secretsecret'), error.message);
          }
          return true;
        },
      );
    }
    for (const allow of [7, ['10.0.0.1/8'], ['nowhere'], [7]]) {
      assert.throws(() => allowedBlocks(allow as string[], []), /options\.allow/);
    }
  });
});

describe('warnings', () => {
  const warning = (
    n: number,
    event = 'connection refused',
  ): { event: string; address: string; detail: string } => ({
    event,
    address: `10.0.${n >> 8}.${n & 255}`,
    detail: 'no',
  });

  it('of one kind about one peer come at most every ten seconds', () => {
    const warnings = new Warnings();
    assert.ok(warnings.admit(warning(1), 0));
    assert.equal(warnings.admit(warning(1), 9_999), null);
    assert.ok(warnings.admit(warning(1, 'dial failed'), 1));
    assert.ok(warnings.admit(warning(2), 1));
    assert.ok(warnings.admit(warning(1), 10_000));
    assert.equal(warnings.admit(warning(1), 10_001), null);
  });

  it('from 10,000 addresses in a minute are a few hundred, and say how many they stand for', () => {
    const warnings = new Warnings();
    let said = 0;
    let stoodFor = 0;
    for (let n = 0; n < 10_000; n++) {
      const admitted = warnings.admit(warning(n), 6 * n);
      if (admitted === null) continue;
      said += 1;
      stoodFor += Number(/and (\d+) more/.exec(admitted.detail)?.[1] ?? 0);
    }
    assert.ok(said <= 32 * 7, `${said} said`);
    assert.ok(said + stoodFor > 8_000, `${said + stoodFor} of 10,000`);
    // Another kind is not drowned by it.
    assert.ok(warnings.admit(warning(3, 'protocol violation'), 60_000));
  });
});
