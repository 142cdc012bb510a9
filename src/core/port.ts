/**
 * A port: something that Ethernet frames go into and come out of. A guest's network device, a tap, a stream to another
 * host, a capture file are ports; a switch joins any number of them, a link two.
 *
 * A port says what it can do, as a network device does with its features: whether it lends what it sends on (NETIF_F_ZEROCOPY in
 * Linux), and which offloads it takes; whoever forwards segments and checksums the rest. A loan is asked for by the port, frame
 * by frame (FrameOwner.lend()), and granted or not by who owns the memory.
 */
import type { FrameTable } from './frames.ts';

/** Offloads a frame may still carry when it is given to a port: bits. */
export const OFFLOAD_CSUM = 1;
export const OFFLOAD_TSO4 = 2;
export const OFFLOAD_TSO6 = 4;
export const OFFLOAD_ECN = 8;
export const OFFLOAD_ALL: number = OFFLOAD_CSUM | OFFLOAD_TSO4 | OFFLOAD_TSO6 | OFFLOAD_ECN;

/** `never`: the bytes are copied before send() returns. `large`: lent from thresholdBytes on. `always`: lent whatever they are. */
export type ZerocopyCapability = 'never' | 'large' | 'always';

/** Read anew after onChange. */
export interface Capability {
  readonly zeroCopy: ZerocopyCapability;
  /** Shorter frames are copied. May change with what the port measures. */
  readonly thresholdBytes: number;
  /** OFFLOAD_ bits. */
  readonly offloads: number;
  /** Bytes of the longest packet in a frame, without Ethernet header; TSO frames are cut to it by whoever has the offload. */
  readonly mtu: number;
}

/** Frames and bytes, as ip -s link names them. All count from the port's side: tx is what send() took. */
export interface PortCounters {
  /** What the receiver took. */
  rxFrames: number;
  rxBytes: number;
  /** Frames with nobody to take them; and what was no frame. */
  rxDropped: number;
  rxErrors: number;
  txFrames: number;
  txBytes: number;
  /** Frames for a port that is down, or that sends no such frame; and what the system refused, or whose memory was gone. */
  txDropped: number;
  txErrors: number;
  /** Of txBytes: lent to the kernel, and lent but copied by it after all. */
  txLentBytes: number;
  txKernelCopiedBytes: number;
}

/** Counters that are all 0. */
export function portCounters(): PortCounters {
  return {
    rxFrames: 0,
    rxBytes: 0,
    rxDropped: 0,
    rxErrors: 0,
    txFrames: 0,
    txBytes: 0,
    txDropped: 0,
    txErrors: 0,
    txLentBytes: 0,
    txKernelCopiedBytes: 0,
  };
}

/**
 * Takes the frames that a port received; `table` is valid until it returns. Returns how many it is done with, from the first. Fewer
 * than table.count: the port keeps the rest, or drops it if it cannot, and offers it again after resume().
 */
export type FrameReceiver = (table: FrameTable, from: Port) => number;

export interface Port {
  /** Unique in its switch; what logs and counters call it. */
  readonly name: string;
  readonly capability: Capability;
  readonly counters: PortCounters;
  /** Set by whoever joins ports. Until then received frames are dropped. */
  receiver: FrameReceiver | null;
  /** Called when send() takes frames again after it took fewer than it was given. */
  onWritable: (() => void) | null;
  /** Called when the capability has changed in what guests are told: offloads, MTU, link. */
  onChange: (() => void) | null;
  /** Whether there is a carrier: somebody at the other end. */
  readonly isUp: boolean;
  /**
   * Sends frames `which[from..count)` of `table` (indexes). Returns the index in `which` where it stopped: `count` when
   * all were taken; less means that there is no room now, and onWritable will be called. What cannot be sent at all is dropped and
   * counted, and is taken. Never throws for what a frame contains. FrameOwner.lend() is the only way to keep anything.
   */
  send(table: FrameTable, which: Uint32Array, from: number, count: number): number;
  /** The receiver takes frames again. */
  resume(): void;
  /**
   * Gives back what it was lent, whatever that costs it: somebody has waited for it for too long. Not from within send(). A port whose loans
   * the kernel always ends soon has no need of it.
   */
  recall?(): void;
  /** Starts to receive. */
  open(): Promise<void>;
  /** Stops; resolves when descriptors are closed or handed to the closer. */
  close(): Promise<void>;
}
