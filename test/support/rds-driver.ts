/**
 * One RdsConnection without a network: channels in memory, virtual time, and a test in the place of the peer. It does
 * what rds/lane.ts and stash.ts do around the state machine (pump after every event, keep the inbound connections that wait) and
 * nothing by itself: time moves in `advance()`, the peer's TCP acknowledges in `ack()`.
 *
 *   test ─ receive(), end(), fail(), dialed(), accept() ─▶ RdsConnection ─▶ channel.out, log
 *
 * What must hold after any sequence of events is checked here, in every test that uses it: nothing is written to a
 * poke, to a channel that is not established or behind a FIN, nothing but maps and probes before the gate is open, and a
 * connection that is down with something to say has a finite deadline.
 */
import assert from 'node:assert/strict';
import { ReleaseQueue } from '../../src/core/releases.ts';
import { RdsConnection } from '../../src/rds/connection.ts';
import type { ConnectionHost } from '../../src/rds/connection-host.ts';
import { type RdsCounters, rdsCounters } from '../../src/rds/counters.ts';
import { HANDSHAKE_TIMEOUT_MS, Handshake } from '../../src/rds/handshake.ts';
import { BufferPool, Staging } from '../../src/rds/memory.ts';
import type { Lender } from '../../src/rds/offer.ts';
import { LaneReceiver } from '../../src/rds/receiver.ts';
import type { SendOwner } from '../../src/rds/run.ts';
import { LaneSender } from '../../src/rds/sender.ts';
import { Expectation } from '../../src/rds/sequence.ts';
import { classify, EXTHDR_OFFSET } from '../../src/wire/rds.ts';
import { createMap } from '../../src/wire/rds-congestion.ts';
import { splitMessages, type WireMessages } from './rds-messages.ts';

/** The test's end of one connection. */
export class DriverChannel {
  readonly by: 'us' | 'peer';
  established = false;
  /** The peer has said something here. */
  heard = false;
  /** Bytes it takes before it is full. */
  room: number = Number.POSITIVE_INFINITY;
  ackedBytes = 0;
  finSent = false;
  /** Bytes of the peer that were not read: they are when the channel is closed (readRest). */
  unread: Uint8Array = new Uint8Array();
  /** We closed it. */
  closed: 'close' | 'reset' | null = null;
  readonly #chunks: Buffer[] = [];
  #outBytes = 0;

  constructor(by: 'us' | 'peer') {
    this.by = by;
  }

  get writtenBytes(): number {
    return this.#outBytes;
  }

  /** Everything written so far. */
  get out(): Buffer {
    return Buffer.concat(this.#chunks);
  }

  get sent(): WireMessages {
    return splitMessages(this.out);
  }

  /** Takes of the views what there is room for. */
  take(views: readonly Uint8Array[], count: number): number {
    let taken = 0;
    for (let i = 0; i < count && this.room > 0; i++) {
      const view = views[i]!;
      const n = Math.min(view.byteLength, this.room);
      this.#chunks.push(Buffer.from(view.subarray(0, n)));
      this.room -= n;
      taken += n;
      if (n < view.byteLength) break;
    }
    this.#outBytes += taken;
    return taken;
  }
}

export interface Delivered {
  readonly sport: number;
  readonly dport: number;
  readonly payload: Buffer;
}

export interface DriverOptions {
  /** This side has the smaller address. */
  readonly dials: boolean;
  readonly sequenceBase?: { readonly hi: number; readonly lo: number };
  readonly genNum?: number;
  readonly random?: () => number;
}

/** Lends nothing. */
const copies: Lender = { lends: () => false, copied: () => {} };
/** As in stash.ts: more than the first only if all have brought something. */
const WAITING_MAX = 8;
const FULL_MAX = 64;
const ROUNDS_MAX = 100_000;

export class RdsDriver implements ConnectionHost, SendOwner {
  nowMs = 0;
  readonly connection: RdsConnection;
  readonly handshake: Handshake;
  readonly counters: RdsCounters = rdsCounters();
  /** The channel the connection uses or is opening. */
  channel: DriverChannel | null = null;
  /** Every channel there was, oldest first. */
  readonly channels: DriverChannel[] = [];
  readonly waiting: DriverChannel[] = [];
  readonly delivered: Delivered[] = [];
  /** Ports that the peer says are congested. */
  readonly peerMap: Uint8Array = createMap();
  maps = 0;
  /** Charged for messages that are not complete. */
  heldBytes = 0;
  /** 'up', 'down: reason' and 'closed', in order. */
  readonly log: string[] = [];
  /** Messages given back by uncharge(). */
  settledMessages = 0;
  readonly #releases: ReleaseQueue;
  #flush: (() => void) | null = null;
  #hasSettled = false;
  #woken = false;

