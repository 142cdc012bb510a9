/**
 * Has the kernel sign a socket's TCP segments, and drop what comes unsigned or with another key from the peers it has a key
 * for (tcp_inbound_hash, net/ipv4/tcp.c). A listener needs the keys of all who may connect; a socket that connects those of its
 * one peer, before it does. What accept(2) returns inherits the keys of its peer.
 *
 * A peer for which there is no key is not signed for, and not asked for a signature: whoever sets keys must refuse
 * those that none covers.
 *
 * The address of a key has the family of the socket. Ours are bound to one address, so no IPv6 socket has IPv4 peers, whose
 * keys would have to be given in the mapped form.
 */
import { errnoError, errnoName, ZerotxError } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import { IPPROTO_TCP, TCP_AO_ADD_KEY, TCP_MD5SIG_EXT } from '../sys/constants.ts';
import { cidrHas, formatCidr } from '../wire/cidr.ts';
import { parseIp, splitZone } from '../wire/sockaddr.ts';
import { encodeAoKey, encodeMd5Key, type TcpKey } from '../wire/tcp-keys.ts';

/**
 * Sets `keys`, which must be of the socket's family. Throws ZTX_NO_TCP_KEYS when the kernel has none of this kind, and what it
 * refuses otherwise: ENOMEM (net.core.optmem_max), EKEYREJECTED (MD5 and TCP-AO for the same peer), ENOENT (the algorithm).
 */
export function setTcpKeys(fd: number, keys: readonly TcpKey[]): void {
  for (const key of keys) {
    const result =
      key.kind === 'md5'
        ? native().setsockopt(fd, IPPROTO_TCP, TCP_MD5SIG_EXT, encodeMd5Key(key))
        : native().setsockopt(fd, IPPROTO_TCP, TCP_AO_ADD_KEY, encodeAoKey(key));
    if (result < 0) throw refusal(key, result);
  }
}

/** Those of `keys` that are for this peer. */
export function keysFor(keys: readonly TcpKey[], address: string): TcpKey[] {
  const ip = parseIp(splitZone(address).host);
  return keys.filter(({ peer }) => cidrHas(peer, ip));
}

function refusal(key: TcpKey, result: number): ZerotxError {
  const code = errnoName(result);
  const peer = formatCidr(key.peer);
  if (code === 'ENOPROTOOPT') {
    const needs =
      key.kind === 'md5'
        ? 'CONFIG_TCP_MD5SIG'
        : 'CONFIG_TCP_AO, Linux 6.7 or later; use md5 on both sides, or a tunnel (WireGuard, IPsec)';
    const name = key.kind === 'md5' ? 'TCP-MD5' : 'TCP-AO';
    return new ZerotxError('ZTX_NO_TCP_KEYS', `this kernel has no ${name} keys (it needs ${needs})`, {
      syscall: 'setsockopt',
    });
  }
  return errnoError(result, 'setsockopt', { hint: `the ${key.kind} key for ${peer}${hints[code] ?? ''}` });
}

const hints: Readonly<Record<string, string>> = {
  ENOMEM: ' has no room: the sysctl net.core.optmem_max limits the keys of a socket',
  EKEYREJECTED: ' collides with one of the other kind: a peer has md5 or ao keys',
  EEXIST: ' collides with another: ids of a peer are used once',
  ENOENT: ': the kernel has no such algorithm',
};
