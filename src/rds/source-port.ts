/**
 * Source ports that say which lane a connection is for: the rest modulo 8 is the lane's number (rds_tcp_conn_path_connect of Linux 7.x).
 *
 *   group 0: [low .. low + 7]   group 1: [low + 8 .. low + 15]   ...      low: the ephemeral range's begin, aligned to 8
 *
 * Each attempt takes the next group, so that a port whose earlier connection is still in TIME_WAIT rests for a while.
 */
import { readFileSync } from 'node:fs';
import { ZerotxError } from '../core/errors.ts';

const GROUP_PORTS = 8;
const ATTEMPTS_MAX = 64;
const RANGE = '/proc/sys/net/ipv4/ip_local_port_range';
/** The kernel's default. */
const DEFAULT_RANGE = [32_768, 60_999] as const;

/** Connections after which the range is read again. */
const READ_EVERY = 64;

export interface PortGroups {
  readonly first: number;
  readonly groups: number;
}

let nextGroup = 0;
let known: PortGroups | null = null;
let uses = 0;

/** Calls `dial` with a source port of `lane`, and with that of the next group while the port is taken. Throws what it throws. */
export function dialFromLane<T>(lane: number, dial: (port: number) => T): T {
  const { first, groups } = portGroups();
  for (let attempt = 1; ; attempt++) {
    const port = first + GROUP_PORTS * (nextGroup % groups) + lane;
    nextGroup = (nextGroup + 1) % groups;
    try {
      return dial(port);
    } catch (error) {
      if (!isTaken(error) || attempt >= Math.min(groups, ATTEMPTS_MAX)) throw error;
    }
  }
}

/** The port, or with connect(2) its way to this peer, is in use; at bind(2) EADDRNOTAVAIL is about the address. */
function isTaken(error: unknown): boolean {
  if (!(error instanceof ZerotxError)) return false;
  return error.code === 'EADDRINUSE' || (error.code === 'EADDRNOTAVAIL' && error.syscall === 'connect');
}

/** Read anew after a while, as the sysctl may have changed. */
function portGroups(): PortGroups {
  uses += 1;
  if (known !== null && uses % READ_EVERY !== 0) return known;
  const own = groupsOf(readRange());
  // A range too narrow for one group cannot be kept to: lanes need their ports.
  known = own.groups > 0 ? own : groupsOf(DEFAULT_RANGE);
  return known;
}

/** The groups that lie wholly in a range of ports, both ends included. */
export function groupsOf([low, high]: readonly [number, number]): PortGroups {
  const first = Math.ceil(low / GROUP_PORTS) * GROUP_PORTS;
  return { first, groups: Math.max(0, Math.floor((high + 1 - first) / GROUP_PORTS)) };
}

function readRange(): readonly [number, number] {
  try {
    const [low, high] = readFileSync(RANGE, 'latin1').trim().split(/\s+/).map(Number);
    if (low !== undefined && high !== undefined && low > 0 && high <= 65_535) return [low, high];
  } catch {
    // No /proc: as good as the default.
  }
  return DEFAULT_RANGE;
}
