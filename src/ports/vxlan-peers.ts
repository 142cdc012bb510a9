/**
 * Behind which remote end of a VXLAN a MAC address is: learned from what comes, as the kernel's device does
 * (vxlan_snoop), and forgotten after five minutes of silence. Pure: the caller has the clock.
 *
 * Bounded, because whoever is at the other end may invent source addresses without end: when the table is full and nobody
 * in it is silent, a new address stays unknown, and frames for it go to all.
 */
const PEERS_MAX = 4096;
export const PEER_AGE_MS: number = 300 * 1000;
/** lookUp(): to all of them. */
export const EVERYBODY = -1;
/** Between looks for those that fell silent, when the table is full. */
const SWEEP_MS = 1000;

interface Peer {
  remote: number;
  seenMs: number;
}

export class VxlanPeers {
  readonly #peers = new Map<number, Peer>();
  readonly #max: number;
  #sweptMs = Number.NEGATIVE_INFINITY;

  constructor(max: number = PEERS_MAX) {
    this.#max = max;
  }

  get size(): number {
    return this.#peers.size;
  }

  /** A frame from the address at `at` came from `remote`. A group address is nobody's. */
  learn(bytes: Uint8Array, at: number, remote: number, nowMs: number): void {
    if (isGroup(bytes, at)) return;
    const key = keyOf(bytes, at);
    const peer = this.#peers.get(key);
    if (peer !== undefined) {
      peer.remote = remote;
      peer.seenMs = nowMs;
    } else if (this.#peers.size < this.#max || this.#sweep(nowMs)) {
      this.#peers.set(key, { remote, seenMs: nowMs });
    }
  }

  /** The remote end for the address at `at`, or EVERYBODY. */
  lookUp(bytes: Uint8Array, at: number, nowMs: number): number {
    if (isGroup(bytes, at)) return EVERYBODY;
    const peer = this.#peers.get(keyOf(bytes, at));
    return peer === undefined || nowMs - peer.seenMs > PEER_AGE_MS ? EVERYBODY : peer.remote;
  }

  /** Forgets the silent; whether there is room now. Not more often than once a second: it looks at all. */
  #sweep(nowMs: number): boolean {
    if (nowMs - this.#sweptMs < SWEEP_MS) return false;
    this.#sweptMs = nowMs;
    for (const [key, { seenMs }] of this.#peers) {
      if (nowMs - seenMs > PEER_AGE_MS) this.#peers.delete(key);
    }
    return this.#peers.size < this.#max;
  }
}

function isGroup(bytes: Uint8Array, at: number): boolean {
  return ((bytes[at] as number) & 1) !== 0;
}

/** 48 bits: exact in a number. */
function keyOf(bytes: Uint8Array, at: number): number {
  const high = ((bytes[at] as number) << 8) | (bytes[at + 1] as number);
  const low =
    ((bytes[at + 2] as number) << 24) |
    ((bytes[at + 3] as number) << 16) |
    ((bytes[at + 4] as number) << 8) |
    (bytes[at + 5] as number);
  return high * 2 ** 32 + (low >>> 0);
}
