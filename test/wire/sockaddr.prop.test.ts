import assert from 'node:assert/strict';
import { isIP } from 'node:net';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import {
  compareIp,
  decodeSockaddr,
  encodeSockaddr,
  formatIp,
  isLinkLocal,
  isMapped,
  parseIp,
  SOCKADDR_BYTES,
  splitZone,
} from '../../src/wire/sockaddr.ts';

if (process.env.FC_SEED !== undefined) fc.configureGlobal({ seed: Number(process.env.FC_SEED) });

const AF_INET = 2;
const AF_INET6 = 10;

/** Many zero groups, so that shortening is exercised. */
const sparseBytes = fc
  .array(fc.oneof(fc.constant(0), fc.integer({ min: 0, max: 0xffff })), { minLength: 8, maxLength: 8 })
  .map((groups) => Uint8Array.from(groups.flatMap((group) => [group >> 8, group & 0xff])));
const anyBytes = fc.oneof(fc.uint8Array({ minLength: 16, maxLength: 16 }), sparseBytes);
const port = fc.integer({ min: 0, max: 0xffff });

/** The address as one number, computed another way. */
const asNumber = (bytes: Uint8Array): bigint => BigInt(`0x${Buffer.from(bytes).toString('hex')}`);

describe('IP addresses', () => {
  it('survive text and back', () => {
    fc.assert(
      fc.property(anyBytes, (bytes) => {
        const text = formatIp(bytes);
        assert.equal(isIP(text), isMapped(bytes) ? 4 : 6);
        assert.deepEqual(parseIp(text), bytes);
        assert.equal(formatIp(parseIp(text)), text);
      }),
    );
  });

  it('print as the URL parser prints them', () => {
    fc.assert(
      fc.property(anyBytes, (bytes) => {
        fc.pre(!isMapped(bytes));
        assert.equal(`[${formatIp(bytes)}]`, new URL(`http://[${formatIp(bytes)}]/`).hostname);
      }),
    );
  });

  it('parse in any valid spelling', () => {
    fc.assert(
      fc.property(fc.ipV6(), (text) => {
        const hostname = new URL(`http://[${text}]/`).hostname.slice(1, -1);
        assert.deepEqual(parseIp(text), parseIp(hostname));
      }),
    );
    assert.equal(formatIp(parseIp('::ffff:192.0.2.7')), '192.0.2.7');
    assert.equal(formatIp(parseIp('::FFFF:c000:0207')), '192.0.2.7');
    assert.equal(formatIp(parseIp('64:ff9b::192.0.2.33')), '64:ff9b::c000:221');
    assert.equal(formatIp(parseIp('2001:db8:0:0:1:0:0:1')), '2001:db8::1:0:0:1');
    assert.equal(formatIp(parseIp('2001:db8:0:1:1:1:1:1')), '2001:db8:0:1:1:1:1:1');
    assert.equal(formatIp(parseIp('::')), '::');
    assert.equal(formatIp(parseIp('::1')), '::1');
  });

  it('refuse what is not an address', () => {
    for (const text of [
      '',
      'localhost',
      '1.2.3',
      '1.2.3.4.5',
      '256.1.1.1',
      ':::',
      'fe80::1%eth0',
      ' ::1',
      '1:2:3',
    ]) {
      assert.throws(() => parseIp(text), { code: 'EINVAL' }, text);
    }
    assert.throws(() => formatIp(new Uint8Array(4)), RangeError);
  });

  it('compare as numbers', () => {
    fc.assert(
      fc.property(anyBytes, anyBytes, (a, b) => {
        const expected = asNumber(a) < asNumber(b) ? -1 : asNumber(a) > asNumber(b) ? 1 : 0;
        assert.equal(Math.sign(compareIp(a, b)), expected);
        assert.equal(compareIp(a, a), 0);
      }),
    );
    assert.ok(compareIp(parseIp('10.0.0.9'), parseIp('10.0.0.10')) < 0);
  });
});

