/**
 * A port over datagrams, a frame in each: QEMU's `-netdev dgram`, over UDP or Unix sockets.
 *
 *   const port = new DgramPort({
 *     name: 'vm', local: { path: '/run/a.sock' }, remote: { path: '/run/b.sock' },
 *   });
 *
 * Both ends are fixed, and only what comes from the remote one is received. Nothing is lent: a datagram of 64 KiB that goes
 * through a device of a smaller MTU is put together again to be cut into fragments, which copies it (ip_fragment).
 *
 * A peer at a Unix socket has room for a handful of datagrams (net.unix.max_dgram_qlen, 10 as a rule), as long as it is not connected to
 * us, which QEMU is not. So a burst waits here, up to 512 KiB of it, and goes on when the peer has read.
 *
 * A datagram that nobody takes (ECONNREFUSED) is counted, and `lastError` says so until something comes from there. The peer of a Unix
 * socket may come later, or again with another socket of the same name: it is looked for every 250 ms, until it is there and when a
 * datagram was refused; meanwhile there is no carrier.
 */
import { unlinkSync } from 'node:fs';
import type { Clock } from '../core/clock.ts';
import { errnoError, errnoOf, ZerotxError } from '../core/errors.ts';
import { FRAME_BYTES, FRAME_STATUS, FRAME_WORDS, type FrameTable } from '../core/frames.ts';
import { createHostTable } from '../core/host-table.ts';
import {
  type Capability,
  type FrameReceiver,
  type Port,
  type PortCounters,
  portCounters,
} from '../core/port.ts';
import { WaitingRoom } from '../core/waiting-room.ts';
import { type Native, native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import { AF_UNIX, SO_ERROR, SO_RCVBUF, SO_SNDBUF, SOCK_DGRAM, SOL_SOCKET } from '../sys/constants.ts';
import { ETHERNET_BYTES } from '../wire/ethernet.ts';
import { encodeSockaddrUn } from '../wire/sockaddr.ts';
import { FRAME_BYTES_MAX } from '../wire/stream-frame.ts';
import { resolveHost } from './address.ts';
import { systemClock } from './clock.ts';
import { PacketQueue, type PacketQueueHandler } from './packet-queue.ts';
import { offer } from './receiving.ts';

/** Host (a name, or an IP address) and port of UDP; or the path of a Unix socket. */
export type DgramAddress = { readonly address: string; readonly port: number } | { readonly path: string };

export interface DgramOptions {
  readonly name: string;
  readonly local: DgramAddress;
  readonly remote: DgramAddress;
  /** Bytes of the longest packet. Left out: what a UDP datagram holds, less Ethernet header and VLAN tag. */
  readonly mtu?: number;
  /** SO_SNDBUF and SO_RCVBUF: 1 MiB if left out, as far as the system allows. */
  readonly bufferBytes?: number;
  readonly clock?: Clock;
}

/** 65,507 less 18. */
const MTU_MAX = 65_489;
const BUFFER_BYTES = 1024 * 1024;
const BATCH_FRAMES = 32;
const LOOK_MS = 250;
const ROOM_FRAMES = 256;
const NO_PREFIXES = new Uint8Array(0);
const EADDRINUSE = -errnoOf('EADDRINUSE');
const ECONNREFUSED = -errnoOf('ECONNREFUSED');

export class DgramPort implements Port, PacketQueueHandler {
  readonly name: string;
  readonly capability: Capability;
  readonly counters: PortCounters = portCounters();
  receiver: FrameReceiver | null = null;
  onWritable: (() => void) | null = null;
  onChange: (() => void) | null = null;
  isUp = false;
  /** Datagrams that nobody took, as far as we were told. */
  refused = 0;
  /** Why there is no carrier, or that nobody takes our datagrams; null: somebody does, as far as we know. */
  lastError: Error | null = null;
  readonly #options: DgramOptions;
  readonly #clock: Clock;
  readonly #sys: Native = native();
  #queue: PacketQueue | null = null;
  readonly #room = new WaitingRoom(ROOM_FRAMES);
  #cancelLook: (() => void) | null = null;

  /** Throws EINVAL when one end is UDP and the other is not. */
  constructor(options: DgramOptions) {
    const { local, remote, mtu = MTU_MAX } = options;
    if ('path' in local !== 'path' in remote) {
      throw new ZerotxError(
        'EINVAL',
        `dgram port ${options.name}: one end is a Unix socket, the other is not`,
      );
    }
    this.name = options.name;
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.capability = { zeroCopy: 'never', thresholdBytes: Number.POSITIVE_INFINITY, offloads: 0, mtu };
  }

  /** The UDP port it is bound to; 0 for a Unix socket. */
  get localPort(): number {
    return this.#queue === null || 'path' in this.#options.local
      ? 0
      : calls.localAddress(this.#queue.fd).port;
  }

  send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    const queue = this.#queue;
    if (queue === null || !this.isUp) return this.#drop(from, count);
    let at = from;
    while (at < count) {
      let end = at;
      while (end < count && !isNone(table, which[end] as number)) end += 1;
      if (end === at) at = this.#drop(at, at + 1);
      else {
        at = this.#room.count > 0 ? at : this.#sendNow(queue, table, which, at, end);
        at = this.#keep(table, which, at, end);
        if (at < end) break;
      }
    }
    return at;
  }

  #sendNow(queue: PacketQueue, table: FrameTable, which: Uint32Array, from: number, end: number): number {
    const errors = this.counters.txErrors;
    const at = queue.send(table, which, from, end);
    if (this.counters.txErrors > errors) this.#wasRefused(table, which, from, at);
    return at;
  }

  /** What there was no room for at a Unix peer waits here. Other sockets have buffers of their own. */
  #keep(table: FrameTable, which: Uint32Array, from: number, end: number): number {
    if (!('path' in this.#options.local)) return from;
    let at = from;
    while (at < end && this.#room.add(table, which[at] as number)) at += 1;
    return at;
  }

  resume(): void {
    this.#queue?.resume();
  }

  /** Binds, and connects if the peer is there. Throws what bind(2) refuses. */
  async open(): Promise<void> {
    if (this.#queue !== null) return;
    const { local, remote, bufferBytes = BUFFER_BYTES } = this.#options;
    const sys = this.#sys;
    const fd = 'path' in local ? bindPath(sys, local.path) : await bindUdp(local, remote);
    try {
      sys.setsockoptInt(fd, SOL_SOCKET, SO_SNDBUF, bufferBytes);
      sys.setsockoptInt(fd, SOL_SOCKET, SO_RCVBUF, bufferBytes);
      const headBytes = Math.min(FRAME_BYTES_MAX, this.capability.mtu + 18);
      const table = createHostTable(BATCH_FRAMES, headBytes);
      this.#queue = new PacketQueue({
        fd,
        clock: this.#clock,
        counters: this.counters,
        table,
        read: () => sys.framesRecvmmsg(fd, table.bytes, BATCH_FRAMES, NO_PREFIXES, 0, NO_PREFIXES),
        write: (frames, which, at, count) =>
          sys.framesSendmmsg(fd, frames.bytes, which, at, count, NO_PREFIXES, 0),
        handler: this,
      });
    } catch (error) {
      sys.close(fd);
      throw error;
    }
    if ('path' in remote) this.#look(remote.path);
    else this.#setUp(true);
  }

  async close(): Promise<void> {
    this.#cancelLook?.();
    this.#cancelLook = null;
    const queue = this.#queue;
    if (queue === null) return;
    this.#queue = null;
    this.#discard();
    queue.close();
    this.#sys.close(queue.fd);
    const { local } = this.#options;
    if ('path' in local) unlink(local.path);
    this.#setUp(false);
  }

  // --- what the queue says ---

  deliver(table: FrameTable): number {
    if (this.lastError !== null) this.#say(null);
    return offer(this, this.counters, table);
  }

  writable(): void {
    const queue = this.#queue;
    const room = this.#room;
    if (room.count > 0 && queue !== null) {
      room.leave(this.#sendNow(queue, room.table, room.which, room.first, room.table.count));
    }
    if (room.count === 0) this.onWritable?.();
  }

  /** What became of an earlier datagram: the socket is as good as before. */
  error(errno: number): boolean {
    const fd = (this.#queue as PacketQueue).fd;
    const told = errno === 0 ? -this.#sys.getsockoptInt(fd, SOL_SOCKET, SO_ERROR) : errno;
    if (told === ECONNREFUSED) {
      this.refused += 1;
      this.#say(told);
    }
    return true;
  }

  /** Tells whoever listens when it becomes so, or is so no more. */
  #say(errno: number | null): void {
    const wasTold = this.lastError !== null;
    this.lastError = errno === null ? null : errnoError(errno, 'send');
    // Not now: this may be the middle of somebody's send().
    if (wasTold !== (errno !== null)) this.#clock.soon(() => this.onChange?.());
  }

  #wasRefused(table: FrameTable, which: Uint32Array, from: number, to: number): void {
    for (let i = from; i < to; i++) {
      const status = table.records[(which[i] as number) * FRAME_WORDS + FRAME_STATUS] as number;
      if (status !== -ECONNREFUSED) continue;
      this.refused += 1;
      this.#say(ECONNREFUSED);
    }
    const { remote } = this.#options;
    if ('path' in remote) this.#lookLater(remote.path);
  }

  /** Connects to a Unix socket, or looks again. */
  #look(path: string): void {
    this.#cancelLook = null;
    if (this.#queue === null) return;
    const result = this.#sys.connect(this.#queue.fd, encodeSockaddrUn(path));
    if (result < 0) {
      this.#lookLater(path);
      this.#discard();
    }
    this.lastError = result < 0 ? errnoError(result, 'connect', { address: path }) : null;
    this.#setUp(result >= 0);
  }

  /** Nobody is there for what waits. */
  #discard(): void {
    this.#drop(0, this.#room.count);
    this.#room.clear();
  }

  #lookLater(path: string): void {
    this.#cancelLook ??= this.#clock.after(LOOK_MS, () => this.#look(path));
  }

  #setUp(on: boolean): void {
    if (this.isUp === on) return;
    this.isUp = on;
    this.onChange?.();
    if (!on) this.onWritable?.();
  }

  #drop(from: number, to: number): number {
    this.counters.txDropped += to - from;
    return to;
  }
}

