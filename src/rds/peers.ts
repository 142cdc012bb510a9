/**
 * The peers of a node: who has a place, who may be forgotten to make one, and which are not read because too much is held.
 *
 * When the node holds too much, each peer may still hold its share: some that never end what they began cannot keep all others
 * from being read. So no more than twice the limit is held in all.
 */
import type { RdsCounters } from './counters.ts';
import type { Peer } from './peer.ts';

const FORGET_AFTER_MS = 60_000;

export class PeerTable {
  readonly #limits: { readonly peers: number; readonly heldBytes: number };
  readonly #peers = new Map<string, Peer>();
  readonly #paused = new Set<Peer>();
  #heldBytes = 0;

  constructor(limits: { readonly peers: number; readonly heldBytes: number }) {
    this.#limits = limits;
  }

  get size(): number {
    return this.#peers.size;
  }

  /** Received bytes that wait to be read, of all peers and of this process. */
  get heldBytes(): number {
    return this.#heldBytes;
  }

  has(address: string): boolean {
    return this.#peers.has(address);
  }

  get(address: string): Peer | undefined {
    return this.#peers.get(address);
  }

  values(): IterableIterator<Peer> {
    return this.#peers.values();
  }

  add(peer: Peer): void {
    this.#peers.set(peer.address, peer);
  }

  delete(peer: Peer): void {
    this.#peers.delete(peer.address);
    this.#paused.delete(peer);
  }

  /** There is room for one more, perhaps in the place of one that may be forgotten. */
  hasPlace(now: number): boolean {
    return this.#peers.size < this.#limits.peers || this.#forgettable(now) !== null;
  }

  /** Makes room for a peer, if need be by forgetting one that has been away for long and has nothing queued. */
  makePlace(now: number, counters: RdsCounters): boolean {
    if (this.#peers.size < this.#limits.peers) return true;
    const peer = this.#forgettable(now);
    if (peer === null) return false;
    counters.peers_forgotten += 1;
    peer.shutdown();
    return true;
  }

  /** The peer is not read until there is room again. */
  paused(peer: Peer): void {
    this.#paused.add(peer);
  }

  /** Bytes held changed; how many one peer may hold now: Infinity while all together are not too many. */
  held(delta: number): number {
    this.#heldBytes += delta;
    if (delta < 0 && this.#paused.size > 0) {
      // Resume at three quarters, so that lanes do not stop and go with every message.
      const shareBytes = this.#shareBytes(this.#heldBytes * 4 > this.#limits.heldBytes * 3);
      for (const peer of this.#paused) if (peer.resumeIfRoom(shareBytes)) this.#paused.delete(peer);
    }
    return this.#shareBytes(this.#heldBytes > this.#limits.heldBytes);
  }

  #shareBytes(isFull: boolean): number {
    return isFull ? this.#limits.heldBytes / Math.max(1, this.#peers.size) : Number.POSITIVE_INFINITY;
  }

  #forgettable(now: number): Peer | null {
    for (const peer of this.#peers.values()) if (peer.isForgotten(now, FORGET_AFTER_MS)) return peer;
    return null;
  }
}
