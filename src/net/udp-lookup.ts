/**
 * Names that a UDP socket is given, and the addresses they stand for: numeric ones as they are, others by the system's lookup,
 * and all of them by the program's, if it has brought one. As in node:dgram each send and each bind asks anew.
 */
import { lookup as dnsLookup } from 'node:dns';
import { isIP } from 'node:net';
import { releases } from '../core/releases.ts';
import type { ResolvedUdpOptions, UdpLookup } from './udp-options.ts';

type Found = (error: Error | null, ip: string) => void;

/**
 * An address of the socket's family, or whatever the lookup of the program makes of `name`; empty: this host. A numeric one
 * comes at once if `isBound`. Before that the program has not had the time to listen for 'listening'.
 */
export function resolveName(options: ResolvedUdpOptions, name: string, isBound: boolean, done: Found): void {
  const { type, lookup } = options;
  const family = type === 'udp4' ? 4 : 6;
  const host = name || (family === 4 ? '127.0.0.1' : '::1');
  if (lookup !== undefined) ask(lookup, host, family, done);
  else if (isIP(host.split('%')[0] as string) === 0) dnsLookup(host, family, done);
  else if (isBound) done(null, host);
  else releases.run(() => done(null, host));
}

/** What a lookup throws is its answer, too: whoever waits for one, and has lent memory for it, hears of it. Only the first counts. */
function ask(lookup: UdpLookup, host: string, family: 4 | 6, done: Found): void {
  let answered = false;
  const answer = (error: Error | null, ip: string): void => {
    if (answered) return;
    answered = true;
    done(error ?? null, ip);
  };
  try {
    lookup(host, family, answer);
  } catch (error) {
    // A listener of the program's may have thrown inside of the answer: that is not ours to keep.
    if (answered) throw error;
    releases.run(() => answer(error as Error, ''));
  }
}
