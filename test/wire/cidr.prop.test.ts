import assert from 'node:assert/strict';
import { BlockList } from 'node:net';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { cidrHas, formatCidr, isIpv4Block, parseCidr, prefixLength } from '../../src/wire/cidr.ts';
import { formatIp, isMapped, parseIp } from '../../src/wire/sockaddr.ts';

if (process.env.FC_SEED !== undefined) fc.configureGlobal({ seed: Number(process.env.FC_SEED) });

const ipv4 = fc.uint8Array({ minLength: 4, maxLength: 4 }).map((bytes) => bytes.join('.'));
const ipv6 = fc
  .uint8Array({ minLength: 16, maxLength: 16 })
  .filter((bytes) => !isMapped(bytes))
  .map(formatIp);
const anyIp = fc.oneof(ipv4, ipv6);

/** An address with all bits behind the prefix cleared, by arithmetic on one number. */
function networkOf(address: string, length: number): string {
  const ip = parseIp(address);
  const hostBits = BigInt((isMapped(ip) ? 32 : 128) - length);
  const number = (BigInt(`0x${Buffer.from(ip).toString('hex')}`) >> hostBits) << hostBits;
  return formatIp(Uint8Array.from(Buffer.from(number.toString(16).padStart(32, '0'), 'hex')));
}

const blocks = fc
  .oneof(fc.tuple(ipv4, fc.integer({ min: 0, max: 32 })), fc.tuple(ipv6, fc.integer({ min: 0, max: 128 })))
  .map(([address, length]) => ({ network: networkOf(address, length), length }))
  // ::ffff:0:0/96 and longer is IPv4, however it is written.
  .filter(({ network, length }) => network.includes('.') === length <= 32 || !network.includes('.'));

describe('blocks of addresses', () => {
  it('have what node:net says they have', () => {
    fc.assert(
      fc.property(blocks, anyIp, fc.nat(), ({ network, length }, other, seed) => {
        const cidr = parseCidr(`${network}/${length}`);
        const family = network.includes(':') ? 'ipv6' : 'ipv4';
        const list = new BlockList();
        list.addSubnet(network, length, family);
        // Near the block as well as anywhere: its network with one bit changed.
        const near = parseIp(network);
        const bit = (isMapped(near) ? 96 : 0) + (seed % (isMapped(near) ? 32 : 128));
        near[bit >> 3] = (near[bit >> 3] as number) ^ (0x80 >> (bit & 7));
        for (const address of [network, other, formatIp(near)]) {
          const theirs = address.includes(':') ? 'ipv6' : 'ipv4';
          const expected = theirs === family && list.check(address, theirs);
          assert.equal(cidrHas(cidr, parseIp(address)), expected, `${network}/${length} ${address}`);
        }
      }),
    );
  });

  it('survive text and back, with the length as their family counts it', () => {
    fc.assert(
      fc.property(blocks, ({ network, length }) => {
        const cidr = parseCidr(`${network}/${length}`);
        assert.deepEqual(parseCidr(formatCidr(cidr)), cidr);
        assert.equal(prefixLength(cidr), length);
        assert.equal(isIpv4Block(cidr), network.includes('.'));
      }),
    );
  });

  it('with one address are that address', () => {
    for (const text of ['192.0.2.7', '2001:db8::7', '::1']) {
      assert.equal(formatCidr(parseCidr(text)), text);
      assert.ok(cidrHas(parseCidr(text), parseIp(text)));
    }
    assert.equal(formatCidr(parseCidr('192.0.2.7/32')), '192.0.2.7');
    assert.equal(formatCidr(parseCidr('::ffff:10.0.0.0/104')), '10.0.0.0/8');
    assert.equal(formatCidr(parseCidr('fe80::/10')), 'fe80::/10');
    assert.equal(formatCidr(parseCidr('0.0.0.0/0')), '0.0.0.0/0');
  });

  it('of everything have one family', () => {
    assert.ok(cidrHas(parseCidr('0.0.0.0/0'), parseIp('203.0.113.1')));
    assert.ok(!cidrHas(parseCidr('0.0.0.0/0'), parseIp('2001:db8::1')));
    assert.ok(cidrHas(parseCidr('::/0'), parseIp('2001:db8::1')));
    assert.ok(!cidrHas(parseCidr('::/0'), parseIp('203.0.113.1')));
    assert.ok(!cidrHas(parseCidr('::/64'), parseIp('203.0.113.1')));
  });

  it('are refused with the reason', () => {
    const wrong = {
      '': 'not an IP address',
      eth0: 'not an IP address',
      '10.0.0.0/': 'from 0 to 32',
      '10.0.0.0/33': 'from 0 to 32',
      '10.0.0.0/-1': 'from 0 to 32',
      '10.0.0.0/8/8': 'from 0 to 32',
      '10.0.0.0/ 8': 'from 0 to 32',
      '10.0.0.0/0x8': 'from 0 to 32',
      '2001:db8::/129': 'from 0 to 128',
      '10.0.0.1/8': 'write 10.0.0.0/8 for the block, 10.0.0.1 for the one',
      '2001:db8::1/64': 'write 2001:db8::/64 for the block',
      '::ffff:10.0.0.0/90': 'behind its prefix',
      'fe80::1%eth0': 'zone',
      '10.0.0.256/24': 'not an IP address',
    };
    for (const [text, why] of Object.entries(wrong)) {
      assert.throws(
        () => parseCidr(text),
        (error: Error & { code: string }) => error.code === 'EINVAL' && error.message.includes(why),
        `${text}: ${why}`,
      );
    }
  });
});
