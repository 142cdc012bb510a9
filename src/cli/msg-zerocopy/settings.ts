/**
 * What a run is told on the command line: the options of the kernel's selftest of the same name, with the same meaning,
 * as far as they make sense here.
 */
import { lookup } from 'node:dns/promises';
import { isIP } from 'node:net';
import { ZerotxError } from '../../index.ts';

export type Test = 'tcp' | 'udp' | 'rds';
export const TESTS: readonly Test[] = ['tcp', 'udp', 'rds'];

/** The options as they were given; commander names them. */
export interface GivenOptions {
  readonly 4?: boolean;
  readonly 6?: boolean;
  readonly D?: string;
  readonly S?: string;
  readonly p?: number;
  readonly s?: number;
  readonly c?: number;
  readonly l: number;
  readonly t?: number;
  readonly z?: boolean;
  readonly r?: boolean;
  readonly json?: boolean;
}

export interface Settings {
  readonly test: Test;
  /** `loopback`: both ends here, the receiver in a process of its own. */
  readonly role: 'send' | 'receive' | 'loopback';
  /** 0: whichever the address or name has. */
  readonly family: 0 | 4 | 6;
  /** The receiver's address, at both ends. */
  readonly destination: string | undefined;
  readonly source: string | undefined;
  /** Undefined: 8000, or any free one if both ends are here. */
  readonly port: number | undefined;
  readonly payloadBytes: number;
  /** Datagrams of one send; 1 but for udp. */
  readonly datagrams: number;
  /** Sends under way at most. */
  readonly limit: number;
  /** Undefined: four for a sender, no limit for a receiver. */
  readonly seconds: number | undefined;
  readonly zerocopy: boolean;
}

/** As in the selftest. */
export const DEFAULT_PORT = 8000;
export const DEFAULT_SECONDS = 4;
export const LIMIT_DEFAULT = 32;

const KIB = 1024;
export const PAYLOAD_DEFAULTS: Readonly<Record<Test, number>> = { tcp: 64 * KIB, udp: 1400, rds: 64 * KIB };
/** A lease of the pool; a datagram over IPv4 or IPv6; an RDS message. */
const PAYLOAD_MAX = { tcp: 64 * KIB * KIB, udp4: 65_507, udp6: 65_487, rds: KIB * KIB } as const;
/** What one call with UDP_SEGMENT takes on every kernel that knows it. */
const DATAGRAMS_MAX = 64;

/** The settings, or what is wrong with the options. */
export function settingsOf(test: Test, given: GivenOptions): Settings | string {
  if (given[4] === true && given[6] === true) return '-4 and -6 exclude each other';
  const family = given[4] === true ? 4 : given[6] === true ? 6 : 0;
  for (const [flag, address] of [
    ['-D', given.D],
    ['-S', given.S],
  ] as const) {
    const its = address === undefined ? 0 : isIP(address);
    if (family !== 0 && its !== 0 && its !== family)
      return `${flag} ${address} is not an IPv${family} address`;
  }
  if (given.r === true && given.z === true) return '-z is for the sender: a receiver lends nothing';
  const role = given.r === true ? 'receive' : given.D === undefined ? 'loopback' : 'send';
  if (given.p === 0 && role !== 'receive') return '-p 0, any free port, is for a receiver';
  const six = family === 6 || isIP(given.D ?? '') === 6;
  const payloadBytes = given.s ?? PAYLOAD_DEFAULTS[test];
  const most = test === 'udp' ? PAYLOAD_MAX[six ? 'udp6' : 'udp4'] : PAYLOAD_MAX[test];
  if (payloadBytes > most) return `-s ${payloadBytes}: a ${test} send has at most ${most} bytes`;
  if (given.c !== undefined && test !== 'udp')
    return `-c is for udp: ${test} has no datagrams to put together`;
  const fitting = Math.min(DATAGRAMS_MAX, Math.floor(PAYLOAD_MAX.udp6 / payloadBytes));
  const datagrams = test === 'udp' ? (given.c ?? Math.max(1, fitting)) : 1;
  if (datagrams > DATAGRAMS_MAX) return `-c ${datagrams}: one send has at most ${DATAGRAMS_MAX} datagrams`;
  if (test === 'udp' && datagrams > 1 && datagrams * payloadBytes > most) {
    return `-c ${datagrams} datagrams of ${payloadBytes} bytes are more than the ${most} bytes of one send`;
  }
  const addresses = test === 'rds' ? missingAddress(role, six, given) : undefined;
  if (addresses !== undefined) return addresses;
  return {
    test,
    role,
    family,
    destination: given.D,
    source: given.S,
    port: given.p,
    payloadBytes,
    datagrams,
    limit: given.l,
    seconds: given.t,
    zerocopy: given.z === true,
  };
}

/** An RDS end point owns an address, and has to be told which. */
function missingAddress(role: Settings['role'], six: boolean, { D, S }: GivenOptions): string | undefined {
  if (role === 'receive' && D === undefined) return 'rds needs -D, the address to receive at';
  if (role === 'send' && S === undefined) return 'rds needs -S, the address to send from';
  if (role !== 'loopback' || !six) return undefined;
  return 'rds needs two addresses, and loopback has one in IPv6: run two processes, with -S and -D';
}

/** The IP address that `name` has in the family; throws EADDRNOTAVAIL. */
export async function addressOf(
  name: string,
  family: 0 | 4 | 6,
): Promise<{ address: string; family: 4 | 6 }> {
  try {
    const found = await lookup(name, { family });
    return { address: found.address, family: found.family === 6 ? 6 : 4 };
  } catch (cause) {
    const kind = family === 0 ? '' : `IPv${family} `;
    throw new ZerotxError('EADDRNOTAVAIL', `${name} has no ${kind}address`, { cause });
  }
}

/** `127.0.0.1:8000`, `[::1]:8000`. */
export function place(address: string, port: number): string {
  return isIP(address.split('%')[0] as string) === 6 ? `[${address}]:${port}` : `${address}:${port}`;
}
