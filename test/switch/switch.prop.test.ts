import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { OFFLOAD_ALL } from '../../src/core/port.ts';
import { Switch } from '../../src/switch/switch.ts';
import type { SwitchPortOptions } from '../../src/switch/switch-port.ts';
import { FakePort } from './fake-port.ts';
import { type Frame, GuestTable, type Vnet } from './guest-table.ts';
import { BROADCAST, frame, mac, tcp } from './packets.ts';
import { VirtualClock } from './virtual-clock.ts';

const seed = process.env.FC_SEED === undefined ? Date.now() : Number(process.env.FC_SEED);

const PORTS = 5;

const setups: fc.Arbitrary<SwitchPortOptions> = fc.record(
  {
    vlan: fc.constantFrom(
      { access: 5 },
      { access: 6 },
      { trunk: [5, 6] },
      { trunk: [6], native: 5 },
      { trunk: [5, 6, 7] },
    ),
    storm: fc.constant({
      broadcast: { framesPerSecond: 10, burstFrames: 3 },
      unknown: { framesPerSecond: 5 },
    }),
    macLimit: fc.constantFrom(1, 4),
  },
  { requiredKeys: [] },
);

const address = fc.oneof(
  { weight: 8, arbitrary: fc.nat(8).map(mac) },
  {
    weight: 1,
    arbitrary: fc.constantFrom(BROADCAST, Uint8Array.of(1, 0x80, 0xc2, 0, 0, 3), new Uint8Array(6)),
  },
);

const simple: fc.Arbitrary<Frame> = fc
  .record({
    to: address,
    from: address,
    length: fc.constantFrom(20, 64, 300, 1514, 1600),
    tags: fc.constantFrom<number[]>([], [], [5], [6], [0], [6, 5]),
    status: fc.constantFrom(0, 0, 0, 0, 0, 0, 14),
    cut: fc.constantFrom(0, 0, 0, 0, 0, 16),
  })
  .map(({ to, from, length, tags, status, cut }) => {
    const bytes = frame(to, from, length + 8, tags);
    return { bytes: cut === 0 ? bytes : bytes.slice(0, cut), status };
  });

const offloaded: fc.Arbitrary<Frame> = fc
  .record({
    from: fc.nat(8),
    to: fc.nat(8),
    payload: fc.constantFrom(10, 2000, 20_000),
    gsoSize: fc.nat(1400),
  })
  .map(({ from, to, payload, gsoSize }) => {
    const { bytes, transportAt } = tcp({ version: 4, payload: new Uint8Array(payload) });
    bytes.set(mac(to));
    bytes.set(mac(from), 6);
    const vnet: Vnet = { flags: 1, gsoType: 1, gsoSize, csumStart: transportAt, csumOffset: 16 };
    return { bytes, vnet };
  });

const step = fc.record({
  port: fc.nat(PORTS - 1),
  frames: fc.array(fc.oneof({ weight: 5, arbitrary: simple }, { weight: 1, arbitrary: offloaded }), {
    maxLength: 12,
  }),
  ms: fc.constantFrom(0, 1, 500),
  change: fc.option(
    fc.record({ port: fc.nat(PORTS - 1), isUp: fc.boolean(), offloads: fc.constantFrom(0, 1, OFFLOAD_ALL) }),
    { freq: 5 },
  ),
  room: fc.constantFrom(0, 3, 1000, Number.POSITIVE_INFINITY),
});

const sum = (counts: object): number => Object.values(counts).reduce((a: number, b: number) => a + b, 0);

