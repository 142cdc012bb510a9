/**
 * The receiving end of a UDP socket: many messages per call, each perhaps a run of datagrams that the kernel put together.
 *
 * All sockets of a thread receive into the same area, and what came is copied out of it before any program code runs. Each
 * message gets a buffer of its own, of its length; the datagrams of a run are slices of one buffer. So a program that
 * keeps one datagram keeps at most the 64 KiB of its run.
 *
 * A turn ends after a bounded amount of work, and the rest is taken up in the next turn of the event loop, behind the events
 * of other sockets.
 */
import { errnoOf } from '../core/errors.ts';
import type { Native } from '../sys/binding.ts';
import { decodeSockaddr, SOCKADDR_BYTES } from '../wire/sockaddr.ts';
import { type AddressInfo, addressInfo } from './endpoint.ts';
import { datagramCount } from './segments.ts';

export interface RemoteInfo extends AddressInfo {
  /** Bytes of the message. */
  size: number;
}

export interface Received {
  readonly buffer: Buffer;
  /** Length of the datagrams in it, the last of which may be shorter; its own length if it is one. */
  readonly segmentBytes: number;
  readonly from: AddressInfo;
}

export interface ReceiverSink {
  /** Whether runs of datagrams are delivered undivided. */
  wantsBatches(): boolean;
  /** The program's code runs here, and may throw or close. */
  deliver(received: Received, batch: boolean): void;
  receiveFailed(errno: number): void;
}

export interface ReceiveCounters {
  receivedDatagrams: number;
  receivedBytes: number;
  /** Messages that were longer than any datagram can be: never, unless the kernel says so. */
  cutDatagrams: number;
}

/** Longer than any message: nothing is ever cut. */
const SLOT_BYTES = 65_536;
const SLOTS = 16;
const INFO_WORDS = 4;
/** What one turn takes up at most, give or take one batch. */
const TURN_MESSAGES = 64;
const TURN_BYTES = 1 << 20;

const EAGAIN = -errnoOf('EAGAIN');

interface Area {
  readonly buffer: Buffer;
  readonly info: Uint32Array;
  readonly names: Uint8Array;
}

let shared: Area | undefined;

/** 1 MiB, of which only the pages that were written to are ever memory. */
function area(): Area {
  shared ??= {
    buffer: Buffer.allocUnsafeSlow(SLOTS * SLOT_BYTES),
    info: new Uint32Array(SLOTS * INFO_WORDS),
    names: new Uint8Array(SLOTS * SOCKADDR_BYTES),
  };
  return shared;
}

export class UdpReceiver {
  readonly #sys: Native;
  readonly #fd: number;
  readonly #sink: ReceiverSink;
  readonly #counters: ReceiveCounters;
  /** Copied out and not delivered yet: not empty only while the program's code runs, or after it threw. */
  #inbox: Received[] = [];
  #batches = false;
  #stopped = false;
  /** The last call failed. */
  #failing = false;
  #immediate: NodeJS.Immediate | null = null;
  #refed = true;
  #lastName = '';
  #lastSender: AddressInfo = { address: '', family: 'IPv4', port: 0 };

  constructor(sys: Native, fd: number, counters: ReceiveCounters, sink: ReceiverSink) {
    this.#sys = sys;
    this.#fd = fd;
    this.#counters = counters;
    this.#sink = sink;
  }

  /** Something can be received: an edge, which does not come again. */
  readable(): void {
    if (this.#immediate === null) this.#turn();
  }

  stop(): void {
    this.#stopped = true;
    this.#inbox = [];
    if (this.#immediate !== null) clearImmediate(this.#immediate);
    this.#immediate = null;
  }

  set refed(on: boolean) {
    this.#refed = on;
    if (on) this.#immediate?.ref();
    else this.#immediate?.unref();
  }

  #turn(): void {
    let messages = 0;
    let bytes = 0;
    let more = true;
    try {
      this.#deliver();
      while (!this.#stopped && messages < TURN_MESSAGES && bytes < TURN_BYTES) {
        const count = this.#receive();
        for (const { buffer } of this.#inbox) bytes += buffer.byteLength;
        messages += Math.max(count, this.#inbox.length);
        this.#deliver();
        if (count < SLOTS) {
          more = false;
          break;
        }
      }
    } finally {
      // Also when the program's code threw: what was copied out, and what was not received yet, is still to be delivered.
      if (more && !this.#stopped) this.#later();
    }
  }

  #later(): void {
    this.#immediate = setImmediate(() => {
      this.#immediate = null;
      this.#turn();
    });
    if (!this.#refed) this.#immediate.unref();
  }

  #deliver(): void {
    const inbox = this.#inbox;
    let next = 0;
    try {
      while (next < inbox.length && !this.#stopped) {
        next += 1;
        this.#sink.deliver(inbox[next - 1] as Received, this.#batches);
      }
    } finally {
      if (this.#inbox === inbox) this.#inbox = inbox.slice(next);
    }
  }

  /** Messages received; fewer than SLOTS if nothing more is there. */
  #receive(): number {
    const { buffer, info, names } = area();
    const count = this.#sys.recvBatch(this.#fd, buffer, SLOT_BYTES, 0, info, names);
    if (count < 0) {
      // An ICMP error stands before the datagrams that came, so there may be more; a second error waits for the next event.
      const again = count !== EAGAIN && !this.#failing;
      this.#failing = again;
      if (count !== EAGAIN) this.#sink.receiveFailed(count);
      return again ? SLOTS : 0;
    }
    this.#failing = false;
    this.#batches = this.#sink.wantsBatches();
    for (let i = 0; i < count; i++) this.#take(i);
    return count;
  }

  /** Copies message `i` of the area to the inbox. */
  #take(i: number): void {
    const { buffer: from, info, names } = area();
    const [length = 0, segment = 0, cut, nameLength = 0] = info.subarray(
      INFO_WORDS * i,
      INFO_WORDS * (i + 1),
    );
    const name = names.subarray(SOCKADDR_BYTES * i, SOCKADDR_BYTES * i + nameLength);
    const sender = this.#senderOf(name);
    const buffer = Buffer.from(from.subarray(SLOT_BYTES * i, SLOT_BYTES * i + length));
    const segmentBytes = segment === 0 ? length : Math.min(segment, length);
    this.#counters.receivedBytes += length;
    this.#counters.receivedDatagrams += Math.max(1, datagramCount(length, segmentBytes));
    if (cut === 1) this.#counters.cutDatagrams += 1;
    if (this.#batches || segmentBytes === length) {
      this.#inbox.push({ buffer, segmentBytes, from: sender });
      return;
    }
    for (let start = 0; start < length; start += segmentBytes) {
      this.#inbox.push({ buffer: buffer.subarray(start, start + segmentBytes), segmentBytes, from: sender });
    }
  }

  /** Messages often come from the same sender as the one before. */
  #senderOf(name: Uint8Array): AddressInfo {
    const key = Buffer.from(name.buffer, name.byteOffset, name.byteLength).toString('latin1');
    if (key !== this.#lastName) {
      this.#lastSender = addressInfo(decodeSockaddr(name, name.byteLength));
      this.#lastName = key;
    }
    return this.#lastSender;
  }
}