describe('socket addresses', () => {
  it('survive encoding and decoding', () => {
    fc.assert(
      fc.property(anyBytes, port, fc.integer({ min: 0, max: 0xffffffff }), (bytes, port, scopeId) => {
        const address = formatIp(bytes);
        const encoded = encodeSockaddr(address, port, scopeId, isMapped(bytes) ? AF_INET6 : undefined);
        assert.equal(encoded.length, SOCKADDR_BYTES);
        const decoded = decodeSockaddr(encoded, encoded.length);
        assert.deepEqual(decoded, { address, port, family: AF_INET6, scopeId });
      }),
    );
    fc.assert(
      fc.property(fc.ipV4(), port, (text, port) => {
        const decoded = decodeSockaddr(encodeSockaddr(text, port), 16);
        assert.deepEqual(decoded, { address: text, port, family: AF_INET, scopeId: 0 });
      }),
    );
  });

  it('have the layout of the kernel', () => {
    const ipv4 = Buffer.from(encodeSockaddr('127.0.0.1', 0x1234));
    assert.equal(ipv4.subarray(2).toString('hex'), '12347f0000010000000000000000');
    assert.equal(new Uint16Array(ipv4.buffer, ipv4.byteOffset, 1)[0], AF_INET);
    const ipv6 = Buffer.from(encodeSockaddr('fe80::2', 0x1234, 5));
    assert.equal(ipv6.subarray(2, 24).toString('hex'), `123400000000fe80${'00'.repeat(13)}02`);
    assert.equal(new Uint32Array(ipv6.buffer, ipv6.byteOffset + 24, 1)[0], 5);
  });

  it('decode within a larger buffer, and only what is there', () => {
    const buffer = new Uint8Array(64);
    buffer.set(encodeSockaddr('192.0.2.1', 99), 3);
    assert.equal(decodeSockaddr(buffer.subarray(3), 28).address, '192.0.2.1');
    assert.throws(() => decodeSockaddr(buffer.subarray(3), 15), { code: 'EINVAL' });
    assert.throws(() => decodeSockaddr(buffer.subarray(3), 0), { code: 'EINVAL' });
    assert.throws(() => decodeSockaddr(Uint8Array.of(1, 1, 0, 0), 4), { code: 'EAFNOSUPPORT' });
  });

  it('refuse bad ports and IPv6 as IPv4', () => {
    for (const bad of [-1, 65536, 1.5, Number.NaN]) {
      assert.throws(() => encodeSockaddr('127.0.0.1', bad), RangeError);
    }
    assert.throws(() => encodeSockaddr('::1', 1, 0, AF_INET), { code: 'EINVAL' });
  });
});

describe('zones', () => {
  it('are what stands behind the first percent sign', () => {
    assert.deepEqual(splitZone('fe80::1%eth0'), { host: 'fe80::1', zone: 'eth0' });
    assert.deepEqual(splitZone('fe80::1'), { host: 'fe80::1', zone: undefined });
    assert.deepEqual(splitZone('fe80::1%'), { host: 'fe80::1', zone: '' });
    assert.deepEqual(splitZone('fe80::1%a%b'), { host: 'fe80::1', zone: 'a%b' });
    assert.throws(() => parseIp('fe80::1%eth0'), { code: 'EINVAL' });
  });

  it('are needed by fe80::/10 alone', () => {
    for (const text of ['fe80::', 'fe80::1', 'febf:ffff::1']) assert.ok(isLinkLocal(parseIp(text)), text);
    for (const text of ['fe7f::1', 'fec0::1', 'ff02::1', '::1', '169.254.0.1']) {
      assert.ok(!isLinkLocal(parseIp(text)), text);
    }
  });

  it('travel with the address in sockaddr_in6', () => {
    fc.assert(
      fc.property(fc.nat(0x7fffffff), port, (scopeId, number) => {
        const bytes = encodeSockaddr('fe80::1', number, scopeId);
        const expected = { address: 'fe80::1', port: number, family: AF_INET6, scopeId };
        assert.deepEqual(decodeSockaddr(bytes, bytes.length), expected);
      }),
    );
  });
});
