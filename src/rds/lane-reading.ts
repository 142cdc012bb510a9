/**
 * Reading of one lane: from its channel into its receiver, in turns.
 *
 *   channel.readable ─▶ readv into receiver.targets() ─▶ receiver.filled() ─▶ what came, to the lane and its peer
 *
 * - A turn ends after 4 MiB, and others have theirs; after a large message, so that the program's handlers may recycle it; or
 *   when there is nothing to read. After each the lane looks at acknowledgements and its timer.
 * - A peer of which too much waits to be read is not read: TCP holds it back. Two things are read all the same, see #read().
 * - Before a channel is closed what it still holds is read, whatever holds reading back: its bytes are acknowledged.
 * - A socket reports an error once. If a write met it, what came before it is read first, and then reading ends with it.
 */
import { errnoName, errnoOf } from '../core/errors.ts';
import type { Lane, LaneHost, LaneNode } from './lane.ts';
import { LaneTimes } from './socket-trace.ts';

const EAGAIN = -errnoOf('EAGAIN');
/** Bytes read before other lanes have their turn. */
const TURN_BYTES = 4 * 1024 * 1024;

export class LaneReading {
  readonly #lane: Lane;
  readonly #node: LaneNode;
  readonly #peer: LaneHost;
  #times: LaneTimes | null = null;
  /** What a write to the current channel met, -errno; 0 while all is well. */
  #brokenBy = 0;
  #isScheduled = false;
  /** Bytes that were read and have not been looked at. */
  #unlooked = 0;
  /** Bytes read since others last had their turn. */
  #turnBytes = 0;

  constructor(lane: Lane, node: LaneNode, peer: LaneHost) {
    this.#lane = lane;
    this.#node = node;
    this.#peer = peer;
  }

  /** The channel has something: this is a turn. */
  turn(): void {
    this.#turnBytes = 0;
    this.#read();
  }

  /** In a turn to come. */
  later(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    this.#node.runtime.yield(() => {
      this.#isScheduled = false;
      this.turn();
    });
  }

  /** A write met an error. What the peer sent before it is still to be read; the read then meets the error, too. */
  writeFailed(result: number): void {
    const before = this.#lane.channel;
    this.#brokenBy = result;
    this.#read();
    if (this.#lane.channel !== before || before === null) return;
    if (!this.#peer.isPaused) this.#lane.connection.failed(this.#node.runtime.now(), errnoName(result));
  }

  /** Before closing: what is there now. A peer that goes on sending behind our FIN does not keep us. */
  rest(): void {
    const lane = this.#lane;
    const { receiver } = lane.connection;
    const now = this.#node.runtime.now();
    const unlooked = this.#unlooked;
    this.#unlooked = 0;
    if (unlooked > 0 && !this.#filled(unlooked, now)) return;
    let left = lane.channel?.unreadBytes() ?? 0;
    while (left > 0) {
      const targets = receiver.targets();
      const n = lane.channel?.readv(targets, targets.length) ?? 0;
      if (n <= 0) return;
      lane.connection.receivedFirst(now);
      if (!this.#filled(n, now)) return;
      left -= n;
    }
  }

  /** Before another lane goes on: what is there now. */
  catchUp(): void {
    // An attempt, or a poke, has nothing that is older.
    if (this.#lane.connection.isAway) return;
    this.rest();
    this.#lane.connection.receiver.rest();
  }

  /** The channel is closed. */
  end(): void {
    this.#times = null;
    this.#brokenBy = 0;
  }

  #read(): void {
    const lane = this.#lane;
    const { connection } = lane;
    const { receiver } = connection;
    for (;;) {
      const { channel } = lane;
      if (channel === null || connection.state === 'dialing') break;
      // Paused or not, the first bytes are read: until they come the connection counts as not accepted by the peer. And so is
      // the rest of a message that has its memory already: else many beginnings could hold it all, and nothing would move.
      const needsRoom = receiver.needsMemory || lane.followsLane0;
      if (needsRoom && this.#peer.isFull()) this.#peer.pause();
      const isHeld = this.#peer.isPaused && connection.confirmed;
      if (isHeld) receiver.rest();
      if (isHeld && !receiver.hasBegun) break;
      const targets = receiver.targets(isHeld);
      const n = channel.readv(targets, targets.length);
      if (n <= 0) {
        if (n !== EAGAIN) this.#ended(n);
        break;
      }
      const now = this.#node.runtime.now();
      connection.receivedFirst(now);
      if (lane.followsLane0) {
        this.#unlooked = n;
        this.#peer.readLane0();
        // It has said that the peer is another process by now, and this lane was read to its end.
        if (this.#unlooked === 0) break;
        this.#unlooked = 0;
      }
      if (!this.#filled(n, now)) {
        this.#node.warn('protocol violation', lane.address, 'announced a message over 1 MiB');
        connection.violated(now, 'the peer announced a message over 1 MiB');
        break;
      }
      if (lane.channel !== channel || !channel.readable) break;
      this.#turnBytes += n;
      if (this.#turnBytes >= TURN_BYTES) {
        this.later();
        break;
      }
      if (receiver.deliveredLarge) {
        this.#soon();
        break;
      }
    }
    receiver.rest();
    lane.checkAcks();
    lane.arm();
  }

  /**
   * Goes on behind the program's handlers and the releases they cause: when they recycle what came, the next large message
   * is read into the same memory, so that one buffer serves a stream instead of one for each message of a turn.
   */
  #soon(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    const { runtime } = this.#node;
    runtime.defer(() =>
      runtime.defer(() => {
        this.#isScheduled = false;
        this.#read();
      }),
    );
  }

  /** Bytes were read. When is measured where a socket asks for it. */
  #filled(n: number, now: number): boolean {
    const { receiver } = this.#lane.connection;
    const { receiveTimes } = this.#node;
    this.#times = receiveTimes.wanted === 0 ? null : (this.#times ?? new LaneTimes(receiveTimes));
    this.#times?.before(now);
    const sane = receiver.filled(n);
    this.#times?.after(now, receiver);
    return sane;
  }

  #ended(result: number): void {
    const { connection } = this.#lane;
    const now = this.#node.runtime.now();
    this.#lane.checkAcks();
    // The socket reports an error once: if a write met it, reading ends as if the peer had said FIN.
    const failure = result === 0 ? this.#brokenBy : result;
    if (failure === 0) connection.peerEnded(now);
    else connection.failed(now, errnoName(failure));
  }
}
