/**
 * What the tests with a kernel share: one guest, which stays up from one test to the next, and our nodes around its
 * addresses, some smaller (they dial), some larger (the kernel dials).
 *
 * What a test has found goes to the log as one line a fact, so that the log of a run reads as a record of what works with
 * which kernel.
 */
import { existsSync } from 'node:fs';
import type { RdsNode } from '../../src/rds/node.ts';
import { testNode } from '../support/rds-nodes.ts';
import type { Flow } from './messages.ts';
import { makeTap, setLink } from './namespace.ts';
import { Vm } from './vm.ts';
import type { GuestJob } from './vm-console.ts';

export const GUEST = '10.77.0.100';

/** The kernel never forgets a peer, so that each kind of first contact needs an address of its own. */
export interface Role {
  readonly role: string;
  readonly dials: boolean;
  readonly address: string;
  readonly calledFirst: string;
  readonly bothAtOnce: string;
  readonly withoutPings: string;
  readonly restarted: string;
  readonly lanes: string;
  /** One for each time that it is we who come late. */
  readonly late: readonly string[];
  readonly clockBack: string;
}

function addresses(first: number): Omit<Role, 'role' | 'dials'> {
  const address = (i: number): string => `10.77.0.${first + i}`;
  return {
    address: address(0),
    calledFirst: address(1),
    bothAtOnce: address(2),
    withoutPings: address(3),
    restarted: address(4),
    lanes: address(5),
    clockBack: address(6),
    late: [7, 8, 9].map(address),
  };
}

export const roles: readonly Role[] = [
  { role: 'as the smaller address', dials: true, ...addresses(1) },
  { role: 'as the larger address', dials: false, ...addresses(201) },
] as const;

const TAP = 'zt0';
const GUEST_CARD = 'eth0';
const PROGRAM_BUFFER_BYTES = 4 * 1024 * 1024;
const DROPS_MAX = 400;

/** Pairs of IPv6 addresses, each as we write it. The zone of a link-local address is another at either end. */
export interface Pair6 {
  readonly scope: 'global' | 'link-local';
  readonly role: string;
  readonly dials: boolean;
  readonly ours: string;
  readonly guest: string;
}

export const pairs6: readonly Pair6[] = [
  { role: 'as the smaller address', dials: true, scope: 'global', ours: 'fd77::1', guest: 'fd77::100' },
  { role: 'as the larger address', dials: false, scope: 'global', ours: 'fd77::201', guest: 'fd77::100' },
  {
    role: 'as the smaller address',
    dials: true,
    scope: 'link-local',
    ours: `fe80::1%${TAP}`,
    guest: `fe80::100%${TAP}`,
  },
  {
    role: 'as the larger address',
    dials: false,
    scope: 'link-local',
    ours: `fe80::201%${TAP}`,
    guest: `fe80::100%${TAP}`,
  },
];

/** The machine was started with ipv6.disable=1, or has a kernel without. */
export const hasIpv6: boolean = existsSync('/proc/sys/net/ipv6');

/** As the guest's programs write an address: in brackets, with the zone that it has there. */
export function inGuest(address: string): string {
  if (!address.includes(':')) return address;
  return `[${address.replace(/%.*/, `%${GUEST_CARD}`)}]`;
}

export interface ReceiverOptions {
  /** Where in the guest; its IPv4 address if left out. */
  readonly guest?: string;
  readonly port?: number;
  readonly rcvbuf?: number;
  readonly hold?: string;
  readonly seconds?: number;
  /** Messages may begin with any number. */
  readonly fromAny?: boolean;
}

export interface SenderOptions {
  readonly guest?: string;
  readonly sndbuf?: number;
  readonly nonblock?: boolean;
  readonly zerocopy?: boolean;
  readonly seconds?: number;
}

export class Lab {
  #guest: Vm | null = null;
  readonly #nodes = new Map<string, RdsNode>();
  #port = 5000;
  #kernel = '';
  #sndbuf = 1_000_000;