function isNone(table: FrameTable, frame: number): boolean {
  const bytes = table.records[frame * FRAME_WORDS + FRAME_BYTES] as number;
  return bytes < ETHERNET_BYTES || bytes > FRAME_BYTES_MAX;
}

async function bindUdp(local: DgramAddress, remote: DgramAddress): Promise<number> {
  const from = local as { address: string; port: number };
  const to = remote as { address: string; port: number };
  const [fromIp, toIp] = [await resolveHost(from.address), await resolveHost(to.address)];
  const fd = calls.socketFor(fromIp, SOCK_DGRAM);
  try {
    calls.bind(fd, fromIp, from.port);
    calls.connect(fd, toIp, to.port);
    return fd;
  } catch (error) {
    native().close(fd);
    throw error;
  }
}

/** A name that a process left behind is taken over; one that is in use is not. */
function bindPath(sys: Native, path: string): number {
  const name = encodeSockaddrUn(path);
  const fd = calls.socket(AF_UNIX, SOCK_DGRAM);
  let result = sys.bind(fd, name);
  if (result === EADDRINUSE && sys.connect(fd, name) === ECONNREFUSED) {
    unlink(path);
    result = sys.bind(fd, name);
  }
  if (result === 0) return fd;
  sys.close(fd);
  throw errnoError(result, 'bind', { address: path });
}

function unlink(path: string): void {
  if (path.startsWith('\0')) return;
  try {
    unlinkSync(path);
  } catch {
    // Somebody has removed it.
  }
}
