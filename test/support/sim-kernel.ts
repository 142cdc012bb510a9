/**
 * A model of a kernel's rds_tcp in a simulated world: how Linux 6.x and 7.x dial, take connections, number lanes and shake hands,
 * with what each keeps to itself. Written from what such kernels do on the wire, not to be friendly: 6.x maps lanes by the order of
 * arrival and fans out to whoever names more than one; 7.x goes by the source port, and waits with a connection whose lane is busy.
 */
import assert from 'node:assert/strict';
import type { Channel, ChannelHandler } from '../../src/rds/transport.ts';
import * as rds from '../../src/wire/rds.ts';
import { CONG_MAP_BYTES } from '../../src/wire/rds-congestion.ts';
import { encodeExtensions, parseExtensions } from '../../src/wire/rds-exthdr.ts';
import * as headers from './rds-headers.ts';
import type { Process } from './sim.ts';

const LANES = 8;
const RETRY_MS = 20;
const ACK_MS = 3;

interface Message {
  readonly bytes: Buffer;
  isProbe: boolean;
  endBytes: number;
}

class KernelLane {
  readonly index: number;
  state: 'down' | 'connecting' | 'up' = 'down';
  channel: Channel | null = null;
  nextTx = 1;
  nextRx = 0n;
  queue: Message[] = [];
  unacked: Message[] = [];
  out: Buffer = Buffer.alloc(0);
  written = 0;
  input: Buffer = Buffer.alloc(0);
  isRetrying = false;

  constructor(index: number) {
    this.index = index;
  }
}

export interface KernelOptions {
  readonly version: 6 | 7;
  readonly address: string;
  readonly peer: string;
  readonly genNum?: number;
}

export class SimKernel {
  readonly lanes: readonly KernelLane[] = Array.from({ length: LANES }, (_, i) => new KernelLane(i));
  /** What came for programs: sending port, and payload. */
  readonly received: { readonly port: number; readonly payload: Buffer }[] = [];
  npaths = 0;
  hasSportIdx = false;
  /** The largest number of lanes that the other side named. */
  namedMax = 0;
  /** Connections that found no lane, and were reset or had to wait. */
  homeless = 0;
  duplicates = 0;
  readonly #process: Process;
  readonly #options: KernelOptions;
  readonly #dials: boolean;
  #stash: Channel | null = null;
  /** Lane 0 has to have delivered all below this number before 7.x sends on others: it had them when it learned of those. */
  #catchUpTo = 0;

  constructor(process: Process, options: KernelOptions) {
    this.#process = process;
    this.#options = options;
    this.#dials = options.address < options.peer;
    process.environment.transport.listen(
      options.address,
      (channel) => this.#accepted(channel),
      () => true,
      () => {},
    );
  }

  get lanesUp(): number {
    return this.lanes.filter(({ state }) => state === 'up').length;
  }

  send(sport: number, dport: number, payload: Buffer): void {
    const lane = this.lanes[this.npaths < 2 ? 0 : (sport * 7) & (this.npaths - 1)] as KernelLane;
    this.#queue(lane, sport, dport, payload, false);
    if (this.lanes[0]?.state === 'down') this.#connect(this.lanes[0]);
    this.#push(lane);
  }

