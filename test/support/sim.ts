/**
 * A simulated world for RDS nodes: virtual time, and links that delay, stall, cut and half-close, all from one seed.
 *
 * A link keeps TCP's promises and no more: bytes arrive in order or not at all; what arrived is acknowledged, but the
 * acknowledgement may be lost with the link; what arrived before a reset can still be read. Lent bytes are read when they
 * are delivered, not when they are sent, so a buffer that is given back too early is caught by its content.
 */
import { FixedBudget } from '../../src/core/budget.ts';
import { errnoError, errnoOf } from '../../src/core/errors.ts';
import { ReleaseQueue } from '../../src/core/releases.ts';
import type { Ubuf } from '../../src/core/ubuf.ts';
import type { RdsEnvironment } from '../../src/rds/environment.ts';
import type { RdsNode } from '../../src/rds/node.ts';
import { PeerLending } from '../../src/rds/peer-lending.ts';
import type { Channel, ChannelHandler, Runtime, Transport } from '../../src/rds/transport.ts';
import type { Random } from './random.ts';

const EAGAIN = -errnoOf('EAGAIN');
const ECONNRESET = -errnoOf('ECONNRESET');
const ECONNREFUSED = -errnoOf('ECONNREFUSED');

interface Event {
  at: number;
  order: number;
  run: () => void;
}

interface SimListener {
  readonly process: Process;
  accepted(channel: Channel): void;
  /** As Transport.listen(). */
  admits(remoteAddress: string, connections: number): boolean;
}

/** Time, and what happens in it. */
export class World {
  readonly random: Random;
  now = 0;
  readonly listeners: Map<string, SimListener> = new Map<string, SimListener>();
  readonly links: Set<Link> = new Set<Link>();
  #events: Event[] = [];
  #deferred: (() => void)[] = [];
  #order = 0;
  #group = 0;

  constructor(random: Random) {
    this.random = random;
  }

  /** A source port for a lane. */
  nextPort(lane: number): number {
    this.#group = (this.#group + 1) % 3000;
    return 32_768 + 8 * this.#group + lane;
  }

