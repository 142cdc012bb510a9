import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { findTransport, PacketShape } from '../../src/wire/ip.ts';

const seed = process.env.FC_SEED === undefined ? Date.now() : Number(process.env.FC_SEED);

const macs = '020000000001020000000002';
const v4 = (protocol: string, words = 5, fragment = '4000'): string =>
  `4${words}000000${'0000'}${fragment}40${protocol}00000a0000010a000002${'01010101'.repeat(words - 5)}`;
const v6 = (next: string): string => `60000000${'0000'}${next}40${'00'.repeat(32)}`;
const hex = (text: string): Uint8Array => new Uint8Array(Buffer.from(text, 'hex'));

interface Case {
  readonly name: string;
  readonly frame: string;
  /** version, networkAt, transportAt, protocol, fragment; null: not found. */
  readonly found: readonly [number, number, number, number, boolean] | null;
}

const cases: readonly Case[] = [
  { name: 'IPv4', frame: `${macs}0800${v4('06')}`, found: [4, 14, 34, 6, false] },
  { name: 'IPv4 with options', frame: `${macs}0800${v4('11', 7)}`, found: [4, 14, 42, 17, false] },
  { name: 'IPv4, first fragment', frame: `${macs}0800${v4('11', 5, '2000')}`, found: [4, 14, 34, 17, true] },
  { name: 'IPv4, later fragment', frame: `${macs}0800${v4('11', 5, '00b9')}`, found: [4, 14, 34, 17, true] },
  { name: 'IPv4 behind a tag', frame: `${macs}810000050800${v4('06')}`, found: [4, 18, 38, 6, false] },
  {
    name: 'IPv4 behind two tags',
    frame: `${macs}88a800058100000a0800${v4('06')}`,
    found: [4, 22, 42, 6, false],
  },
  { name: 'three tags', frame: `${macs}${'81000005'.repeat(3)}0800${v4('06')}`, found: null },
  { name: 'IPv6', frame: `${macs}86dd${v6('06')}`, found: [6, 14, 54, 6, false] },
  {
    name: 'IPv6 with hop-by-hop and destination options',
    frame: `${macs}86dd${v6('00')}3c00${'00'.repeat(6)}0601${'00'.repeat(14)}`,
    found: [6, 14, 78, 6, false],
  },
  {
    name: 'IPv6 with a routing header',
    frame: `${macs}86dd${v6('2b')}0602${'00'.repeat(22)}`,
    found: [6, 14, 78, 6, false],
  },
  { name: 'an IPv6 fragment', frame: `${macs}86dd${v6('2c')}06ff000100000001`, found: [6, 14, 62, 6, true] },
  {
    name: 'IPv6 with authentication',
    frame: `${macs}86dd${v6('33')}0604${'00'.repeat(22)}`,
    found: [6, 14, 78, 6, false],
  },
  { name: 'IPv6, nothing follows', frame: `${macs}86dd${v6('3b')}`, found: [6, 14, 54, 59, false] },
  {
    name: 'an extension header that leads outside',
    frame: `${macs}86dd${v6('00')}06ff${'00'.repeat(6)}`,
    found: null,
  },
  { name: 'an extension header that is cut', frame: `${macs}86dd${v6('00')}0600`, found: null },
  {
    name: 'endless extension headers',
    frame: `${macs}86dd${v6('00')}${'0000000000000000'.repeat(40)}`,
    found: null,
  },
  { name: 'ARP', frame: `${macs}0806${'00'.repeat(28)}`, found: null },
  { name: 'a short frame', frame: macs, found: null },
  { name: 'IPv4 that is cut', frame: `${macs}0800${v4('06').slice(0, 38)}`, found: null },
  { name: 'IPv4 whose options are cut', frame: `${macs}0800${v4('06', 7).slice(0, 48)}`, found: null },
  { name: 'IPv4 with a short header', frame: `${macs}0800${v4('06').replace('45', '44')}`, found: null },
  {
    name: 'IPv6 in the type, IPv4 in the header',
    frame: `${macs}86dd${v4('06')}${'00'.repeat(20)}`,
    found: null,
  },
];

describe('the transport header', () => {
  for (const { name, frame, found } of cases) {
    it(`${found === null ? 'is not found: ' : 'is found: '}${name}`, () => {
      const bytes = hex(`eeee${frame}`);
      const shape = new PacketShape();
      assert.equal(findTransport(bytes, 2, bytes.length, shape), found !== null);
      if (found === null) return;
      const { version, networkAt, transportAt, protocol, fragment } = shape;
      assert.deepEqual([version, networkAt - 2, transportAt - 2, protocol, fragment], [...found]);
    });
  }

  it('is inside of the frame, whatever the frame says, and nothing else is looked at', () => {
    const heads = fc.constantFrom(...cases.map(({ frame }) => frame));
    fc.assert(
      fc.property(heads, fc.uint8Array({ maxLength: 40 }), fc.nat(120), (head, noise, cut) => {
        const whole = Uint8Array.from([...hex(head), ...noise]);
        for (const [i, byte] of noise.entries()) whole[(i * 7 + byte) % whole.length] = byte;
        const frame = whole.subarray(0, cut);
        // Reads outside would give undefined, and with it NaN or 0 where the padded copy gives 0xff.
        const padded = new Uint8Array(frame.length + 600).fill(0xff);
        padded.set(frame);
        const a = new PacketShape();
        const b = new PacketShape();
        const found = findTransport(frame, 0, frame.length, a);
        assert.equal(findTransport(padded, 0, frame.length, b), found);
        if (!found) return;
        assert.deepEqual(a, b);
        assert.ok(a.networkAt < a.transportAt && a.transportAt <= frame.length);
      }),
      { seed, numRuns: 1000 },
    );
  });
});
