/**
 * Congestion: a receiver says which of its ports are full, in a map of 65,536 bits per address, and senders hold back.
 *
 * A port becomes congested when more than the receive buffer is queued, and is free again below half of it; so the map
 * does not flap with every message (rds_recv_rcvbuf_delta). The limit is soft: what is on its way is still accepted.
 */
import { clearPort, createMap, setPort, testPort } from '../wire/rds-congestion.ts';

const emptyMap: Uint8Array = createMap();

/** The map of an address of ours: what its peers are told. */
export class LocalMap {
  readonly bits: Uint8Array = createMap();
  readonly #changed: () => void;

  /** `changed` queues the map on every connection of the address. */
  constructor(changed: () => void) {
    this.#changed = changed;
  }

  congested(port: number): boolean {
    return testPort(this.bits, port);
  }

  get isEmpty(): boolean {
    return Buffer.compare(this.bits, emptyMap) === 0;
  }

  /** Updates the bit of `port` for `queuedBytes` against `limitBytes`. */
  update(port: number, queuedBytes: number, limitBytes: number): void {
    const congested = testPort(this.bits, port);
    if (!congested && queuedBytes > limitBytes) {
      setPort(this.bits, port);
      this.#changed();
    } else if (congested && queuedBytes < limitBytes / 2) this.clear(port);
  }

  /** The port is free, or its socket closed. */
  clear(port: number): void {
    if (!testPort(this.bits, port)) return;
    clearPort(this.bits, port);
    this.#changed();
  }
}

/** The map of a peer, as it last told. Empty until the first one comes, and then mostly, too: so it is kept only while it is not. */
export class PeerMap {
  #bits: Uint8Array | null = null;

  replace(map: Uint8Array): void {
    if (Buffer.compare(map, emptyMap) === 0) {
      this.#bits = null;
      return;
    }
    this.#bits ??= createMap();
    this.#bits.set(map);
  }

  congested(port: number): boolean {
    return this.#bits !== null && testPort(this.#bits, port);
  }
}