  constructor(options: DriverOptions) {
    this.#releases = new ReleaseQueue((flush) => {
      this.#flush = flush;
    });
    const pool = new BufferPool(1024 * 1024);
    const base = options.sequenceBase ?? { hi: 0, lo: 1 };
    const staging = new Staging(pool, this.#releases);
    const sender = new LaneSender(base, staging, this.counters, { readMap: createMap });
    this.handshake = new Handshake(options.genNum ?? 0x01020304, 1, options.dials);
    const receiver = new LaneReceiver(
      {
        congestion: (map) => {
          this.peerMap.set(map);
          this.maps += 1;
        },
        probe: (isPing, bytes, header) => this.#probe(isPing, bytes, header + EXTHDR_OFFSET),
        ping: (sport) => this.connection.ping(sport, false),
        isFull: () => false,
        held: (deltaBytes) => {
          this.heldBytes += deltaBytes;
        },
        data: (sport, dport, buffer, offset, length) => {
          const bytes = buffer.iov[0] as Buffer;
          this.delivered.push({
            sport,
            dport,
            payload: Buffer.from(bytes.subarray(offset, offset + length)),
          });
        },
      },
      pool,
      this.#releases,
      this.counters,
    );
    const { dials, random = () => 0.5 } = options;
    this.connection = new RdsConnection(
      { dials, random },
      { sender, receiver, counters: this.counters },
      this,
    );
  }

  // --- what the test does ---

  /** A program's message. */
  send(payload: Uint8Array, sport: number, dport: number): void {
    this.connection.sender.queue.addCopy(this, [payload], payload.byteLength, sport, dport);
    this.connection.queued(this.nowMs);
    this.settle();
  }

  /** The attempt in `channel` is established. */
  dialed(): void {
    if (this.channel === null || this.connection.state !== 'dialing') return;
    this.channel.established = true;
    this.connection.dialed(this.nowMs);
    this.settle();
  }

  dialFailed(): void {
    this.connection.dialFailed(this.nowMs);
    this.settle();
  }

  /** The peer opens a connection; null if it is reset. */
  accept(): DriverChannel | null {
    const channel = new DriverChannel('peer');
    channel.established = true;
    this.channels.push(channel);
    const verdict = this.connection.accepted(this.nowMs);
    if (verdict === 'adopt') this.#adopt(channel);
    else if (verdict === 'wait') this.#keep(channel);
    else channel.closed = 'reset';
    this.settle();
    return channel.closed === 'reset' ? null : channel;
  }

  /** Bytes of the peer on the current channel. */
  receive(bytes: Uint8Array): void {
    assert.ok(this.channel !== null && this.connection.state !== 'dialing', 'no channel to receive on');
    this.channel.heard = true;
    this.connection.receivedFirst(this.nowMs);
    if (!this.connection.receiver.feed(bytes)) this.connection.violated(this.nowMs, 'protocol violation');
    this.settle();
  }

  /** The peer says FIN. */
  end(): void {
    this.connection.peerEnded(this.nowMs);
    this.settle();
  }

  fail(reason = 'ECONNRESET'): void {
    this.connection.failed(this.nowMs, reason);
    this.settle();
  }

  /** The peer's TCP has the first `bytes` bytes of the current channel; by default all. */
  ack(bytes: number = Number.POSITIVE_INFINITY): void {
    const channel = this.channel;
    if (channel === null) return;
    channel.ackedBytes = Math.max(channel.ackedBytes, Math.min(bytes, channel.writtenBytes));
    this.connection.acked(channel.ackedBytes, this.nowMs);
    this.settle();
  }

  /** More room in the current channel. */
  makeRoom(bytes: number): void {
    if (this.channel !== null) this.channel.room += bytes;
    this.#woken = true;
    this.settle();
  }

  shutdown(): void {
    for (const channel of this.waiting.splice(0)) channel.closed = 'reset';
    this.connection.shutdown(this.nowMs);
    this.settle();
  }

  /** Moves the clock, stopping at every deadline on the way. */
  advance(ms: number): void {
    const until = this.nowMs + ms;
    for (let round = 0; this.connection.deadline() <= until; round++) {
      assert.ok(round < ROUNDS_MAX, 'tick() does not move the deadline');
      this.nowMs = Math.max(this.nowMs, this.connection.deadline());
      this.connection.tick(this.nowMs);
      this.settle();
    }
    this.nowMs = until;
  }

