/**
 * What the cells over vhost-user share: frames as a guest's TCP makes them, and a driver that keeps a device supplied.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { FrameSet, Vnet } from 'zerotx/vhost';
import { VhostUserFrontend } from 'zerotx/vhost';
import { type Counters, numberOption, type Options, textOption } from './cell.ts';

/** Ethernet, IPv4 and TCP without options. */
export const HEADER_BYTES = 54;
/** Longer frames are TCP segments that somebody else is to cut. */
const PLAIN_BYTES_MAX = 1514;
const IP_AT = 14;
const TCP_AT = 34;
const TCP_CHECKSUM_OFFSET = 16;
const SEGMENT_BYTES = 1446;
/** A Linux guest cuts frames of 62,000 bytes into 11 pieces on average. */
const PIECE_BYTES = 5600;
/** virtio_net_hdr: NEEDS_CSUM, and TCPV4 for what is to be cut (virtio 1.2, section 5.1.6). */
const needsChecksum: Vnet = { flags: 1, csumStart: TCP_AT, csumOffset: TCP_CHECKSUM_OFFSET };
const needsCutting: Vnet = { ...needsChecksum, gsoType: 1, hdrLen: HEADER_BYTES, gsoSize: SEGMENT_BYTES };
/** VIRTIO_F_IN_ORDER, bit 35, and all that a driver of ours accepts by itself. */
const withInOrder = { lo: 0xffff_ffff, hi: 1 << 3 };

export const MACS = {
  sender: [0x02, 0, 0, 0, 0, 0x01],
  receiver: [0x02, 0, 0, 0, 0, 0x02],
  slow: [0x02, 0, 0, 0, 0, 0x03],
} as const;

/** A folder for sockets that ends with this process. */
export function socketFolder(): { path(name: string): string; remove(): void } {
  const folder = mkdtempSync(join(tmpdir(), 'zerotx-bench-'));
  const remove = (): void => {
    process.off('exit', remove);
    rmSync(folder, { recursive: true, force: true });
  };
  process.once('exit', remove);
  return { path: (name) => join(folder, name), remove };
}

/** A frame of one TCP connection, whose content is of no interest. */
export function writeFrame(frame: Uint8Array, to: readonly number[] = MACS.receiver): void {
  const view = new DataView(frame.buffer, frame.byteOffset, frame.byteLength);
  frame.set([...to, ...MACS.sender, 0x08, 0x00, 0x45]);
  view.setUint16(IP_AT + 2, Math.min(frame.length - IP_AT, 0xffff));
  frame.set([64, 6], IP_AT + 8);
  frame.set([192, 0, 2, 1, 192, 0, 2, 2], IP_AT + 12);
  view.setUint16(TCP_AT, 40_000);
  view.setUint16(TCP_AT + 2, 5001);
  frame[TCP_AT + 12] = 5 << 4;
}

/**
 * A driver side as the options say: `path`, `queueSize`, `memoryBytes`; `polled` for one that looks by itself, and `inOrder`
 * for one that accepts IN_ORDER.
 */
export function connect(options: Options): Promise<VhostUserFrontend> {
  return VhostUserFrontend.connect({
    path: textOption(options, 'path'),
    queueSize: numberOption(options, 'queueSize'),
    memoryBytes: 'memoryBytes' in options ? numberOption(options, 'memoryBytes') : 0,
    polled: options.polled === true,
    ...(options.inOrder === true ? { features: withInOrder } : {}),
  });
}

/**
 * Frames of `frameBytes` in `workingSetBytes`: written once, and never touched again. `asks`: left for the device are the
 * checksum, and of long ones the cutting.
 */
export function frames(
  nic: VhostUserFrontend,
  frameBytes: number,
  workingSetBytes: number,
  asks: boolean,
): FrameSet {
  return nic.prepare({
    frameBytes,
    workingSetBytes,
    pieces: piecesOf(frameBytes),
    ...(asks ? { vnet: frameBytes > PLAIN_BYTES_MAX ? needsCutting : needsChecksum } : {}),
    fill: (frame) => writeFrame(frame),
  });
}

export function piecesOf(frameBytes: number): number {
  return Math.max(1, Math.round(frameBytes / PIECE_BYTES));
}

/** Shared memory that a set takes at most: each frame is on cache lines of its own. */
export function setBytes(workingSetBytes: number): number {
  return workingSetBytes + (1 << 20);
}

/** Sends frames of a set, as many at a time as there is room for, and waits until the device is done with all. */
export class Sender {
  readonly #nic: VhostUserFrontend;
  readonly #set: FrameSet;
  readonly #polled: boolean;
  #left = 0;
  #done: (() => void) | null = null;

  constructor(nic: VhostUserFrontend, set: FrameSet, polled: boolean) {
    this.#nic = nic;
    this.#set = set;
    this.#polled = polled;
    if (!polled) nic.tx.onCompleted = () => this.#more();
  }

  /** Kicks and signals are counted. */
  async send(count: number): Promise<Counters> {
    const before = ringCounters(this.#nic);
    await new Promise<void>((resolve) => {
      this.#left = count;
      this.#done = resolve;
      if (this.#polled) this.#poll();
      else this.#more();
    });
    const after = ringCounters(this.#nic);
    return { kicks: after.kicks! - before.kicks!, signals: after.signals! - before.signals! };
  }

  #more(): void {
    while (this.#left > 0) {
      const sent = this.#nic.tx.sendBatch(this.#set, this.#left);
      if (sent === 0) return;
      this.#left -= sent;
    }
    if (this.#nic.tx.outstanding > 0) return;
    this.#done?.();
    this.#done = null;
  }

  /** Some hundred rounds, and the event loop's turn, which the connection needs, too. */
  #poll(): void {
    for (let round = 0; round < 256 && this.#done !== null; round++) {
      this.#nic.poll();
      this.#more();
    }
    if (this.#done !== null) setImmediate(() => this.#poll());
  }
}

function ringCounters(nic: VhostUserFrontend): Counters {
  const { kicks, signals } = nic.tx.ring.counters;
  return { kicks, signals };
}
