/**
 * Addresses of nodes and peers: text in, 16 bytes, a zone where there must be one, and canonical text, which is what nodes
 * and peers are known by.
 *
 * A link-local address (fe80::/10) means something only in a zone, the link behind an interface: `fe80::1%eth0`. Canonical
 * text names the interface; one that has gone is a number. A node with a link-local address lives on its link: its
 * link-local peers are there, too, whether their zone is written or not (rds_sendmsg). Who dials is decided by the 16 bytes.
 */
import { checkString } from '../core/arguments.ts';
import { ZerotxError } from '../core/errors.ts';
import { scopeIdOf, zoneName } from '../net/zones.ts';
import {
  formatIp,
  isLinkLocal,
  isMapped,
  isUnicast,
  isUnspecified,
  parseIp,
  splitZone,
} from '../wire/sockaddr.ts';

export interface RdsHost {
  readonly ip: Uint8Array;
  /** Number of the interface of a link-local address, else 0. */
  readonly scopeId: number;
  /** Canonical. */
  readonly address: string;
}

/** The address of a node. Throws EINVAL (not the address of one host, or no zone where one is needed), EADDRNOTAVAIL (no such zone). */
export function ownHost(text: string): RdsHost {
  checkString('options.address', text);
  const { host, zone } = splitZone(text);
  const ip = tryParse(host);
  if (ip === null || !isUnicast(ip)) {
    throw refused('open', 'EINVAL', `options.address "${text}" is not the IP address of one host`);
  }
  if (!isLinkLocal(ip)) {
    if (zone === undefined) return { ip, scopeId: 0, address: formatIp(ip) };
    throw refused('open', 'EINVAL', `options.address "${text}": only link-local addresses have a zone`);
  }
  if (zone === undefined || zone === '') {
    const example = `"${formatIp(ip)}%eth0"`;
    throw refused(
      'open',
      'EINVAL',
      `options.address "${text}" is link-local: say on which link, as in ${example}`,
    );
  }
  const scopeId = scopeIdOf(zone);
  if (scopeId > 0) return zoned(ip, scopeId);
  throw refused(
    'open',
    'EADDRNOTAVAIL',
    `"${zone}" in options.address "${text}" is no interface with IPv6 of this host`,
  );
}

/** As rds_connect and rds_sendmsg name it. */
function notUnicast(ip: Uint8Array, syscall: string): string {
  if (syscall !== 'connect') return 'EINVAL';
  if (!isMapped(ip)) return 'EPROTOTYPE';
  return isUnspecified(ip) ? 'EDESTADDRREQ' : 'EINVAL';
}

/**
 * The address of a peer of `own`, as a program gives it. Throws TypeError, EINVAL (no unicast address; a zone that is missing,
 * unknown or not the node's), in connect EDESTADDRREQ (the unspecified address) and EPROTOTYPE (IPv6 and no unicast address),
 * EOPNOTSUPP (IPv4 and IPv6 do not mix).
 */
export function peerHost(own: RdsHost, text: unknown, syscall: string): RdsHost {
  checkString('to.address', text);
  const { host, zone } = splitZone(text);
  const ip = tryParse(host);
  if (ip === null) throw refused(syscall, 'EINVAL', `to.address "${text}" is not an IP address`);
  if (!isUnicast(ip)) {
    throw refused(syscall, notUnicast(ip, syscall), `to.address ${text} is not a unicast address`);
  }
  if (isMapped(ip) !== isMapped(own.ip)) {
    throw refused(syscall, 'EOPNOTSUPP', `${own.address} cannot reach ${text}: IPv4 and IPv6 do not mix`);
  }
  if (!isLinkLocal(ip)) {
    if (zone === undefined) return { ip, scopeId: 0, address: formatIp(ip) };
    throw refused(syscall, 'EINVAL', `to.address ${text}: only link-local addresses have a zone`);
  }
  const scopeId = zone === undefined ? own.scopeId : scopeIdOf(zone);
  if (scopeId === 0) {
    const why =
      zone === undefined ? 'is link-local: say on which link, as in "fe80::1%eth0"' : 'has an unknown zone';
    throw refused(syscall, 'EINVAL', `to.address ${text} ${why}`);
  }
  if (own.scopeId !== 0 && scopeId !== own.scopeId) {
    throw refused(syscall, 'EINVAL', `to.address ${text} is on another link than ${own.address}`);
  }
  return zoned(ip, scopeId);
}

/** The 16 bytes behind canonical text. */
export function ipOf(address: string): Uint8Array {
  return parseIp(splitZone(address).host);
}

function zoned(ip: Uint8Array, scopeId: number): RdsHost {
  return { ip, scopeId, address: `${formatIp(ip)}%${zoneName(scopeId)}` };
}

function tryParse(host: string): Uint8Array | null {
  try {
    return parseIp(host);
  } catch {
    return null;
  }
}

function refused(syscall: string, code: string, text: string): ZerotxError {
  return new ZerotxError(code, `${syscall} ${code}: ${text}`, { syscall });
}
