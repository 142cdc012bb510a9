/**
 * A tap as a port: a network device of this host, whose other end we are.
 *
 *   const port = new TapPort({ name: 'lan', device: 'tap0', queues: 2 });
 *
 * What is sent here the host receives, copied: a tap takes no lent pages from user space (tun_get_user), and gives no
 * completion. It takes all offloads in return, behind a vnet header of 12 bytes: a segment of 64 KiB is one copy and
 * one call. The host is the judge of these headers: what it refuses (EINVAL), or cannot take (EIO: the device is down), is
 * dropped and counted, and never the end of anything.
 *
 * With several queues each flow has one, by its hash; the kernel remembers from there where to send what comes back
 * (tun_flow_update).
 */
import { checkInteger } from '../core/arguments.ts';
import type { Clock } from '../core/clock.ts';
import { FRAME_BYTES, FRAME_WORDS, type FrameTable } from '../core/frames.ts';
import { createHostTable } from '../core/host-table.ts';
import {
  type Capability,
  type FrameReceiver,
  OFFLOAD_ALL,
  type Port,
  type PortCounters,
  portCounters,
} from '../core/port.ts';
import { type Native, native } from '../sys/binding.ts';
import { openTap, type Tap } from '../sys/tap.ts';
import { ETHERNET_BYTES } from '../wire/ethernet.ts';
import { flowHash } from '../wire/flow.ts';
import { FRAME_BYTES_MAX } from '../wire/stream-frame.ts';
import { VNET_HEADER_BYTES } from '../wire/virtio.ts';
import { writeVnetHeader } from '../wire/vnet.ts';
import { systemClock } from './clock.ts';
import { PacketQueue, type PacketQueueHandler } from './packet-queue.ts';
import { offer } from './receiving.ts';

export interface TapPortOptions {
  readonly name: string;
  /** Name of the tap, which is made if it is not there. Of a macvtap: its name, or the path of its file. */
  readonly device: string;
  /** Descriptors to open, each a queue: 1 if left out. */
  readonly queues?: number;
  /** OFFLOAD_ bits that the receiver can do with: what the host may leave undone in what it sends. None if left out. */
  readonly offloads?: number;
  /** Bytes of the longest packet: 1500 if left out. It is not set anywhere; the device's own decides. */
  readonly mtu?: number;
  readonly clock?: Clock;
}

const BATCH_FRAMES = 32;
/** Without offloads no frame is longer than the device's MTU, which may be changed at any time: room for jumbo frames. */
const PLAIN_FRAME_BYTES = 16 * 1024;
/** The kernel's own limit (MAX_TAP_QUEUES). */
const QUEUES_MAX = 256;
/** A frame that fills its slot counts as cut. */
const LONG_FRAME_BYTES = FRAME_BYTES_MAX + 2;

export class TapPort implements Port, PacketQueueHandler {
  readonly name: string;
  readonly capability: Capability;
  readonly counters: PortCounters = portCounters();
  receiver: FrameReceiver | null = null;
  onWritable: (() => void) | null = null;
  onChange: (() => void) | null = null;
  isUp = false;
  /** The device's name, once it is open: the kernel may have chosen the number in it. */
  device: string;
  readonly #options: TapPortOptions;
  readonly #clock: Clock;
  readonly #openQueue: OpenQueue;
  readonly #sys: Native;
  readonly #queues: PacketQueue[] = [];
  #prefixes: Uint8Array = new Uint8Array(0);

  /** `openQueue` opens one of the queues; it throws what goes wrong. */
  constructor(options: TapPortOptions, openQueue: OpenQueue = openTapQueue, sys: Native = native()) {
    const { queues = 1, mtu = 1500 } = options;
    checkInteger('options.queues', queues, 1, QUEUES_MAX);
    this.name = options.name;
    this.device = options.device;
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#openQueue = openQueue;
    this.#sys = sys;
    this.capability = {
      zeroCopy: 'never',
      thresholdBytes: Number.POSITIVE_INFINITY,
      offloads: OFFLOAD_ALL,
      mtu,
    };
  }

