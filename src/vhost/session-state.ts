/** What a session knows of its front-end and device: the state that the handlers of messages read and write. */
import {
  type Features,
  has,
  NO_FEATURES,
  VIRTIO_CONFIG_S_FEATURES_OK,
  VIRTIO_F_EVENT_IDX,
} from '../wire/virtio.ts';
import { type Offer, offeredFeatures, offeredProtocolFeatures } from './features.ts';
import { GuestMemory, type MemoryCalls } from './memory.ts';
import { Rings } from './rings.ts';
import type { SessionHost } from './session-host.ts';

/** Of guest memory that one front-end may have us map; it costs page tables when it is touched, and address space at once. */
const REGION_BYTES_MAX: number = 64 * 2 ** 30;

export interface SessionOptions {
  readonly offer: Offer;
  readonly regionBytesMax?: number;
}

/** System calls of a session; those of MemoryCalls too. */
export interface SessionCalls extends MemoryCalls {
  /** Writes a message to a channel of the front-end's, or loses it. Never waits. */
  notify(fd: number, bytes: Uint8Array): void;
}

export class SessionState {
  readonly host: SessionHost;
  readonly calls: SessionCalls;
  readonly offer: Offer;
  readonly offered: Features;
  readonly offeredProtocol: Features;
  readonly memory: GuestMemory;
  readonly rings: Rings;
  /** What the driver accepted; null until it did. */
  features: Features | null = null;
  /** The last SET_FEATURES was refused: FEATURES_OK does not stay, and no ring starts. */
  refused = false;
  protocolFeatures: Features = NO_FEATURES;
  /** The channel to the front-end, or -1. */
  backendFd = -1;
  #status = 0;

  constructor(host: SessionHost, options: SessionOptions, calls: SessionCalls) {
    this.host = host;
    this.calls = calls;
    this.offer = options.offer;
    this.offered = offeredFeatures(options.offer);
    this.offeredProtocol = offeredProtocolFeatures(options.offer.frontend);
    this.memory = new GuestMemory(calls, options.regionBytesMax ?? REGION_BYTES_MAX);
    this.rings = new Rings({
      host,
      count: 2 * options.offer.pairs,
      memory: this.memory,
      haltsDisabled: options.offer.frontend === 'uml',
      isSettled: () => this.isSettled,
      eventIdx: () => this.features !== null && has(this.features, VIRTIO_F_EVENT_IDX),
    });
  }

  /** The driver has accepted features, and we have accepted that. */
  get isSettled(): boolean {
    return this.features !== null && !this.refused;
  }

  get status(): number {
    return this.#status;
  }

  /** A driver reads FEATURES_OK back, to see whether its choice was accepted (virtio 1.2, section 3.1.1). */
  set status(value: number) {
    this.#status = this.isSettled ? value : value & ~VIRTIO_CONFIG_S_FEATURES_OK;
  }

  setBackendFd(fd: number): void {
    if (this.backendFd >= 0) this.calls.close(this.backendFd);
    this.backendFd = fd;
  }
}
