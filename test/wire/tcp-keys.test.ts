import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseCidr } from '../../src/wire/cidr.ts';
import { encodeAoKey, encodeMd5Key, TCP_KEY_BYTES_MAX } from '../../src/wire/tcp-keys.ts';

const key = Uint8Array.of(0xde, 0xad, 0xbe, 0xef);
const u16 = (bytes: Uint8Array, at: number): number =>
  new Uint16Array(bytes.slice(at, at + 2).buffer)[0] as number;

test('struct tcp_md5sig', () => {
  const four = encodeMd5Key({ kind: 'md5', peer: parseCidr('192.0.2.0/24'), key });
  assert.equal(four.length, 216);
  assert.equal(u16(four, 0), 2);
  assert.deepEqual([...four.subarray(2, 8)], [0, 0, 192, 0, 2, 0]);
  assert.deepEqual([four[128], four[129], u16(four, 130)], [1, 24, 4]);
  assert.deepEqual([...four.subarray(132, 141)], [0, 0, 0, 0, 0xde, 0xad, 0xbe, 0xef, 0]);
  const six = encodeMd5Key({ kind: 'md5', peer: parseCidr('2001:db8::/32'), key });
  assert.equal(u16(six, 0), 10);
  assert.deepEqual([...six.subarray(8, 13)], [0x20, 0x01, 0x0d, 0xb8, 0]);
  assert.equal(six[129], 32);
  assert.equal(encodeMd5Key({ kind: 'md5', peer: parseCidr('192.0.2.1'), key })[129], 32);
  // Not the mapped form: the block has no IPv4 address in it.
  assert.equal(u16(encodeMd5Key({ kind: 'md5', peer: parseCidr('::/0'), key }), 0), 10);
});

test('struct tcp_ao_add', () => {
  const bytes = encodeAoKey({
    kind: 'ao',
    peer: parseCidr('192.0.2.0/24'),
    algorithm: 'hmac(sha1)',
    key,
    sendId: 7,
    receiveId: 9,
  });
  assert.equal(bytes.length, 288);
  assert.equal(Buffer.from(bytes.subarray(128, 139)).toString(), 'hmac(sha1)\0');
  assert.deepEqual([...bytes.subarray(192, 202)], Array(10).fill(0));
  assert.deepEqual([...bytes.subarray(202, 208)], [24, 7, 9, 0, 0, 4]);
  assert.deepEqual([...bytes.subarray(208, 213)], [0xde, 0xad, 0xbe, 0xef, 0]);
});

test('keys and names that do not fit are refused', () => {
  const peer = parseCidr('192.0.2.1');
  for (const length of [0, TCP_KEY_BYTES_MAX + 1]) {
    assert.throws(() => encodeMd5Key({ kind: 'md5', peer, key: new Uint8Array(length) }), { code: 'EINVAL' });
  }
  for (const algorithm of ['', 'x'.repeat(64), 'hmac(sha1)\0']) {
    assert.throws(() => encodeAoKey({ kind: 'ao', peer, algorithm, key, sendId: 1, receiveId: 1 }), {
      code: 'EINVAL',
    });
  }
  encodeMd5Key({ kind: 'md5', peer, key: new Uint8Array(TCP_KEY_BYTES_MAX) });
});
