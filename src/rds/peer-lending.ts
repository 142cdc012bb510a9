/**
 * What a node's programs lent, and what of it was copied after all, for each peer: the counters of the zero-copy engine (net/counters.ts), which all
 * connections with one address share, so that they outlive each of them.
 *
 * There are as many as the node has had peers of late. Beyond a limit, those without a connection, and with no page at the kernel, are added
 * up.
 */
import { addCounters, type CopyCause, type ZerocopyCounters, zerocopyCounters } from '../net/counters.ts';
import { TCP_THRESHOLD_BYTES, type ZerocopyMode } from '../net/policy.ts';

/** As many as limits.peers by default. */
export const PEERS_KEPT = 1024;

interface Entry {
  readonly counters: ZerocopyCounters;
  connections: number;
}

export class PeerLending {
  readonly mode: ZerocopyMode;
  readonly thresholdBytes: number;
  readonly #peers = new Map<string, Entry>();
  readonly #gone = zerocopyCounters();

  constructor(mode: ZerocopyMode = 'auto', thresholdBytes: number = TCP_THRESHOLD_BYTES) {
    this.mode = mode;
    this.thresholdBytes = thresholdBytes;
  }

  /** Of all connections with this address. */
  with(address: string): ZerocopyCounters {
    return this.#entry(address).counters;
  }

  /** A connection that counts there was made. */
  opened(address: string): void {
    this.#entry(address).connections += 1;
  }

  /** It is closed; what it lent may still be with the kernel. */
  closed(address: string): void {
    this.#entry(address).connections -= 1;
  }

  /** A message was to be lent, and is copied before any connection is asked. */
  copied(address: string, bytes: number, cause: CopyCause): void {
    const counters = this.with(address);
    counters.fallbackBytes += bytes;
    counters.copied[cause] += bytes;
  }

  /** Sums, but for `pinnedBytesMax`: that is the most of one peer. */
  total(): ZerocopyCounters {
    const all = zerocopyCounters();
    addCounters(all, this.#gone);
    for (const { counters } of this.#peers.values()) addCounters(all, counters);
    return all;
  }

  *peers(): IterableIterator<readonly [address: string, counters: Readonly<ZerocopyCounters>]> {
    for (const [address, { counters }] of this.#peers) yield [address, counters];
  }

  #entry(address: string): Entry {
    const known = this.#peers.get(address);
    if (known !== undefined) return known;
    if (this.#peers.size >= PEERS_KEPT) this.#forgetOne();
    const entry = { counters: zerocopyCounters(), connections: 0 };
    this.#peers.set(address, entry);
    return entry;
  }

  /** The one that has been known longest of those of which nothing more can be counted. */
  #forgetOne(): void {
    for (const [address, { counters, connections }] of this.#peers) {
      if (connections > 0 || counters.pinnedBytes > 0) continue;
      addCounters(this.#gone, counters);
      this.#peers.delete(address);
      return;
    }
  }
}
