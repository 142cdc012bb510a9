/**
 * Lanes. A 7.x kernel and we keep eight connections apart by the dialler's source port, and spread sockets over them; a 6.x
 * kernel, which would shuffle them at every reconnect, gets one. What is up is what the guest's kernel says (RDS_INFO_TCP_SOCKETS).
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { type Lab, roles } from './lab.ts';
import { bothWays, settled } from './rds-flows.ts';
import { pingFromUs } from './rds-pings.ts';

const LANES = 8;
/** Each look is a program of the guest, so that this is some seconds. */
const LOOKS_MAX = 100;
const SOCKETS = 8;
/** Messages of each socket while lanes are dropped. */
const DROPPED = 200;

/** A connection of the guest's RDS, by its lane: what it has sent on it. */
export type Lanes = ReadonlyMap<number, { readonly sent: number }>;

export function lanes(lab: Lab): void {
  describe('lanes', () => {
    for (const { role, dials, lanes: address } of roles) {
      it(`${role}: as many as the kernel can keep apart`, { timeout: 60_000 }, async () => {
        await pingFromUs(lab, address);
        const up = await lanesUp(lab, address, dials);
        const numbers = [...up.keys()].sort();
        lab.fact(dials, `${up.size} lanes are up: ${numbers.join(' ')}`);
      });

      it(`${role}: messages of different sockets go over different lanes`, { timeout: 60_000 }, async () => {
        const before = { theirs: await kernelLanes(lab, address, dials), ours: ourLanes(lab, address) };
        await manySockets(lab, address, 20);
        const after = { theirs: await kernelLanes(lab, address, dials), ours: ourLanes(lab, address) };
        const theirs = [...after.theirs].filter(([lane, { sent }]) => sent !== before.theirs.get(lane)?.sent);
        const ours = after.ours.filter((bytes, lane) => bytes !== before.ours[lane]);
        lab.fact(
          dials,
          `${SOCKETS} sockets at either end: the kernel sent on ${theirs.length} lanes, we on ${ours.length}`,
        );
        const [least, most] = lab.hasLanes ? [2, LANES] : [1, 1];
        for (const { length } of [theirs, ours])
          assert.ok(least <= length && length <= most, `${length} lanes`);
        await settled(lab.node(address));
      });

      it(`${role}: all dropped under traffic`, { timeout: 60_000 }, async () => {
        const { counters } = lab.node(address);
        const before = counters.conn_reset;
        const drops = await lab.dropLanesDuring(manySockets(lab, address, DROPPED));
        const lost = counters.conn_reset - before;
        assert.ok(drops > 1 && lost > 1);
        await settled(lab.node(address));
        const up = await lanesUp(lab, address, dials);
        const what = `${SOCKETS} sockets at either end sent ${DROPPED} messages each while all lanes were dropped ${drops} times`;
        lab.fact(
          dials,
          `${what} and we lost ${lost} connections: all once and in order; ${up.size} lanes are up again`,
        );
      });
    }
  });
}

async function manySockets(lab: Lab, ours: string, count: number): Promise<void> {
  const flows = Array.from({ length: SOCKETS }, (_, i) => ({ bytes: 1000 + i, count }));
  const one = (flow: { bytes: number; count: number }): Promise<string> =>
    bothWays(lab, flow, { ours, room: 16_000, zerocopy: true, seconds: 50 });
  await Promise.all(flows.map(one));
}

/** Resolves when there are as many as there must be. */
export async function lanesUp(lab: Lab, ours: string, weDial: boolean): Promise<Lanes> {
  const wanted = lab.hasLanes ? LANES : 1;
  let up: Lanes = new Map();
  for (let look = 0; look < LOOKS_MAX; look++) {
    up = await kernelLanes(lab, ours, weDial);
    if (up.size === wanted) return up;
    assert.ok(up.size <= wanted, `${up.size} lanes`);
  }
  throw new Error(`${up.size} lanes are up, not ${wanted}: ${[...up.keys()]}`);
}

/** Those that the guest's kernel has with `ours`: by the dialler's port, which is also the lane if it can have several. */
async function kernelLanes(lab: Lab, ours: string, weDial: boolean): Promise<Lanes> {
  const kind = ours.includes(':') ? 'tcp6' : 'tcp';
  const records = (await lab.info(kind)).filter(({ faddr }) => faddr === ours.replace(/%.*/, ''));
  return new Map(
    records.map(({ lport, fport, sent }) => {
      const port = Number(weDial ? fport : lport);
      return [lab.hasLanes ? port % LANES : 0, { sent: Number(sent) }];
    }),
  );
}

/** Bytes that we have written on each lane's connection. */
function ourLanes(lab: Lab, ours: string): number[] {
  return lab
    .node(ours)
    .stats()
    .lanes.map(({ writtenBytes }) => writtenBytes);
}