  get guest(): Vm {
    if (this.#guest === null) throw new Error('no guest: it did not boot');
    return this.#guest;
  }

  /** As the guest says it: 6.1.0-57-amd64. */
  get kernel(): string {
    return this.#kernel;
  }

  /** Whether its RDS says SPORT_IDX, and so may have several lanes. */
  get hasLanes(): boolean {
    return Number.parseInt(this.#kernel, 10) >= 7;
  }

  async setUp(): Promise<void> {
    const ours = roles.flatMap(({ role: _, dials: __, ...each }) =>
      Object.values<string | readonly string[]>(each).flat(),
    );
    const ours6 = hasIpv6 ? pairs6.map((pair) => pair.ours.replace(/%.*/, '')) : [];
    makeTap(TAP, [...ours.map((address) => `${address}/24`), ...ours6.map((address) => `${address}/64`)]);
    await this.boot();
    this.#kernel = await this.guest.run('uname -r');
  }

  async tearDown(): Promise<void> {
    await this.#guest?.stop();
    await Promise.all([...this.#nodes.values()].map((node) => node.close()));
  }

  /** A line of the log: what has been found with this kernel, in which role. */
  fact(dials: boolean | null, what: string): void {
    const who = dials === null ? '' : `${dials ? 'we dial' : 'the kernel dials'}: `;
    console.log(`interop: Linux ${this.#kernel}: ${who}${what}`);
  }

  /** Our node with this address, open from its first use on. */
  node(address: string): RdsNode {
    const open = this.#nodes.get(address);
    if (open !== undefined) return open;
    const node = testNode(address);
    this.#nodes.set(address, node);
    return node;
  }

  /** An RDS port that no test has used. */
  port(): number {
    return this.#port++;
  }

  /** A program of the guest that receives `flow`, bound already. */
  async receiver(
    flow: Flow,
    options: ReceiverOptions = {},
  ): Promise<{ job: GuestJob; to: { address: string; port: number } }> {
    const { port = this.port(), rcvbuf = PROGRAM_BUFFER_BYTES, hold, seconds, guest = GUEST } = options;
    const flags = [`rcvbuf=${rcvbuf}`];
    if (hold !== undefined) flags.push(`hold=${hold}`);
    if (options.fromAny === true) flags.push('from=any');
    const job = this.guest.start(
      `rds-guest recv at=${inGuest(guest)}:${port} ${flowFlags(flow)} ${flags.join(' ')}`,
      seconds,
    );
    await job.line('bound');
    return { job, to: { address: guest, port } };
  }

  /** A program of the guest that sends `flow` to `socket`. */
  sender(flow: Flow, to: { address: string; port: number }, options: SenderOptions = {}): GuestJob {
    const { sndbuf = PROGRAM_BUFFER_BYTES, nonblock = false, zerocopy = false, guest = GUEST } = options;
    const at = `at=${inGuest(guest)}:${this.port()} to=${inGuest(to.address)}:${to.port}`;
    const flags = `sndbuf=${sndbuf} nonblock=${Number(nonblock)} zerocopy=${Number(zerocopy)}`;
    return this.guest.start(`rds-guest send ${at} ${flowFlags(flow)} ${flags}`, options.seconds);
  }

  /** A counter of the guest's kernel. */
  async kernelCounter(name: string): Promise<number> {
    const lines = (await this.guest.run('rds-guest info counters')).split('\n');
    const line = lines.find((text) => text.startsWith(`${name} `));
    if (line === undefined) throw new Error(`the kernel has no counter ${name}`);
    return Number(line.slice(name.length));
  }

  /** What RDS_INFO tells of one kind, a record a line. */
  async info(what: string): Promise<Record<string, string>[]> {
    const lines = (await this.guest.run(`rds-guest info ${what}`)).split('\n');
    return lines
      .filter((line) => line !== '')
      .map((line) => Object.fromEntries(line.split(' ').map((word) => word.split('='))));
  }

  /** Drops every lane of the kernel: writing the setting does, but a value of its own each time, or nothing is written. */
  async dropLanes(): Promise<void> {
    await this.guest.run(`echo ${this.#sndbuf++} >/proc/sys/net/rds/tcp/rds_tcp_sndbuf`);
  }

  /** Drops every lane again and again until `traffic` is over; resolves with how often. */
  async dropLanesDuring(traffic: Promise<unknown>): Promise<number> {
    let over = false;
    const end = (): void => {
      over = true;
    };
    traffic.then(end, end);
    let drops = 0;
    for (; !over && drops < DROPS_MAX; drops++) await this.dropLanes();
    await traffic;
    return drops;
  }

  /** The cable between us and the guest. */
  link(state: 'up' | 'down'): void {
    setLink(TAP, state);
  }

  async boot(): Promise<void> {
    const nic = { mac: '52:54:00:77:00:02', address: `${GUEST}/24` };
    this.#guest = await Vm.boot({ nics: [{ ...nic, peer: { kind: 'tap', name: TAP } }] });
    if (!hasIpv6) return;
    for (const address of ['fd77::100', 'fe80::100']) {
      await this.guest.run(`/sbin/ip address add ${address}/64 dev ${GUEST_CARD} nodad`);
    }
  }
}

export function flowFlags({ bytes, count }: Flow): string {
  return `size=${typeof bytes === 'number' ? bytes : bytes.join(',')} count=${count}`;
}
