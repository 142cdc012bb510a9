/**
 * A VXLAN as a port: frames in UDP datagrams to one remote end, or to several (RFC 7348). It understands itself with the
 * kernel's vxlan device, DPDK and switches.
 *
 *   const port = new VxlanPort({ name: 'dc', vni: 42, remotes: ['192.0.2.7'] });
 *
 *   sent      flow ──▶ one of four sockets, each with a source port of its own, as routers on the way tell flows by it
 *   received  one socket on UDP port 4789, from the remote ends alone and for this VNI alone
 *
 * With several remote ends a frame goes where its destination was learned to be (vxlan-peers.ts), else to all.
 *
 * The tunnel takes no offloads: whoever sends here cuts segments and makes checksums. What gains then is not lending but that runs of
 * frames of one length leave in one call (vxlan-runs.ts). Jumbo frames are lent where that turns out cheaper still (chooser.ts), which it
 * did nowhere yet; smaller ones never, unless it is forced.
 *
 * A veth to a kernel on this host does not carry everything that a wire does: such a kernel leaves the checksums inside to a
 * device that there is not, and does not say so to a socket. Turn that off at its end (ethtool -K DEVICE tx off).
 *
 * Datagrams have an outer checksum, since a run could not be cut without; where the kernel or the device does not cut, it is left out
 * over IPv4 (RFC 7348, section 5). Datagrams are not fragmented here: one that is longer
 * than the device's MTU is dropped and counted, so that MTU must exceed ours by 50 bytes, over IPv6 by 70.
 */
import { isIP } from 'node:net';
import { checkInteger } from '../core/arguments.ts';
import type { Clock } from '../core/clock.ts';
import { ZerotxError } from '../core/errors.ts';
import { FRAME_BYTES, FRAME_STATUS, FRAME_WORDS, type FrameTable, HEAD_AT } from '../core/frames.ts';
import { createHostTable } from '../core/host-table.ts';
import {
  type Capability,
  type FrameReceiver,
  type Port,
  type PortCounters,
  portCounters,
} from '../core/port.ts';
import { type ZerocopyCounters, zerocopyCounters } from '../net/counters.ts';
import type { ZerocopyMode } from '../net/policy.ts';
import { type Native, native } from '../sys/binding.ts';
import { ETHERNET_BYTES, MAC_BYTES } from '../wire/ethernet.ts';
import { flowHash } from '../wire/flow.ts';
import { SOCKADDR_BYTES } from '../wire/sockaddr.ts';
import { encodeVxlan, VNI_MAX, VXLAN_HEADER_BYTES, VXLAN_PORT, vxlanVni } from '../wire/vxlan.ts';
import { DATAGRAM_BEGINS_BYTES, LEND_BYTES_MIN, LendChooser } from './chooser.ts';
import { processCpuMs, systemClock } from './clock.ts';
import { PacketQueue, type PacketQueueHandler } from './packet-queue.ts';
import { offer } from './receiving.ts';
import { EVERYBODY, VxlanPeers } from './vxlan-peers.ts';
import { VxlanRemote } from './vxlan-remote.ts';
import { openVxlanReceiver } from './vxlan-socket.ts';

export interface VxlanOptions {
  readonly name: string;
  readonly vni: number;
  /** IP addresses of the remote ends, of one family. */
  readonly remotes: readonly string[];
  /** IP address of this end: any if left out. */
  readonly local?: string;
  /** UDP port of both ends: 4789 if left out. */
  readonly port?: number;
  /** Bytes of the longest packet inside: 1450 if left out, which fits in 1500 outside. */
  readonly mtu?: number;
  /** Sockets for each remote end: 4 if left out. */
  readonly sockets?: number;
  /** `auto` if left out: lend what is cheaper to lend, by measurement, from 8 KiB on. `force`: lend all frames of 1 KiB or more. */
  readonly zerocopy?: ZerocopyMode;
  /** SO_SNDBUF and SO_RCVBUF: 1 MiB if left out, as far as the system allows. */
  readonly bufferBytes?: number;
  readonly clock?: Clock;
}

export interface VxlanCounters {
  /** Datagrams that are no VXLAN, or of another virtual network. */
  badHeaders: number;
  /** Datagrams from elsewhere. */
  strangers: number;
  /** Copies of frames whose destination was not known. */
  flooded: number;
}

const MTU_DEFAULT = 1450;
const MTU_MAX = 65_535;
const REMOTES_MAX = 64;
const SOCKETS = 4;
const SOCKETS_MAX = 16;
const BUFFER_BYTES = 1024 * 1024;
const BATCH_FRAMES = 64;
/** FRAME_STATUS of what is not for us: any but 0 does. */
const NOT_OURS = 1;