  send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    if (!this.isUp) return this.#drop(from, count);
    this.#writePrefixes(table, which, from, count);
    let at = from;
    while (at < count) {
      if (isShort(table, which[at] as number)) {
        at = this.#drop(at, at + 1);
        continue;
      }
      const queue = this.#queueOf(table, which[at] as number);
      const end = this.#runEnd(table, which, at, count, queue);
      at = queue.send(table, which, at, end);
      if (at < end) break;
    }
    return at;
  }

  resume(): void {
    for (const queue of this.#queues) queue.resume();
  }

  /** Opens the device. Throws EPERM, EBUSY, ...; all queues or none. */
  async open(): Promise<void> {
    if (this.#queues.length > 0) return;
    const { queues = 1 } = this.#options;
    try {
      for (let i = 0; i < queues; i++) {
        const { fd, name } = this.#openQueue(this.device, this.#options);
        this.device = name;
        this.#addQueue(fd);
      }
    } catch (error) {
      this.#closeQueues();
      throw error;
    }
    this.isUp = true;
    this.onChange?.();
  }

  async close(): Promise<void> {
    this.#gone();
  }

  // --- what a queue says ---

  deliver(table: FrameTable): number {
    return offer(this, this.counters, table);
  }

  writable(): void {
    this.onWritable?.();
  }

  /** Whatever a tap says but "not now": the device was removed. */
  error(): boolean {
    this.#gone();
    return false;
  }

  #addQueue(fd: number): void {
    const { offloads = 0 } = this.#options;
    const sys = this.#sys;
    try {
      const headBytes = offloads === 0 ? PLAIN_FRAME_BYTES : LONG_FRAME_BYTES;
      const table = createHostTable(BATCH_FRAMES, headBytes);
      const queue = new PacketQueue({
        fd,
        clock: this.#clock,
        counters: this.counters,
        table,
        read: () => sys.framesRead(fd, table.bytes, BATCH_FRAMES, VNET_HEADER_BYTES),
        write: (from, which, at, count) =>
          sys.framesWrite(fd, from.bytes, which, at, count, this.#prefixes, VNET_HEADER_BYTES),
        handler: this,
      });
      this.#queues.push(queue);
    } catch (error) {
      sys.close(fd);
      throw error;
    }
  }

  #gone(): void {
    this.#closeQueues();
    if (!this.isUp) return;
    this.isUp = false;
    this.onChange?.();
    // Whoever waits for room hears that there is none to wait for.
    this.onWritable?.();
  }

  #closeQueues(): void {
    for (const queue of this.#queues.splice(0)) {
      queue.close();
      this.#sys.close(queue.fd);
    }
  }

  #queueOf(table: FrameTable, frame: number): PacketQueue {
    const queues = this.#queues;
    const index = queues.length === 1 ? 0 : flowHash(table, frame) % queues.length;
    return queues[index] as PacketQueue;
  }

  /** How far frames go to the same queue: they are taken in order, so one that waits holds back those of other queues. */
  #runEnd(table: FrameTable, which: Uint32Array, at: number, count: number, queue: PacketQueue): number {
    let end = at + 1;
    while (end < count) {
      const frame = which[end] as number;
      if (isShort(table, frame) || this.#queueOf(table, frame) !== queue) break;
      end += 1;
    }
    return end;
  }

  #writePrefixes(table: FrameTable, which: Uint32Array, from: number, count: number): void {
    const bytes = count * VNET_HEADER_BYTES;
    if (bytes > this.#prefixes.length) this.#prefixes = new Uint8Array(2 * bytes);
    for (let i = from; i < count; i++) {
      writeVnetHeader(this.#prefixes, i * VNET_HEADER_BYTES, table, which[i] as number);
    }
  }

  #drop(from: number, to: number): number {
    this.counters.txDropped += to - from;
    return to;
  }
}

/** Opens one queue of a device. */
export type OpenQueue = (device: string, options: TapPortOptions) => Tap;

function openTapQueue(name: string, { queues = 1, offloads = 0 }: TapPortOptions): Tap {
  return openTap({ name, multiQueue: queues > 1, offloads });
}

/** Less than an Ethernet header: drivers of real devices have read past the end of such frames (CVE-2024-41090, -41091). */
function isShort(table: FrameTable, frame: number): boolean {
  return (table.records[frame * FRAME_WORDS + FRAME_BYTES] as number) < ETHERNET_BYTES;
}