  at(delayMs: number, run: () => void): void {
    const event = { at: this.now + delayMs, order: this.#order++, run };
    let lo = 0;
    let hi = this.#events.length;
    while (lo < hi) {
      const mid = (lo + hi) >>> 1;
      const other = this.#events[mid] as Event;
      if (other.at <= event.at) lo = mid + 1;
      else hi = mid;
    }
    this.#events.splice(lo, 0, event);
  }

  defer(run: () => void): void {
    this.#deferred.push(run);
  }

  /** Runs until `untilMs` or until nothing is left to happen. */
  run(untilMs: number): void {
    this.settle();
    for (let steps = 0; this.#events.length > 0 && (this.#events[0] as Event).at <= untilMs; steps++) {
      if (steps > 5_000_000) throw new Error('the simulation does not come to rest');
      const event = this.#events.shift() as Event;
      this.now = Math.max(this.now, event.at);
      event.run();
      this.settle();
    }
    this.now = Math.max(this.now, untilMs);
  }

  /** Runs what was put behind the current batch. */
  settle(): void {
    for (let run = this.#deferred.shift(); run !== undefined; run = this.#deferred.shift()) run();
  }
}

/** One process: when it dies, nothing of it happens any more. */
export class Process {
  readonly world: World;
  alive = true;
  readonly channels: Set<SimChannel> = new Set<SimChannel>();
  /** Dialled and accepted, and not closed yet. */
  connections = 0;
  readonly environment: RdsEnvironment;

  constructor(world: World, options: { lendable: boolean; budgetPages: number; bootMs: number }) {
    this.world = world;
    const guard = (run: () => void) => () => {
      if (this.alive) run();
    };
    const runtime: Runtime = {
      now: () => world.now,
      defer: (task) => world.defer(guard(task)),
      yield: (task) => world.at(0, guard(task)),
      timer: (task, delayMs) => {
        let cancelled = false;
        world.at(
          delayMs,
          guard(() => {
            if (!cancelled) task();
          }),
        );
        return {
          cancel: () => {
            cancelled = true;
          },
        };
      },
      random: world.random.next,
      releases: new ReleaseQueue((flush) => world.defer(guard(flush))),
    };
    const transport: Transport = {
      listen: (address, accepted, admits) => {
        if (world.listeners.has(address)) throw errnoError(errnoOf('EADDRINUSE'), 'listen', { address });
        world.listeners.set(address, { process: this, accepted, admits });
        return { close: () => world.listeners.delete(address) };
      },
      dial: (local, remote, lane, handler) => dial(this, local, remote, lane, handler),
    };
    this.environment = {
      runtime,
      transport,
      budget: new FixedBudget(options.budgetPages),
      memory: { pageBytes: 4096, canLend: () => options.lendable, lend: () => {} },
      epochMs: () => options.bootMs,
      lending: new PeerLending(),
      nodes: new Map<string, RdsNode>(),
      budgetWaiters: new Set(),
    };
  }

  /** The process ends: its kernel resets its connections, or delivers what they hold and says FIN, or the whole host is gone. */
  die(how: 'reset' | 'fin' | 'silent'): void {
    this.alive = false;
    for (const [address, listener] of this.world.listeners) {
      if (listener.process === this) this.world.listeners.delete(address);
    }
    for (const channel of [...this.channels]) {
      if (how === 'reset') channel.reset();
      else if (how === 'fin') channel.close();
      else channel.link.vanish();
    }
  }
}

interface Segment {
  bytes: Uint8Array;
  lent: Ubuf | null;
}

/** Bytes on their way from one end to the other. */
class Pipe {
  readonly segments: Segment[] = [];
  queuedBytes = 0;
  finQueued = false;
  finSent = false;
  moving = false;
}

/** Two ends joined: a TCP connection. */
export class Link {
  readonly world: World;
  readonly ends: [SimChannel, SimChannel];
  broken = false;
  /** No byte moves before this time. */
  stalledUntil = 0;

  constructor(
    world: World,
    a: Process,
    b: Process | null,
    addresses: [string, string],
    ports: [number, number],
  ) {
    this.world = world;
    this.ends = [
      new SimChannel(this, a, addresses[1], ports),
      new SimChannel(this, b, addresses[0], [ports[1], ports[0]]),
    ];
    this.ends[0].peer = this.ends[1];
    this.ends[1].peer = this.ends[0];
    world.links.add(this);
  }

  latency(): number {
    return 0.05 + this.world.random.next() * 2;
  }

  /** Both ends see a reset, at different times; what is under way is lost. */
  cut(): void {
    if (this.broken) return;
    this.broken = true;
    this.world.links.delete(this);
    for (const end of this.ends) this.world.at(this.latency() * 10, () => end.fail(ECONNRESET));
  }

  /** One end's host is gone without a word: the other learns by its keepalive. */
  vanish(): void {
    if (this.broken) return;
    this.broken = true;
    this.world.links.delete(this);
    for (const end of this.ends) this.world.at(30_000, () => end.fail(-errnoOf('ETIMEDOUT')));
  }

  stall(ms: number): void {
    this.stalledUntil = this.world.now + ms;
  }
}

export class SimChannel implements Channel {
  readonly link: Link;
  readonly remoteAddress: string;
  readonly localPort: number;
  readonly remotePort: number;
  readable = false;
  writable = false;
  handler: ChannelHandler = { readable() {}, writable() {}, released() {} };
  peer!: SimChannel;
  readonly #process: Process | null;
  readonly #pipe = new Pipe();
  #received: Uint8Array[] = [];
  #receivedBytes = 0;
  #receivedFin = false;
  #error = 0;
  #written = 0;
  #acked = 0;
  #closed = false;
  #isCounted = false;
  /** Lent segments whose acknowledgement is not seen yet. */
  #held: { until: number; ubuf: Ubuf }[] = [];
  readonly #sendBufferBytes: number;
  readonly #receiveBufferBytes: number;

  constructor(link: Link, process: Process | null, remoteAddress: string, ports: [number, number]) {
    this.link = link;
    this.#process = process;
    this.remoteAddress = remoteAddress;
    [this.localPort, this.remotePort] = ports;
    this.#sendBufferBytes = link.world.random.pick([4096, 20_000, 65_536, 400_000]);
    this.#receiveBufferBytes = link.world.random.pick([4096, 30_000, 131_072]);
    process?.channels.add(this);
  }

  /** The process has it from now on. */
  opened(): void {
    if (this.#process === null || this.#closed) return;
    this.#isCounted = true;
    this.#process.connections += 1;
  }

  lends(bytes: number): boolean {
    return bytes >= 512 && this.link.world.random.chance(0.8);
  }

  send(views: readonly Uint8Array[], count: number, _more: boolean): number {
    return this.#take(views, count, null);
  }

  sendLent(ubuf: Ubuf, views: readonly Uint8Array[], count: number): number {
    return this.#take(views, count, ubuf);
  }

  copied(ubuf: Ubuf, bytes: number): void {
    ubuf.copiedBytes += bytes;
  }

  readv(views: readonly Uint8Array[], count: number): number {
    if (this.#receivedBytes === 0) {
      if (this.#receivedFin) return 0;
      if (this.#error !== 0) return this.#error;
      this.readable = false;
      return EAGAIN;
    }
    let n = 0;
    const most = 1 + this.link.world.random.below(200_000);
    for (let i = 0; i < count && n < most; i++) {
      const view = views[i] as Uint8Array;
      let at = 0;
      while (at < view.byteLength && this.#received.length > 0 && n < most) {
        const chunk = this.#received[0] as Uint8Array;
        const take = Math.min(chunk.byteLength, view.byteLength - at, most - n);
        view.set(chunk.subarray(0, take), at);
        at += take;
        n += take;
        if (take === chunk.byteLength) this.#received.shift();
        else this.#received[0] = chunk.subarray(take);
      }
    }
    this.#receivedBytes -= n;
    this.peer.kick();
    return n;
  }

  unreadBytes(): number {
    return this.#receivedBytes;
  }

  ackedBytes(): number {
    return this.#acked;
  }

  shutdownWrite(): void {
    if (this.#pipe.finQueued) return;
    this.#pipe.finQueued = true;
    this.kick();
  }

  close(): void {
    if (this.#closed) return;
    this.#end();
    // Linux resets the peer when unread data is thrown away.
    if (this.#receivedBytes > 0) this.#reset();
    else this.shutdownWrite();
  }

  reset(): void {
    if (this.#closed) return;
    this.#end();
    this.#reset();
  }

  connected(): void {
    this.writable = true;
    if (!this.#closed && this.#process?.alive) this.handler.connected?.();
  }

  failedToConnect(): void {
    if (!this.#closed && this.#process?.alive) {
      this.#end();
      this.handler.failed?.(errnoError(ECONNREFUSED, 'connect'));
    }
  }

  /** The connection broke: what arrived stays readable, what was lent comes back. */
  fail(error: number): void {
    if (this.#error !== 0) return;
    this.#error = error;
    this.readable = true;
    for (const held of this.#held.splice(0)) held.ubuf.unref();
    this.#pipe.segments.length = 0;
    this.#notify('released');
    this.#notify('readable');
  }

  /** Moves bytes along, if none are moving already. */
  kick(): void {
    const pipe = this.#pipe;
    if (pipe.moving || this.link.broken || (pipe.segments.length === 0 && (!pipe.finQueued || pipe.finSent)))
      return;
    pipe.moving = true;
    const { world } = this.link;
    const delay = Math.max(this.link.latency(), this.link.stalledUntil - world.now);
    world.at(delay, () => {
      pipe.moving = false;
      this.#move();
    });
  }

  #move(): void {
    const { world } = this.link;
    if (this.link.broken) return;
    if (world.now < this.link.stalledUntil) {
      this.kick();
      return;
    }
    const pipe = this.#pipe;
    const { peer } = this;
    if (peer.#closed && pipe.segments.length > 0) {
      // Data to a closed socket: reset.
      peer.#reset();
      return;
    }
    let room = Math.min(peer.#receiveBufferBytes - peer.#receivedBytes, 1 + world.random.below(100_000));
    if (pipe.segments.length > 0 && room <= 0) return; // kicked again when the peer has read
    let moved = 0;
    while (room > 0 && pipe.segments.length > 0) {
      const segment = pipe.segments[0] as Segment;
      const take = Math.min(room, segment.bytes.byteLength);
      peer.#received.push(Uint8Array.from(segment.bytes.subarray(0, take)));
      peer.#receivedBytes += take;
      moved += take;
      room -= take;
      if (take === segment.bytes.byteLength) pipe.segments.shift();
      else segment.bytes = segment.bytes.subarray(take);
    }
    if (pipe.segments.length === 0 && pipe.finQueued) {
      pipe.finSent = true;
      peer.#receivedFin = true;
    }
    peer.readable = true;
    peer.#notify('readable');
    const acknowledged =
      this.#written - pipe.segments.reduce((sum, segment) => sum + segment.bytes.byteLength, 0);
    if (moved > 0) world.at(this.link.latency(), () => this.#acknowledge(acknowledged));
    this.kick();
  }

  #acknowledge(bytes: number): void {
    if (this.link.broken && this.link.world.random.chance(0.5)) return;
    if (this.#error !== 0) return;
    this.#acked = Math.max(this.#acked, bytes);
    let released = false;
    while (this.#held.length > 0 && (this.#held[0] as { until: number }).until <= this.#acked) {
      this.#held.shift()?.ubuf.unref();
      released = true;
    }
    this.#pipe.queuedBytes = this.#written - this.#acked;
    if (released) this.#notify('released');
    if (!this.writable && this.#pipe.queuedBytes < this.#sendBufferBytes / 2) {
      this.writable = true;
      this.#notify('writable');
    }
  }

  #take(views: readonly Uint8Array[], count: number, lent: Ubuf | null): number {
    if (this.#error !== 0) return this.#error;
    let room = this.#sendBufferBytes - (this.#written - this.#acked);
    if (room <= 0) {
      this.writable = false;
      return 0;
    }
    let n = 0;
    for (let i = 0; i < count && room > 0; i++) {
      const view = views[i] as Uint8Array;
      const part = view.subarray(0, Math.min(view.byteLength, room));
      // An ordinary send copies at once; a lent one is read when it is delivered.
      this.#pipe.segments.push({ bytes: lent === null ? Uint8Array.from(part) : part, lent });
      n += part.byteLength;
      room -= part.byteLength;
    }
    this.#written += n;
    if (lent !== null) this.#held.push({ until: this.#written, ubuf: lent.ref() });
    this.kick();
    return n;
  }

  #reset(): void {
    const { link } = this;
    if (link.broken) return;
    link.broken = true;
    link.world.links.delete(link);
    this.fail(ECONNRESET);
    link.world.at(link.latency(), () => this.peer.fail(ECONNRESET));
  }

  #end(): void {
    this.#closed = true;
    this.#process?.channels.delete(this);
    if (this.#isCounted && this.#process !== null) this.#process.connections -= 1;
    this.#isCounted = false;
  }

  #notify(event: 'readable' | 'writable' | 'released'): void {
    if (this.#closed || this.#process === null || !this.#process.alive) return;
    this.handler[event]();
  }
}

function dial(
  process: Process,
  local: string,
  remote: string,
  lane: number,
  handler: ChannelHandler,
): Channel {
  const { world } = process;
  const target = world.listeners.get(remote);
  const link = new Link(
    world,
    process,
    target?.process ?? null,
    [local, remote],
    [world.nextPort(lane), 16385],
  );
  const [client, server] = link.ends;
  client.handler = handler;
  world.at(link.latency(), () => {
    const listener = world.listeners.get(remote);
    if (listener === undefined || listener !== target || link.broken) {
      world.links.delete(link);
      world.at(link.latency(), () => client.failedToConnect());
      return;
    }
    client.connected();
    // The last step of TCP's handshake; data may overtake the accepting process.
    world.at(link.latency(), () => {
      server.writable = true;
      if (!target.process.alive) return;
      if (!listener.admits(local, target.process.connections)) {
        server.reset();
        return;
      }
      server.opened();
      listener.accepted(server);
    });
  });
  client.opened();
  return client;
}