describe('a switch under any traffic', () => {
  it('accounts for every frame, and gives tables back as they were', () => {
    const cases = fc.record({
      setups: fc.array(setups, { minLength: PORTS, maxLength: PORTS }),
      steps: fc.array(step, { maxLength: 30, size: 'max' }),
    });
    fc.assert(
      fc.property(cases, ({ setups, steps }) => {
        const clock = new VirtualClock();
        const lan = new Switch({ clock, macAgeMs: 700, macLimit: 8 });
        const ports = setups.map((options, i) => {
          const port = new FakePort(`p${i}`);
          lan.add(port, options);
          return port;
        });
        let offered = 0;
        for (const { port, frames, ms, change, room } of steps) {
          clock.advance(ms);
          if (change !== null)
            ports[change.port]!.change({ isUp: change.isUp, capability: { offloads: change.offloads } });
          for (const one of ports) one.room = room;
          const guest = new GuestTable(frames);
          const heads = frames.map((_, i) => headOf(guest, i));
          assert.equal(ports[port]!.offer(guest), frames.length);
          offered += frames.length;
          // Tags that came off stay off; nothing else has changed.
          for (const [i, head] of heads.entries()) assert.ok(head.endsWith(headOf(guest, i).slice(24)));
        }
        const all = Object.values(lan.stats().ports);
        let copies = 0;
        for (const [i, { ingress, egress }] of all.entries()) {
          assert.equal(ingress.frames, ingress.forwarded + ingress.flooded + sum(ingress.dropped));
          assert.equal(
            ports[i]!.sent.length,
            egress.frames - egress.checksummed - egress.segmented + egress.reworkedSent,
          );
          copies += egress.frames + sum(egress.dropped);
        }
        const given = all.map(({ ingress }) => ingress);
        assert.equal(sum(given.map(({ frames }) => frames)), offered);
        const forwarded = sum(given.map(({ forwarded }) => forwarded));
        const flooded = sum(given.map(({ flooded }) => flooded));
        assert.ok(copies >= forwarded + flooded && copies <= forwarded + flooded * (PORTS - 1));
        for (const { vlan, port } of lan.fdb()) {
          const its = setups[Number(port.slice(1))]!.vlan;
          assert.equal(vlan === 0, its === undefined);
        }
      }),
      { seed, numRuns: 100 },
    );
  });

  it('keeps the frames of a conversation in order', () => {
    const flows = fc.array(fc.record({ to: fc.integer({ min: 1, max: 4 }), big: fc.boolean() }), {
      maxLength: 60,
    });
    fc.assert(
      fc.property(flows, fc.nat(20), (flows, split) => {
        const lan = new Switch({ clock: new VirtualClock() });
        const ports = Array.from(
          { length: PORTS },
          (_, i) => new FakePort(`p${i}`, { offloads: i % 2 === 0 ? 0 : 15 }),
        );
        for (const port of ports) lan.add(port);
        for (const [i, port] of ports.entries()) port.offer([{ bytes: frame(mac(99), mac(i)) }]);
        for (const port of ports) port.take();
        const frames = flows.map(({ to, big }, i): Frame => {
          const { bytes, transportAt } = tcp({
            version: 4,
            payload: new Uint8Array(big ? 2000 : 8),
            sequence: i * 10_000,
          });
          bytes.set(mac(to));
          bytes.set(mac(0), 6);
          const gso = big ? { gsoType: 1, gsoSize: 900 } : {};
          return { bytes, vnet: { flags: 1, csumStart: transportAt, csumOffset: 16, ...gso } };
        });
        for (let i = 0; i < frames.length; i += split + 1) ports[0]!.offer(frames.slice(i, i + split + 1));
        for (const [i, port] of ports.entries()) {
          const sequences = port.sent.map(({ bytes }) => new DataView(bytes.buffer).getUint32(38));
          assert.deepEqual(
            sequences,
            [...sequences].sort((a, b) => a - b),
          );
          const expected = flows.filter(({ to }) => to === i).map(({ big }) => (big && i % 2 === 0 ? 3 : 1));
          assert.equal(sequences.length, sum(expected));
        }
      }),
      { seed, numRuns: 100 },
    );
  });
});

/** The frame's head as text. */
function headOf({ table }: GuestTable, frame: number): string {
  const at = table.records[frame * 12]!;
  return Buffer.from(table.bytes.subarray(at, at + table.records[frame * 12 + 1]!)).toString('hex');
}
