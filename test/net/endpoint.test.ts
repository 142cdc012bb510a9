/** Addresses in the form of node:net. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import { addressInfo, endpointText } from '../../src/net/endpoint.ts';
import { AF_INET, AF_INET6 } from '../../src/sys/constants.ts';

const NO_INTERFACE = 0x7fff_fff0;

it('endpoints are spelled as Node does: mapped, and with their zone', () => {
  const cases = [
    [{ address: '192.0.2.1', port: 5, family: AF_INET }, 'IPv4', '192.0.2.1', '192.0.2.1:5'],
    [{ address: '192.0.2.1', port: 5, family: AF_INET6 }, 'IPv6', '::ffff:192.0.2.1', '[::ffff:192.0.2.1]:5'],
    [
      { address: '2001:db8::1', port: 5, family: AF_INET6, scopeId: 0 },
      'IPv6',
      '2001:db8::1',
      '[2001:db8::1]:5',
    ],
    [
      { address: 'fe80::1', port: 5, family: AF_INET6, scopeId: NO_INTERFACE },
      'IPv6',
      `fe80::1%${NO_INTERFACE}`,
      `[fe80::1%${NO_INTERFACE}]:5`,
    ],
  ] as const;
  for (const [endpoint, family, address, text] of cases) {
    assert.deepEqual(addressInfo(endpoint), { address, family, port: 5 });
    assert.equal(endpointText(endpoint), text);
  }
  assert.equal(endpointText(null), '');
});