  /** Runs what waits for the end of the batch, and checks what must always hold. */
  settle(): void {
    for (let round = 0; this.#woken || this.#flush !== null; round++) {
      assert.ok(round < ROUNDS_MAX, 'the batch does not end');
      const flush = this.#flush;
      this.#flush = null;
      flush?.();
      if (this.#woken) this.#pump();
    }
    const { state } = this.connection;
    if (state === 'down' && !this.connection.sender.idle) {
      assert.ok(Number.isFinite(this.connection.deadline()), 'down, something queued, and no deadline');
    }
    if (state === 'up' && !this.connection.confirmed) {
      assert.ok(Number.isFinite(this.connection.deadline()), 'unconfirmed without a deadline');
    }
    if (state === 'dialing' || state === 'draining') {
      assert.ok(Number.isFinite(this.connection.deadline()), `${state} without a deadline`);
    }
    if (this.waiting.length > 0)
      assert.ok(state === 'up' || state === 'draining', `free, and one waits: ${state}`);
    assert.equal(this.channel === null, state === 'down' || state === 'closed', `a channel while ${state}`);
  }

  // --- ConnectionHost ---

  dial(): void {
    assert.equal(this.channel, null, 'dial() with a channel open');
    this.channel = new DriverChannel('us');
    this.channels.push(this.channel);
  }

  halfClose(): void {
    if (this.channel !== null) this.channel.finSent = true;
  }

  ackedBytes(): number {
    return this.channel?.ackedBytes ?? 0;
  }

  hasUnread(): boolean {
    return false;
  }

  heldBack(): boolean {
    return false;
  }

  readRest(): void {
    const { channel } = this;
    if (channel === null) return;
    this.connection.receiver.feed(channel.unread);
    channel.unread = new Uint8Array();
  }

  closeChannel(how: 'close' | 'reset'): void {
    if (this.channel !== null) this.channel.closed = how;
    this.channel = null;
  }

  adoptNext(): void {
    const channel = this.waiting.shift();
    if (channel === undefined) return;
    this.#adopt(channel);
    if (this.waiting.length > 0) this.connection.drop(this.nowMs, 'the peer opened another connection');
  }

  wake(): void {
    this.#woken = true;
  }

  mayDial(): boolean {
    return true;
  }

  needed(): boolean {
    return false;
  }

  mayResend(): boolean {
    return true;
  }

  opensWithMap(): boolean {
    return true;
  }

  begins(): void {}

  opening(): Uint8Array {
    return this.handshake.single;
  }

  patienceMs(): number {
    return HANDSHAKE_TIMEOUT_MS;
  }

  unanswered(): void {
    this.connection.settle();
  }

  peerUp(): void {
    this.log.push('up');
  }

  peerDown(reason: string): void {
    this.log.push(`down: ${reason}`);
  }

  closed(): void {
    this.log.push('closed');
  }

  // --- SendOwner ---

  uncharge(_payloadBytes: number, messages: number): void {
    this.settledMessages += messages;
  }

  /** What peer.ts does where there is one lane. */
  #probe(isPing: boolean, bytes: Uint8Array, offset: number): void {
    const { connection } = this;
    if (this.handshake.read(bytes, offset, 0).hasRestarted) {
      this.counters.peer_restarts += 1;
      connection.sender.generationChanged();
      connection.numberAfresh(new Expectation());
      connection.unsettle(this.nowMs);
    }
    if (isPing) connection.answer(this.handshake.single);
    else if (connection.answered()) connection.settle();
  }

  /** For whoever is too many it ends here: an older one that has brought nothing, or, if all have, this one. */
  #keep(channel: DriverChannel): void {
    const { waiting } = this;
    const empty = waiting.length < WAITING_MAX ? -1 : waiting.findIndex(({ unread }) => unread.length === 0);
    if (empty >= 0) (waiting.splice(empty, 1)[0] as DriverChannel).closed = 'reset';
    if (waiting.length < FULL_MAX) waiting.push(channel);
    else channel.closed = 'reset';
  }

  #adopt(channel: DriverChannel): void {
    assert.equal(this.channel, null, 'adopted a second channel');
    this.channel = channel;
    this.connection.adopted(this.nowMs);
  }

  #pump(): void {
    this.#woken = false;
    while (this.connection.state === 'up' && this.channel !== null) {
      const offer = this.connection.sender.gather(copies, this.connection.gate);
      if (offer === null) return;
      this.#checkWrite(this.channel);
      const n = this.channel.take(offer.views, offer.count);
      if (n === 0) return;
      const silent = this.channel.by === 'us' && !this.channel.heard;
      this.#hasSettled ||= this.connection.settled;
      if (silent || !this.#hasSettled) checkOnlyOpening(this.channel);
      this.connection.sender.wrote(n, copies);
    }
  }

  #checkWrite(channel: DriverChannel): void {
    assert.ok(channel.established, 'written before the connection was established');
    assert.ok(channel.by === 'peer' || this.connection.dials, 'written to a poke');
    assert.ok(!channel.finSent && channel.closed === null, 'written behind a FIN');
  }
}

/** Before the peer has spoken, and answered a probe, a channel carries maps and probes alone. */
function checkOnlyOpening(channel: DriverChannel): void {
  for (const { bytes } of channel.sent.messages) {
    const kind = classify(bytes, 0);
    assert.ok(kind === 'congestion' || kind.startsWith('probe'), `${kind} through the closed gate`);
  }
}
