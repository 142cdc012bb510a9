import {
  FRAME_BYTES,
  FRAME_WORDS,
  type FrameTable,
  HEAD_AT,
  TAIL_COUNT,
  VNET_CSUM,
  VNET_FLAGS,
  VNET_GSO,
} from '../../src/core/frames.ts';
import {
  type Capability,
  type FrameReceiver,
  OFFLOAD_ALL,
  type Port,
  type PortCounters,
  portCounters,
} from '../../src/core/port.ts';
import type { Ubuf } from '../../src/core/ubuf.ts';
import { type Frame, GuestTable, type Vnet } from './guest-table.ts';

export interface Sent {
  readonly bytes: Uint8Array;
  readonly vnet: Required<Vnet>;
}

/** Keeps what is sent to it, and offers what it is told to. */
export class FakePort implements Port {
  readonly name: string;
  readonly counters: PortCounters = portCounters();
  capability: Capability = { zeroCopy: 'never', thresholdBytes: 0, offloads: OFFLOAD_ALL, mtu: 1500 };
  receiver: FrameReceiver | null = null;
  onWritable: (() => void) | null = null;
  onChange: (() => void) | null = null;
  isUp = true;
  readonly sent: Sent[] = [];
  /** Sizes of the batches that send() took. */
  readonly batches: number[] = [];
  /** Frames it has room for; they do not come back by themselves. */
  room: number = Number.POSITIVE_INFINITY;
  /** Holds the tails of frames that have one. */
  lends = false;
  readonly held: Ubuf[] = [];
  onSend: (() => void) | null = null;
  resumed = 0;
  onResume: (() => void) | null = null;
  isOpen = false;

  constructor(name: string, capability: Partial<Capability> = {}) {
    this.name = name;
    this.capability = { ...this.capability, ...capability };
  }

  send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    const stop = Math.min(count, from + this.room);
    this.room -= stop - from;
    for (let i = from; i < stop; i++) this.#keep(table, which[i]!);
    this.batches.push(stop - from);
    this.onSend?.();
    return stop;
  }

  /** Frames come out of the port. How many were taken. */
  offer(frames: readonly Frame[] | GuestTable): number {
    const guest = frames instanceof GuestTable ? frames : new GuestTable(frames);
    return this.receiver?.(guest.table, this) ?? -1;
  }

  /** The other side, taken and emptied. */
  take(): Sent[] {
    return this.sent.splice(0);
  }

  change(change: { readonly isUp?: boolean; readonly capability?: Partial<Capability> }): void {
    this.isUp = change.isUp ?? this.isUp;
    this.capability = { ...this.capability, ...change.capability };
    this.onChange?.();
  }

  makeRoom(frames: number): void {
    this.room = frames;
    this.onWritable?.();
  }

  resume(): void {
    this.resumed += 1;
    this.onResume?.();
  }

  async open(): Promise<void> {
    this.isOpen = true;
  }

  async close(): Promise<void> {
    this.isOpen = false;
  }

  #keep(table: FrameTable, frame: number): void {
    const { records } = table;
    const record = frame * FRAME_WORDS;
    const bytes = new Uint8Array(records[record + FRAME_BYTES]!);
    table.owner.gather(frame, bytes);
    const [flags, gso, csum] = [VNET_FLAGS, VNET_GSO, VNET_CSUM].map((word) => records[record + word]!) as [
      number,
      number,
      number,
    ];
    this.sent.push({
      bytes,
      vnet: {
        flags: flags & 0xff,
        gsoType: (flags >>> 8) & 0xff,
        hdrLen: flags >>> 16,
        gsoSize: gso & 0xffff,
        csumStart: gso >>> 16,
        csumOffset: csum & 0xffff,
      },
    });
    if (!this.lends || records[record + TAIL_COUNT] === 0) return;
    const ubuf = table.owner.lend(frame, this);
    if (ubuf !== null) this.held.push(ubuf);
    if (records[record + HEAD_AT]! === 0) throw new Error('no head');
  }
}