export class VxlanPort implements Port, PacketQueueHandler {
  readonly name: string;
  readonly vxlan: VxlanCounters = { badHeaders: 0, strangers: 0, flooded: 0 };
  receiver: FrameReceiver | null = null;
  onWritable: (() => void) | null = null;
  onChange: (() => void) | null = null;
  isUp = false;
  readonly #options: VxlanOptions;
  readonly #clock: Clock;
  readonly #sys: Native = native();
  readonly #counters: PortCounters = portCounters();
  readonly #zerocopy: ZerocopyCounters = zerocopyCounters();
  readonly #chooser: LendChooser | null;
  readonly #capability: Capability & { thresholdBytes: number };
  readonly #peers = new VxlanPeers();
  readonly #remotes: VxlanRemote[] = [];
  #headers: Uint8Array = new Uint8Array(0);
  /** What receives. */
  #queue: PacketQueue | null = null;

  /** Throws EINVAL, ERR_OUT_OF_RANGE. */
  constructor(options: VxlanOptions) {
    const { vni, remotes, port = VXLAN_PORT, sockets = SOCKETS, mtu = MTU_DEFAULT } = options;
    const { zerocopy = 'auto' } = options;
    checkInteger('options.vni', vni, 0, VNI_MAX);
    checkInteger('options.port', port, 1, 0xffff);
    checkInteger('options.sockets', sockets, 1, SOCKETS_MAX);
    checkInteger('options.mtu', mtu, 68, MTU_MAX);
    checkInteger('options.remotes.length', remotes.length, 1, REMOTES_MAX);
    for (const address of [...remotes, ...(options.local === undefined ? [] : [options.local])]) {
      if (isIP(address) === 0 || isIP(address) !== isIP(remotes[0] as string)) {
        throw new ZerotxError('EINVAL', `vxlan port ${options.name}: ${address} is no address of the family`);
      }
    }
    this.name = options.name;
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#chooser = zerocopy === 'auto' ? new LendChooser(DATAGRAM_BEGINS_BYTES, processCpuMs) : null;
    const lends = zerocopy !== 'off';
    this.#capability = {
      zeroCopy: lends ? 'large' : 'never',
      thresholdBytes: lends ? LEND_BYTES_MIN : Number.POSITIVE_INFINITY,
      offloads: 0,
      mtu,
    };
    this.#needHeaders(BATCH_FRAMES);
  }

  get capability(): Capability {
    if (this.#chooser !== null) this.#capability.thresholdBytes = this.#chooser.thresholdBytes;
    return this.#capability;
  }

  get counters(): PortCounters {
    this.#counters.txLentBytes = this.#zerocopy.lentBytes;
    this.#counters.txKernelCopiedBytes = this.#zerocopy.kernelCopiedBytes;
    return this.#counters;
  }

  /** What became of lent bytes, and why others were copied. */
  get zerocopy(): Readonly<ZerocopyCounters> {
    return this.#zerocopy;
  }

  send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    if (!this.isUp) return this.#drop(from, count);
    this.#needHeaders(count);
    const nowMs = this.#remotes.length === 1 ? 0 : this.#clock.now();
    let at = from;
    while (at < count) {
      const remote = this.#remoteFor(table, which[at] as number, nowMs);
      if (remote === NONE) at = this.#drop(at, at + 1);
      else if (remote === EVERYBODY) at = this.#flood(table, which, at);
      else {
        const next = this.#sendTo(remote, table, which, at, count, nowMs);
        if (next === at) break;
        at = next;
      }
    }
    return at;
  }

  resume(): void {
    this.#queue?.resume();
  }

  /** Binds and connects. Throws what bind(2) refuses: EADDRINUSE where the kernel has a vxlan device on this port. */
  async open(): Promise<void> {
    if (this.isUp) return;
    const { remotes, local, port = VXLAN_PORT, sockets = SOCKETS, zerocopy = 'auto' } = this.#options;
    const { bufferBytes = BUFFER_BYTES } = this.#options;
    try {
      this.#openReceiver(bufferBytes);
      for (const address of remotes) {
        const remote = new VxlanRemote({
          address,
          port,
          sockets,
          bufferBytes,
          mode: zerocopy,
          sys: this.#sys,
          clock: this.#clock,
          counters: this.#counters,
          zerocopy: this.#zerocopy,
          chooser: this.#chooser,
          headers: () => this.#headers,
          writable: () => this.onWritable?.(),
          ...(local === undefined ? {} : { local }),
        });
        this.#remotes.push(remote);
      }
    } catch (error) {
      this.#end();
      throw error;
    }
    this.isUp = true;
    this.onChange?.();
  }

  async close(): Promise<void> {
    this.#end();
    if (!this.isUp) return;
    this.isUp = false;
    this.onChange?.();
    this.onWritable?.();
  }

  // --- what the receiving queue says ---

  deliver(table: FrameTable): number {
    return offer(this, this.#counters, table);
  }

  /** Only of the receiving socket, which sends nothing. */
  writable(): void {}

  error(): boolean {
    return true;
  }

  #openReceiver(bufferBytes: number): void {
    const { remotes, local, port = VXLAN_PORT, mtu = MTU_DEFAULT } = this.#options;
    const sys = this.#sys;
    const fd = openVxlanReceiver(remotes[0] as string, local, port, bufferBytes);
    try {
      // With a VLAN tag in the frame, too.
      const table = createHostTable(BATCH_FRAMES, mtu + ETHERNET_BYTES + 4);
      const headers = new Uint8Array(BATCH_FRAMES * VXLAN_HEADER_BYTES);
      const sources = new Uint8Array(BATCH_FRAMES * SOCKADDR_BYTES);
      const read = (): number => {
        const n = sys.framesRecvmmsg(fd, table.bytes, BATCH_FRAMES, headers, VXLAN_HEADER_BYTES, sources);
        for (let i = 0; i < n; i++) this.#check(table, i, headers, sources);
        return n;
      };
      this.#queue = new PacketQueue({
        fd,
        clock: this.#clock,
        counters: this.#counters,
        table,
        read,
        write: (_table, _which, from) => from,
        handler: this,
      });
    } catch (error) {
      sys.close(fd);
      throw error;
    }
  }

  /** Is it for us, and from whom we expect it? Learns where its sender is. */
  #check(table: FrameTable, frame: number, headers: Uint8Array, sources: Uint8Array): void {
    const record = frame * FRAME_WORDS;
    if ((table.records[record + FRAME_STATUS] as number) !== 0) return;
    const remote = this.#sourceOf(sources, frame * SOCKADDR_BYTES);
    if (vxlanVni(headers, frame * VXLAN_HEADER_BYTES) !== this.#options.vni) {
      this.vxlan.badHeaders += 1;
      table.records[record + FRAME_STATUS] = NOT_OURS;
    } else if (remote < 0) {
      this.vxlan.strangers += 1;
      table.records[record + FRAME_STATUS] = NOT_OURS;
    } else if (this.#remotes.length > 1) {
      const source = (table.records[record + HEAD_AT] as number) + MAC_BYTES;
      this.#peers.learn(table.bytes, source, remote, this.#clock.now());
    }
  }

  /** Which remote end has the socket address at `at`; -1: none. */
  #sourceOf(sources: Uint8Array, at: number): number {
    const remotes = this.#remotes;
    for (let i = 0; i < remotes.length; i++) if (remotes[i]?.isSource(sources, at) === true) return i;
    return -1;
  }

  #remoteFor(table: FrameTable, frame: number, nowMs: number): number {
    const record = frame * FRAME_WORDS;
    const bytes = table.records[record + FRAME_BYTES] as number;
    if (bytes < ETHERNET_BYTES) return NONE;
    if (this.#remotes.length === 1) return 0;
    return this.#peers.lookUp(table.bytes, table.records[record + HEAD_AT] as number, nowMs);
  }

  /** Sends what goes the same way from `at` on; returns the position of the first that was not taken. */
  #sendTo(
    index: number,
    table: FrameTable,
    which: Uint32Array,
    at: number,
    count: number,
    nowMs: number,
  ): number {
    const remote = this.#remotes[index] as VxlanRemote;
    const sender = remote.senderFor(flowHash(table, which[at] as number));
    let end = at + 1;
    for (; end < count; end++) {
      const frame = which[end] as number;
      if (this.#remoteFor(table, frame, nowMs) !== index) break;
      if (remote.senderFor(flowHash(table, frame)) !== sender) break;
    }
    return sender.send(table, which, at, end);
  }

  /** To all; where there is no room it is lost, as nobody waits for the slowest. */
  #flood(table: FrameTable, which: Uint32Array, at: number): number {
    const hash = flowHash(table, which[at] as number);
    for (const remote of this.#remotes) {
      this.vxlan.flooded += 1;
      if (!remote.senderFor(hash).sendCopied(table, which, at)) this.#counters.txDropped += 1;
    }
    return at + 1;
  }

  /** Headers for so many frames: they are all the same. */
  #needHeaders(frames: number): void {
    if (frames * VXLAN_HEADER_BYTES <= this.#headers.length) return;
    this.#headers = new Uint8Array(2 * frames * VXLAN_HEADER_BYTES);
    for (let at = 0; at < this.#headers.length; at += VXLAN_HEADER_BYTES) {
      encodeVxlan(this.#headers, at, this.#options.vni);
    }
  }

  #end(): void {
    for (const remote of this.#remotes.splice(0)) remote.close();
    const queue = this.#queue;
    this.#queue = null;
    if (queue === null) return;
    queue.close();
    this.#sys.close(queue.fd);
  }

  #drop(from: number, to: number): number {
    this.#counters.txDropped += to - from;
    return to;
  }
}

/** #remoteFor(): it is no frame. */
const NONE = -2;