  #queue(lane: KernelLane, sport: number, dport: number, payload: Buffer, isProbe: boolean): void {
    const bytes = Buffer.alloc(rds.HEADER_BYTES + payload.length);
    rds.encodeHeader(bytes, 0, 0, lane.nextTx++, payload.length, sport, dport, 0);
    const { version, genNum = 99 } = this.#options;
    if (isProbe) {
      const own = version === 6 ? { npaths: LANES } : { npaths: LANES, genNum, sportIdx: true };
      encodeExtensions(bytes, rds.EXTHDR_OFFSET, own);
    }
    payload.copy(bytes, rds.HEADER_BYTES);
    lane.queue.push({ bytes, isProbe, endBytes: 0 });
  }

  #connect(lane: KernelLane): void {
    if (lane.state !== 'down') return;
    lane.state = 'connecting';
    const { address, peer, version } = this.#options;
    // 6.x takes any port.
    const port = version === 6 ? this.#process.world.random.below(8) : lane.index;
    const handler: ChannelHandler = {
      ...this.#handler(lane),
      connected: () => {
        if (this.#dials) this.#up(lane);
        else {
          // A poke.
          lane.state = 'down';
          lane.channel?.close();
          this.#retry(lane);
        }
      },
      failed: () => {
        lane.state = 'down';
        this.#retry(lane);
      },
    };
    lane.channel = this.#process.environment.transport.dial(address, peer, port, handler);
  }

  #retry(lane: KernelLane): void {
    if (lane.isRetrying) return;
    lane.isRetrying = true;
    const delayMs = 1 + this.#process.world.random.below(RETRY_MS);
    this.#process.environment.runtime.timer(() => {
      lane.isRetrying = false;
      const isUsed = lane.index < Math.max(1, this.npaths);
      if (this.#dials ? isUsed : lane.index === 0 && this.lanes.some(({ queue }) => queue.length > 0))
        this.#connect(lane);
    }, delayMs);
  }

  #accepted(channel: Channel): void {
    if (this.#dials) {
      if (this.npaths < 2) this.#connect(this.lanes[0] as KernelLane);
      channel.reset();
      return;
    }
    const lane = this.#laneFor(channel);
    if (lane !== undefined) {
      lane.channel?.reset();
      lane.channel = channel;
      channel.handler = this.#handler(lane);
      this.#up(lane);
      this.#read(lane);
      return;
    }
    this.homeless += 1;
    if (this.#options.version === 6 || this.#stash !== null) channel.reset();
    else this.#stash = channel;
  }

  #laneFor(channel: Channel): KernelLane | undefined {
    const npaths = Math.max(1, this.npaths);
    const isFree = (lane: KernelLane): boolean => lane.state !== 'up';
    if (this.#options.version === 7 && this.hasSportIdx) {
      const lane = this.lanes[channel.remotePort % npaths] as KernelLane;
      return isFree(lane) ? lane : undefined;
    }
    return this.lanes.slice(0, npaths).find(isFree);
  }

  #up(lane: KernelLane): void {
    lane.state = 'up';
    lane.written = 0;
    lane.input = Buffer.alloc(0);
    const map = Buffer.alloc(rds.HEADER_BYTES + CONG_MAP_BYTES);
    rds.encodeHeader(map, 0, 0, 0, CONG_MAP_BYTES, 0, 0, rds.CONG_BITMAP);
    lane.out = map;
    if (lane.index === 0 && (this.#options.version === 7 || (!this.#dials && this.npaths === 0)))
      this.#queue(lane, 1, 0, Buffer.alloc(0), true);
    this.#push(lane);
  }

  #handler(lane: KernelLane): ChannelHandler {
    return {
      readable: () => this.#read(lane),
      writable: () => this.#push(lane),
      released: () => {},
    };
  }

  #read(lane: KernelLane): void {
    const into = Buffer.alloc(65_536);
    while (lane.channel !== null && lane.state === 'up') {
      const n = lane.channel.readv([into], 1);
      if (n > 0) {
        lane.input = Buffer.concat([lane.input, into.subarray(0, n)]);
        this.#parse(lane);
        continue;
      }
      if (n === 0 || !lane.channel.readable) {
        if (n === 0) this.#lost(lane);
      } else this.#lost(lane);
      return;
    }
  }

  #parse(lane: KernelLane): void {
    for (;;) {
      const { input } = lane;
      if (input.length < rds.HEADER_BYTES) return;
      const end = rds.HEADER_BYTES + rds.payloadLength(input, 0);
      if (input.length < end) return;
      lane.input = input.subarray(end);
      this.#incoming(lane, input.subarray(0, end));
    }
  }

  #incoming(lane: KernelLane, bytes: Buffer): void {
    const { seqHi, seqLo, sport, dport, flags } = headers.decodeHeader(bytes, 0);
    if (flags === rds.CONG_BITMAP) return;
    const seq = (BigInt(seqHi) << 32n) | BigInt(seqLo);
    if (seq < lane.nextRx && (flags & rds.RETRANSMITTED) !== 0) {
      this.duplicates += 1;
      return;
    }
    lane.nextRx = seq + 1n;
    const kind = rds.classify(bytes, 0);
    if (kind === 'data')
      this.received.push({ port: sport, payload: Buffer.from(bytes.subarray(rds.HEADER_BYTES)) });
    if (kind === 'probe-ping') this.#queue(lane, 0, 1, Buffer.alloc(0), true);
    if (kind === 'ping') this.#queue(lane, 0, sport, Buffer.alloc(0), false);
    if (kind === 'probe-ping' || kind === 'probe-pong') this.#hello(bytes);
    assert.notEqual(dport, 65_535);
    this.#push(lane);
  }

  /** rds_recv_hs_exthdrs, rds_start_mprds. */
  #hello(bytes: Buffer): void {
    const { npaths = this.npaths, sportIdx = false } = parseExtensions(bytes, rds.EXTHDR_OFFSET);
    this.namedMax = Math.max(this.namedMax, npaths);
    this.hasSportIdx = sportIdx;
    const before = this.npaths;
    this.npaths = Math.max(1, Math.min(LANES, npaths));
    if (before < 2 && this.npaths > 1 && this.#options.version === 7) this.#catchUpTo = this.#lane0.nextTx;
    if (this.#dials && this.npaths > 1)
      for (const lane of this.lanes.slice(0, this.npaths)) this.#connect(lane);
    const stashed = this.#stash;
    this.#stash = null;
    if (stashed !== null) this.#accepted(stashed);
  }

  #push(lane: KernelLane): void {
    if (lane.state !== 'up' || lane.channel === null) return;
    while (lane.channel.writable) {
      const isHeld = lane.index > 0 && !this.#isCaughtUp();
      const next = lane.out.length > 0 || isHeld ? undefined : lane.queue.shift();
      if (next !== undefined) {
        lane.out = next.bytes;
        next.endBytes = lane.written + next.bytes.length;
        lane.unacked.push(next);
        this.#watch(lane, lane.channel);
      }
      if (lane.out.length === 0) return;
      const n = lane.channel.send([lane.out], 1, false);
      if (n <= 0) return;
      lane.written += n;
      lane.out = lane.out.subarray(n);
    }
  }

  #isCaughtUp(): boolean {
    const { queue, unacked } = this.#lane0;
    return ![...queue, ...unacked].some(({ bytes }) => rds.seqLo(bytes, 0) < this.#catchUpTo);
  }

  get #lane0(): KernelLane {
    return this.lanes[0] as KernelLane;
  }

  #watch(lane: KernelLane, channel: Channel): void {
    this.#process.environment.runtime.timer(() => {
      if (lane.channel !== channel || lane.unacked.length === 0) return;
      const acked = channel.ackedBytes();
      lane.unacked = lane.unacked.filter(({ endBytes }) => endBytes > acked);
      if (lane.index === 0) for (const other of this.lanes) this.#push(other);
      if (lane.unacked.length > 0) this.#watch(lane, channel);
    }, ACK_MS);
  }

  #lost(lane: KernelLane): void {
    const { channel } = lane;
    const acked = channel?.ackedBytes() ?? 0;
    const again = lane.unacked.filter(({ endBytes }) => endBytes > acked);
    for (const { bytes } of again) bytes[rds.FLAGS_OFFSET] = rds.RETRANSMITTED;
    lane.queue = [...again, ...lane.queue].filter(({ isProbe }) => !isProbe);
    lane.unacked = [];
    lane.state = 'down';
    lane.channel = null;
    channel?.close();
    if (this.#dials || lane.queue.length > 0) this.#retry(lane);
    const stashed = this.#stash;
    this.#stash = null;
    if (stashed !== null) this.#accepted(stashed);
  }
}
