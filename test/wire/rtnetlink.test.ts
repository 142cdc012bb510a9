/** Answers are put together here by hand, from the layout in linux/rtnetlink.h; that they are the kernel's shows in the lab. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { decodeAnswer, encodeLinkQuery, encodeRouteQuery } from '../../src/wire/rtnetlink.ts';

const little = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1;

function u16(value: number): number[] {
  return little ? [value & 0xff, value >> 8] : [value >> 8, value & 0xff];
}

function u32(value: number): number[] {
  const bytes = [value & 0xff, (value >>> 8) & 0xff, (value >>> 16) & 0xff, value >>> 24];
  return little ? bytes : bytes.reverse();
}

function attribute(type: number, value: readonly number[]): number[] {
  const padding = new Array<number>((4 - (value.length % 4)) % 4).fill(0);
  return [...u16(4 + value.length), ...u16(type), ...value, ...padding];
}

function message(type: number, ...parts: readonly number[][]): Uint8Array {
  const body = parts.flat();
  return Uint8Array.from([...u32(16 + body.length), ...u16(type), ...u16(0), ...u32(1), ...u32(0), ...body]);
}

const ascii = (text: string): number[] => [...Buffer.from(`${text}\0`)];

describe('questions', () => {
  it('name the destination', () => {
    const expected = message(26, [2, 32, 0, 0, 0, 0, 0, 0, ...u32(0)], attribute(1, [203, 0, 113, 7]));
    expected.set(u16(1), 6);
    assert.deepEqual(encodeRouteQuery('203.0.113.7', undefined, 1), expected);
  });

  it('name the port, as rules may ask for it, in network order', () => {
    const bytes = encodeRouteQuery('2001:db8::1', 9000, 7);
    assert.equal(bytes[16], 10);
    assert.equal(bytes[17], 128);
    assert.deepEqual(
      [...bytes.subarray(-16)],
      [...attribute(27, [6]), ...attribute(29, [9000 >> 8, 9000 & 0xff])],
    );
  });

  it('name the device', () => {
    const expected = message(18, [0, 0, 0, 0, ...u32(7), ...u32(0), ...u32(0)], attribute(29, u32(8)));
    expected.set(u16(1), 6);
    assert.deepEqual(encodeLinkQuery(7, 1), expected);
  });
});

describe('answers', () => {
  it('are routes', () => {
    const bytes = message(
      24,
      [2, 32, 0, 0, 254, 0, 0, 1, ...u32(0)],
      attribute(1, [203, 0, 113, 7]),
      attribute(4, u32(7)),
      attribute(5, [10, 0, 0, 254]),
      attribute(7, [10, 0, 0, 1]),
    );
    assert.deepEqual(decodeAnswer(bytes), {
      kind: 'route',
      type: 'unicast',
      device: 7,
      gateway: '10.0.0.254',
      source: '10.0.0.1',
    });
  });

  it('are routes without a device', () => {
    assert.deepEqual(decodeAnswer(message(24, [10, 128, 0, 0, 254, 0, 0, 6, ...u32(0)])), {
      kind: 'route',
      type: 'blackhole',
      device: 0,
      gateway: undefined,
      source: undefined,
    });
  });

  it('are devices, of a driver or of a type', () => {
    const body = [0, 0, ...u16(1), ...u32(7), ...u32(0x1043), ...u32(0)];
    const named = [attribute(3, ascii('v0')), attribute(4, u32(1500))];
    const expected = { kind: 'link', index: 7, name: 'v0', flags: 0x1043, mtu: 1500 };
    assert.deepEqual(decodeAnswer(message(16, body, ...named)), { ...expected, type: undefined });
    // Nested attributes may carry NLA_F_NESTED.
    const info = attribute(18 | 0x8000, attribute(1, ascii('veth')));
    assert.deepEqual(decodeAnswer(message(16, body, ...named, info)), { ...expected, type: 'veth' });
  });

  it('are errors', () => {
    assert.deepEqual(decodeAnswer(message(2, u32(-101 >>> 0), new Array<number>(16).fill(0))), {
      kind: 'error',
      errno: -101,
    });
  });

  it('that are cut, or of another kind, are refused', () => {
    const route = message(24, [2, 32, 0, 0, 254, 0, 0, 1, ...u32(0)], attribute(4, u32(7)));
    for (const bytes of [
      new Uint8Array(0),
      route.subarray(0, 15),
      route.subarray(0, -1),
      message(24, [2, 32]),
      message(16, [0, 0]),
      message(2, [1]),
      message(3),
      message(24, [2, 32, 0, 0, 254, 0, 0, 1, ...u32(0)], [...u16(3), ...u16(4)]),
      message(24, [2, 32, 0, 0, 254, 0, 0, 1, ...u32(0)], [...u16(40), ...u16(4)]),
    ]) {
      assert.throws(() => decodeAnswer(bytes), { code: 'EPROTO' });
    }
  });
});
