/** What programs write in `options.allow` and `options.keys`, checked and turned into blocks and keys. */
import { checkInteger, checkObject, checkString, wrongType } from '../core/arguments.ts';
import { ZerotxError } from '../core/errors.ts';
import { type Cidr, formatCidr, isIpv4Block, parseCidr } from '../wire/cidr.ts';
import { isMapped } from '../wire/sockaddr.ts';
import { encodeAoKey, encodeMd5Key, type TcpKey } from '../wire/tcp-keys.ts';

/** The key for one peer, or for all of a block. Text is taken as UTF-8. */
export type NodeKey = Md5NodeKey | AoNodeKey;

/** TCP-MD5 (RFC 2385): one key for a peer; of several blocks the longest prefix decides. */
export interface Md5NodeKey {
  /** An IP address or a block, `192.0.2.0/24`. */
  readonly peer: string;
  /** 1 to 80 bytes. */
  readonly md5: string | Uint8Array;
}

/** TCP-AO (RFC 5925), Linux 6.7 or later: several keys may be given for a peer, told apart by their ids. */
export interface AoNodeKey {
  readonly peer: string;
  readonly ao: {
    /** As the kernel's crypto names it: `hmac(sha1)`, `cmac(aes128)`, `hmac(sha256)`. */
    readonly algorithm: string;
    /** 1 to 80 bytes. */
    readonly key: string | Uint8Array;
    /** 0 to 255: in what this side sends. The peer's `receiveId`. */
    readonly sendId: number;
    readonly receiveId: number;
  };
}

/**
 * Whom a node has to do with; null: everybody. Without `allow`, keys name those who are: a peer without key would neither be
 * asked for a signature nor sign. Throws TypeError, EINVAL.
 */
export function allowedBlocks(allow: readonly string[] | undefined, keys: readonly TcpKey[]): Cidr[] | null {
  if (allow === undefined) return keys.length === 0 ? null : keys.map(({ peer }) => peer);
  if (!Array.isArray(allow)) throw wrongType('options.allow', 'an array of addresses and blocks', allow);
  return allow.map((text, i) => block(`options.allow[${i}]`, text));
}

/** `ip`: the node's own address, whose family the keys must have. Throws TypeError, RangeError, EINVAL. */
export function tcpKeys(keys: readonly NodeKey[] | undefined, ip: Uint8Array): TcpKey[] {
  if (keys === undefined) return [];
  if (!Array.isArray(keys)) throw wrongType('options.keys', 'an array', keys);
  const md5Peers = new Set<string>();
  return keys.map((given: NodeKey, i) => {
    const name = `options.keys[${i}]`;
    checkObject(name, given);
    const key = isAo(given) ? aoKey(name, given) : md5Key(name, given);
    const text = formatCidr(key.peer);
    if (isIpv4Block(key.peer) !== isMapped(ip)) {
      throw invalid(`${name}.peer`, text, 'is not of the family of options.address');
    }
    if (key.kind === 'md5') {
      // The kernel would take the later one for a change of the first.
      if (md5Peers.has(text)) throw invalid(`${name}.peer`, text, 'has an md5 key already');
      md5Peers.add(text);
    }
    return key;
  });
}

function isAo(given: NodeKey): given is AoNodeKey {
  return 'ao' in given;
}

function md5Key(name: string, { peer, md5 }: Md5NodeKey): TcpKey {
  const key: TcpKey = { kind: 'md5', peer: block(`${name}.peer`, peer), key: keyBytes(`${name}.md5`, md5) };
  encodeMd5Key(key);
  return key;
}

function aoKey(name: string, { peer, ao }: AoNodeKey): TcpKey {
  checkObject(`${name}.ao`, ao);
  checkString(`${name}.ao.algorithm`, ao.algorithm);
  checkInteger(`${name}.ao.sendId`, ao.sendId, 0, 255);
  checkInteger(`${name}.ao.receiveId`, ao.receiveId, 0, 255);
  const { algorithm, sendId, receiveId } = ao;
  const key = keyBytes(`${name}.ao.key`, ao.key);
  const result: TcpKey = { kind: 'ao', peer: block(`${name}.peer`, peer), algorithm, key, sendId, receiveId };
  encodeAoKey(result);
  return result;
}

/** A copy, so that a program may wipe its own. */
function keyBytes(name: string, key: unknown): Uint8Array {
  if (typeof key === 'string') return new TextEncoder().encode(key);
  if (key instanceof Uint8Array) return Uint8Array.from(key);
  throw wrongType(name, 'of type string or an instance of Uint8Array', key);
}

function block(name: string, text: unknown): Cidr {
  checkString(name, text);
  try {
    return parseCidr(text);
  } catch (cause) {
    const why = `open EINVAL: ${name}: ${(cause as Error).message}`;
    throw new ZerotxError('EINVAL', why, { syscall: 'open', cause });
  }
}

function invalid(name: string, text: string, why: string): ZerotxError {
  return new ZerotxError('EINVAL', `open EINVAL: ${name} ${text} ${why}`, { syscall: 'open' });
}
