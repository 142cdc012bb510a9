/**
 * A scripted RDS peer with several lanes, as Linux 7.x is one: it dials lane n from a source port that is n modulo 8, says so in its probes
 * (SPORT_IDX), and numbers each lane by itself. It has the smaller address.
 */
import type { ProbeExtensions } from '../../src/wire/rds-exthdr.ts';
import { KernelRule, RawConnection, until } from './raw-peer.ts';

export const LANES = 8;
/** Below those that the kernel chooses from. */
const FIRST_PORT = 10_000;
const LAST_PORT = 30_000;

export class RawLanes {
  readonly address: string;
  /** By lane: what it received, over all its connections. */
  readonly rules: readonly KernelRule[] = Array.from({ length: LANES }, () => new KernelRule());
  readonly connections: RawConnection[] = [];
  /** Every connection there was. */
  readonly all: RawConnection[] = [];
  readonly #victim: string;
  readonly #probe: ProbeExtensions;
  #group = 0;

  constructor(address: string, victim: string, genNum = 0x7007) {
    this.address = address;
    this.#victim = victim;
    this.#probe = { npaths: LANES, genNum, sportIdx: true };
  }

  /** A connection from a port of `lane`; it says nothing yet. */
  async dial(lane: number): Promise<RawConnection> {
    const groups = (LAST_PORT - FIRST_PORT) / LANES;
    const port = FIRST_PORT + LANES * (this.#group++ % groups) + lane;
    const connection = await RawConnection.dial(this.address, this.#victim, port);
    this.all.push(connection);
    return connection;
  }

  /** The same, and it becomes that lane. */
  async open(lane: number): Promise<RawConnection> {
    const connection = await this.dial(lane);
    connection.nextSeq = this.connections[lane]?.nextSeq ?? 1;
    this.connections[lane] = connection;
    connection.speak(this.rules[lane], this.#probe);
    return connection;
  }

  /** All lanes, in `order`; without one lane 0 comes first, and is to be asked how many there are. */
  async up(order?: readonly number[]): Promise<void> {
    if (order === undefined) {
      const first = await this.open(0);
      await until('a probe on lane 0', () => first.kinds.includes('probe-ping'));
    }
    for (const lane of order ?? [1, 2, 3, 4, 5, 6, 7]) await this.open(lane);
  }

  /** A message on a lane; returns its number. */
  say(lane: number, dport: number, text: string): number {
    const connection = this.connections[lane] as RawConnection;
    connection.say(9, dport, text);
    return connection.nextSeq - 1;
  }

  reset(): void {
    for (const connection of this.all) if (!connection.closed) connection.reset();
  }
}
