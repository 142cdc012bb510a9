import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { addressText } from '../../src/net/endpoint.ts';
import { isLocalAddress, isLoopback } from '../../src/net/local.ts';
import { parseIfInet6, scopeIdOf, zoneName } from '../../src/net/zones.ts';

const text = `fe8000000000000000fc00fffe000001 1f 40 20 80     eth0
00000000000000000000000000000001 01 80 10 80       lo
`;

describe('zones', () => {
  it('are read from the kernel, numbers in hexadecimal', () => {
    assert.deepEqual(parseIfInet6(text), [
      ['eth0', 31],
      ['lo', 1],
    ]);
    assert.deepEqual(parseIfInet6(''), []);
  });

  it('are numbers, or names of interfaces; anything else is none', () => {
    assert.equal(scopeIdOf('7'), 7);
    assert.equal(scopeIdOf('2147483647'), 2147483647);
    for (const zone of [
      undefined,
      '',
      '0',
      '2147483648',
      '99999999999',
      '-1',
      '1.5',
      '0x1',
      'no such',
      'eth0 ',
    ]) {
      assert.equal(scopeIdOf(zone), 0, `${zone}`);
    }
  });

  it('have a number as their name where no interface has it', () => {
    assert.equal(zoneName(2147483646), '2147483646');
    assert.equal(
      addressText({ address: 'fe80::1', port: 1, family: 10, scopeId: 2147483646 }),
      'fe80::1%2147483646',
    );
  });

  it('of this machine: name and number belong together', (t) => {
    let list: [string, number][] = [];
    try {
      list = parseIfInet6(readFileSync('/proc/net/if_inet6', 'utf8'));
    } catch {
      t.skip('no IPv6');
    }
    for (const [name, index] of list) {
      assert.equal(scopeIdOf(name), index);
      assert.equal(zoneName(index), name);
    }
  });

  it('do not matter to what is local', () => {
    assert.ok(isLoopback('::1%lo'));
    assert.ok(!isLoopback('fe80::1%lo'));
    assert.ok(!isLocalAddress('fe80::dead:beef%lo'));
  });
});
