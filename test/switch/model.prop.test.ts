import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { Switch } from '../../src/switch/switch.ts';
import type { VlanOptions } from '../../src/switch/vlan.ts';
import { FakePort } from './fake-port.ts';
import { frame, hex, mac } from './packets.ts';
import { VirtualClock } from './virtual-clock.ts';

const seed = process.env.FC_SEED === undefined ? Date.now() : Number(process.env.FC_SEED);

const PORTS = 4;
const AGE = 1000;

interface Setup {
  readonly vlan: VlanOptions | undefined;
  readonly macs: readonly number[];
}

interface Input {
  readonly to: number;
  readonly from: number;
  readonly tag: number;
}

/** A switch that knows one frame at a time. */
class Model {
  readonly known = new Map<string, { port: number; seenMs: number }>();
  readonly setups: readonly Setup[];

  constructor(setups: readonly Setup[]) {
    this.setups = setups;
    for (const [port, { macs }] of setups.entries()) {
      for (const one of macs) {
        for (const vlan of [0, 5, 6]) {
          if (this.isMember(port, vlan))
            this.known.set(`${vlan} ${one}`, { port, seenMs: Number.POSITIVE_INFINITY });
        }
      }
    }
  }

  isMember(port: number, vlan: number): boolean {
    const { vlan: its } = this.setups[port]!;
    if (its === undefined) return vlan === 0;
    return 'access' in its ? its.access === vlan : its.trunk.includes(vlan);
  }

  /** Ports that the frame leaves by, and its VLAN. */
  forward(port: number, { to, from, tag }: Input, nowMs: number): { vlan: number; ports: number[] } | null {
    const { vlan: its, macs } = this.setups[port]!;
    const isTrunk = its !== undefined && 'trunk' in its;
    const vlan = its === undefined ? 0 : 'access' in its ? its.access : tag;
    if (its !== undefined && (isTrunk ? !its.trunk.includes(tag) : tag !== 0)) return null;
    if (macs.length > 0 && !macs.includes(from)) return null;
    const learned = this.known.get(`${vlan} ${from}`);
    if (learned !== undefined && learned.port !== port && learned.seenMs === Number.POSITIVE_INFINITY)
      return null;
    const seenMs = learned?.seenMs === Number.POSITIVE_INFINITY ? learned.seenMs : nowMs;
    this.known.set(`${vlan} ${from}`, { port, seenMs });
    const found = to === 0xff ? undefined : this.known.get(`${vlan} ${to}`);
    if (found !== undefined && nowMs - found.seenMs <= AGE) {
      return { vlan, ports: found.port === port ? [] : [found.port] };
    }
    const others = this.setups.map((_, i) => i).filter((i) => i !== port && this.isMember(i, vlan));
    return { vlan, ports: others };
  }
}

const address = (n: number): Uint8Array => (n === 0xff ? new Uint8Array(6).fill(0xff) : mac(n));

const setup: fc.Arbitrary<Setup> = fc.record({
  vlan: fc.constantFrom<VlanOptions | undefined>(undefined, { access: 5 }, { access: 6 }, { trunk: [5, 6] }),
  macs: fc.constant([]),
});
// A port may have addresses of its own, by its number: no two have the same.
const setups = fc
  .tuple(
    fc.array(setup, { minLength: PORTS, maxLength: PORTS }),
    fc.array(fc.boolean(), { minLength: PORTS, maxLength: PORTS }),
  )
  .map(([all, held]) => all.map((one, i): Setup => ({ ...one, macs: held[i] ? [i + 1, i + 11] : [] })));

const input: fc.Arbitrary<Input> = fc.record({
  to: fc.oneof(
    { weight: 8, arbitrary: fc.integer({ min: 1, max: 6 }) },
    { weight: 1, arbitrary: fc.constant(0xff) },
  ),
  from: fc.integer({ min: 1, max: 6 }),
  tag: fc.constantFrom(0, 5, 5, 6, 6),
});
// Runs of the same frame, as conversations are, between others.
const inputs = fc
  .array(fc.tuple(input, fc.integer({ min: 1, max: 3 })), { maxLength: 20, size: 'max' })
  .map((runs) => runs.flatMap(([one, times]) => Array<Input>(times).fill(one)));
const step = fc.record({ port: fc.nat(PORTS - 1), inputs, ms: fc.constantFrom(0, 1, 600, 1001) });

describe('a switch', () => {
  it('does what a slow one does, frame by frame', () => {
    fc.assert(
      fc.property(setups, fc.array(step, { maxLength: 20, size: 'max' }), (setups, steps) => {
        const clock = new VirtualClock();
        const lan = new Switch({ clock, macAgeMs: AGE });
        const model = new Model(setups);
        const ports = setups.map(({ vlan, macs }, i) => {
          const port = new FakePort(`p${i}`);
          const texts = macs.map((n) => `02:00:00:00:00:${n.toString(16).padStart(2, '0')}`);
          lan.add(port, {
            ...(vlan === undefined ? {} : { vlan }),
            ...(texts.length === 0 ? {} : { macs: texts }),
          });
          return port;
        });
        for (const { port, inputs, ms } of steps) {
          clock.advance(ms);
          const expected: string[][] = ports.map(() => []);
          const frames = inputs.map((one, i) => {
            const isTagged = one.tag !== 0;
            const length = 100 + i;
            const bytes = frame(address(one.to), address(one.from), length, isTagged ? [one.tag] : []);
            const way = model.forward(port, one, clock.now());
            for (const to of way?.ports ?? []) {
              const its = setups[to]!.vlan;
              const keeps = its === undefined || 'trunk' in its;
              const tag = way!.vlan === 0 ? (isTagged ? [one.tag] : []) : keeps ? [way!.vlan] : [];
              expected[to]!.push(
                `${one.to} ${one.from} ${tag} ${length + 4 * (tag.length - (isTagged ? 1 : 0))}`,
              );
            }
            return { bytes };
          });
          ports[port]!.offer(frames);
          for (const [i, one] of ports.entries())
            assert.deepEqual(
              one.take().map(({ bytes }) => text(bytes)),
              expected[i],
            );
        }
      }),
      { seed, numRuns: 150 },
    );
  });
});

function text(bytes: Uint8Array): string {
  const tag = hex(bytes.subarray(12, 14)) === '8100' ? [bytes[15]] : [];
  return `${bytes[5]} ${bytes[11]} ${tag} ${bytes.length}`;
}
