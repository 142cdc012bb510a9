/**
 * RDS sockets in memory, for testing what uses them: loss-free and in order between two sockets, in any order between
 * different ones, and as unwilling as a seed makes them. Nothing happens by itself: each `step()` does one thing that a
 * network could do next and emits its event.
 *
 * A copied message is copied at sendmsg; a lent one is read when it is delivered and completed some time later, so a
 * buffer that is written too early arrives wrong.
 */
import { EventEmitter } from 'node:events';
import type { BindOptions, Received, StressNode, StressSocket } from '../../src/cli/stress/socket.ts';
import { ZerotxError } from '../../src/index.ts';

/** Chances in percent that a call is refused; the wake-up comes in a later step. */
export interface Faults {
  eagain: number;
  enobufs: number;
  enomem: number;
}

interface Message {
  from: FakeSocket;
  to: FakeSocket;
  bytes: Uint8Array;
  cookie: number | undefined;
}

export class FakeNetwork {
  faults: Faults = { eagain: 0, enobufs: 0, enomem: 0 };
  /** Messages delivered, by "address:port>address:port". */
  readonly delivered: Map<string, number> = new Map();
  readonly sockets: FakeSocket[] = [];
  readonly #random: () => number;
  readonly #lanes = new Map<string, Message[]>();

  /** `random` gives numbers from 0 up to 1. */
  constructor(random: () => number) {
    this.#random = random;
  }

  node(address: string): StressNode {
    return {
      bind: (port, options) => {
        const socket = new FakeSocket(this, address, port, options);
        this.sockets.push(socket);
        return socket;
      },
      stats: () => ({
        counters: { sockets: this.sockets.length },
        zerocopy: { lentBytes: 0, kernelCopiedBytes: 0 },
      }),
      close: () => Promise.resolve(),
    };
  }

  /** True in `percent` of 100 calls. */
  chance(percent: number): boolean {
    return this.#random() * 100 < percent;
  }

  carry(message: Message): void {
    const name = `${message.from.name}>${message.to.name}`;
    const lane = this.#lanes.get(name);
    if (lane === undefined) this.#lanes.set(name, [message]);
    else lane.push(message);
  }

  /** Does one of the things that can happen next; false when nothing can. */
  step(): boolean {
    const possible: (() => void)[] = [];
    for (const [name, lane] of this.#lanes)
      if (lane.length > 0) possible.push(() => this.#deliver(name, lane));
    for (const socket of this.sockets) possible.push(...socket.possible());
    if (possible.length === 0) return false;
    possible[Math.floor(this.#random() * possible.length)]!();
    return true;
  }

  #deliver(name: string, lane: Message[]): void {
    const message = lane.shift()!;
    this.delivered.set(name, (this.delivered.get(name) ?? 0) + 1);
    message.to.deliver(message.bytes, message.from);
    if (message.cookie !== undefined) message.from.acknowledged.push(message.cookie);
  }
}

export class FakeSocket extends EventEmitter implements StressSocket {
  /** A call was refused: `writable` is due. */
  #refused = false;
  /** Cookies of lent messages that arrived, not yet reported. */
  readonly acknowledged: number[] = [];
  lentNow = 0;
  lentMax = 0;
  readonly name: string;
  readonly #network: FakeNetwork;
  readonly #address: string;
  readonly #port: number;
  readonly #options: BindOptions;
  readonly #queue: Received[] = [];
  #monitored = 0n;

  constructor(network: FakeNetwork, address: string, port: number, options: BindOptions) {
    super();
    this.#network = network;
    this.#address = address;
    this.#port = port;
    this.#options = options;
    this.name = `${address}:${port}`;
  }

  sendmsg(
    data: Uint8Array,
    to: { address: string; port: number },
    options: { zerocopy?: boolean; cookie?: number },
  ): number {
    const { faults } = this.#network;
    if (this.#network.chance(faults.enobufs)) {
      this.#monitored |= 1n << BigInt(to.port % 64);
      this.#refused = true;
      throw new ZerotxError('ENOBUFS', 'congested');
    }
    if (this.#network.chance(faults.eagain)) {
      this.#refused = true;
      throw new ZerotxError('EAGAIN', 'queue full');
    }
    const lend = options.zerocopy === true;
    if (lend && this.#network.chance(faults.enomem)) {
      this.#refused = true;
      throw new ZerotxError('ENOMEM', 'cannot pin more');
    }
    const receiver = this.#network.sockets.find((socket) => socket.name === `${to.address}:${to.port}`);
    if (receiver === undefined) return data.length;
    if (lend) this.lentMax = Math.max(this.lentMax, ++this.lentNow);
    const bytes = lend ? data : data.slice();
    this.#network.carry({ from: this, to: receiver, bytes, cookie: lend ? options.cookie : undefined });
    return data.length;
  }

  recvmsg(): Received | null {
    return this.#queue.shift() ?? null;
  }

  deliver(bytes: Uint8Array, from: FakeSocket): void {
    const cookies = this.#network.chance(50) ? this.#reap() : [];
    const data = bytes.slice();
    this.#queue.push({
      kind: 'data',
      data,
      address: from.#address,
      port: from.#port,
      cookies,
      // Memory that was given back is somebody else's.
      recycle: () => data.fill(0xee),
    });
    // Several messages may wait before the program looks.
    if (this.#network.chance(70)) this.emit('readable');
  }

  possible(): (() => void)[] {
    const out: (() => void)[] = [];
    if (this.#queue.length > 0) out.push(() => this.emit('readable'));
    if (this.#refused)
      out.push(() => {
        this.#refused = false;
        this.emit('writable');
      });
    if (this.#monitored !== 0n && this.#options.congestionMonitor)
      out.push(() => {
        this.#queue.push({ kind: 'congestion', mask: this.#monitored });
        this.#monitored = 0n;
        this.emit('readable');
      });
    if (this.acknowledged.length > 0)
      out.push(() => {
        this.#queue.push({ kind: 'completion', cookies: this.#reap() });
        this.emit('readable');
      });
    return out;
  }

  /** Up to eight at a time, as the kernel reports them. */
  #reap(): number[] {
    const cookies = this.acknowledged.splice(0, 8);
    this.lentNow -= cookies.length;
    return cookies;
  }
}
