/**
 * What the vhost-user protocol asks of the device behind it: the one interface between the session, which knows messages
 * and their order, and whoever has queues and frames.
 *
 * The session keeps the state of rings as the protocol has it (sizes, addresses, started, enabled), finds out when a ring can
 * run, and has its addresses translated; the host only runs rings. Its promises:
 *
 * - One call at a time. While a call's promise is pending no other call comes but closed(), and no
 *   further message is read from the front-end; what it sent meanwhile waits in the socket.
 * - startRing() for a stopped ring only, with memory for all three parts; ringMoved(), enableRing() and stopRing() for a running one only.
 * - setFeatures() while no ring runs; before the first startRing().
 * - The host does not end the session from within a call; at any other time it may.
 * - A descriptor given to the host is the host's to close, at the latest in closed().
 *
 * An answer is 0, or an errno (positive) which the front-end gets as a refusal if it asked for an acknowledgement.
 */
import type { Features } from '../wire/virtio.ts';
import type { MemoryLease } from './lease.ts';
import type { RingMemory } from './queue.ts';

/** 0 or a positive errno, at once or when the work behind it is done. */
export type Answer = number | Promise<number>;

/** One ring as the session hands it over. Even indexes receive (frames go to the guest), odd ones transmit. */
export interface RingStart {
  readonly index: number;
  /** Entries: a power of two, at most RING_SIZE_MAX. */
  readonly size: number;
  /** Where to go on in the available ring (u16). The used index is what the used ring says. */
  readonly base: number;
  /**
   * False: the ring runs, but frames of a transmit ring are taken and dropped, their descriptors returned, and a receive
   * ring gets nothing (vhost-user specification, "Ring states").
   */
  readonly enabled: boolean;
  readonly memory: RingMemory;
  /** The memory that the ring's descriptors point into. */
  readonly lease: MemoryLease;
}

export interface SessionHost {
  /** What the driver accepted, without bit 30; the session has checked that it was offered, and dependencies. */
  setFeatures(features: Features): number;

  startRing(ring: RingStart): void;
  /**
   * The memory table changed under a running ring: the same ring at other addresses, or in another space. Frames of it that
   * were read from the old memory and are neither sent nor lent must be read again; tails that are lent stay valid while
   * their lease is held. The old views are detached when this returns.
   */
  ringMoved(index: number, memory: RingMemory, lease: MemoryLease): void;
  /**
   * Stops a ring: takes no more, waits for what is lent (with a deadline), returns what is done. Resolves to the base that the next
   * owner of the ring goes on from: the first descriptor that was not returned. Afterwards the ring's memory is not touched.
   */
  stopRing(index: number): number | Promise<number>;
  /** Switches a running ring on or off. Off: resolves when the ring is quiet, since the ack is all that a front-end waits for. */
  enableRing(index: number, on: boolean): Answer;

  /**
   * Descriptors of a ring, running or not: -1 for none (the ring is polled; the driver polls). The descriptor given before, if
   * any, is closed by the host. Any kind of file may come: it is refused when it cannot be used, and closed all the same.
   * A fresh call descriptor is signalled once when the ring runs: the driver may have missed an interrupt of the last owner.
   */
  setKick(index: number, fd: number): number;
  setCall(index: number, fd: number): number;
  setErr(index: number, fd: number): number;

  /** Device status as the driver sets it (virtio 2.1), without FEATURES_OK if features were refused. 0 is a reset: rings are stopped. */
  setStatus(status: number): void;
  /** RESET_DEVICE: rings are stopped and disabled already, and none starts before features are set again. */
  reset(): void;
  /** SEND_RARP: announce this address (6 bytes) on the network, after a migration. */
  sendRarp(mac: Uint8Array): number;
  /** 68 to 65,535. */
  setMtu(mtu: number): number;
  /** struct virtio_net_config, VIRTIO_NET_CONFIG_BYTES of it, for front-ends that take it from us. */
  config(): Uint8Array;

  /**
   * The connection is over, for whatever reason (null: the front-end closed it). Rings stop without a word from the
   * protocol; all descriptors are closed; leases are released as their frames complete. No call comes after this one.
   */
  closed(error: Error | null): void;
}
