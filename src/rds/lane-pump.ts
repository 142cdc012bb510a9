/**
 * Writing of one lane: from its sender to its channel, until there is nothing to say or the channel is full.
 *
 *   wake() ─▶ (end of batch) pump: sender.gather() ─▶ channel.send / sendLent ─▶ sender.wrote()
 *
 * However often it is woken in a batch, it writes once, behind it: so what a program says in one go leaves together. It stops after
 * 1 MiB for the program's handlers, after 4 MiB for other lanes, and goes on behind them.
 */
import type { Lane, LaneNode } from './lane.ts';

/** Bytes written before other lanes have their turn, and before the program's handlers have theirs. */
const TURN_BYTES = 4 * 1024 * 1024;
const HANDLERS_BYTES = 1024 * 1024;

export class LanePump {
  readonly #lane: Lane;
  readonly #node: LaneNode;
  #isScheduled = false;
  /** Bytes written since others last had their turn. */
  #turnBytes = 0;

  constructor(lane: Lane, node: LaneNode) {
    this.#lane = lane;
    this.#node = node;
  }

  wake(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    this.#node.runtime.defer(() => {
      this.#isScheduled = false;
      this.#pump();
    });
  }

  /** Writes what there is until the channel is full. */
  #pump(): void {
    const lane = this.#lane;
    const { connection } = lane;
    const { sender } = connection;
    let moved = 0;
    while (connection.state === 'up') {
      const { channel } = lane;
      if (channel === null || !channel.writable) break;
      const offer = sender.gather(channel, connection.gate);
      if (sender.memoryTaken) {
        this.#node.warn(
          'lent memory taken',
          lane.address,
          'a lent buffer was detached or resized while it was sent',
        );
        connection.failed(this.#node.runtime.now(), 'lent memory was taken away');
        break;
      }
      if (offer === null) break;
      const n =
        offer.lent === null
          ? channel.send(offer.views, offer.count, offer.more)
          : channel.sendLent(offer.lent, offer.views, offer.count);
      if (n < 0) {
        lane.writeFailed(n);
        break;
      }
      if (n === 0) {
        this.#node.counters.tcp_sndbuf_full += 1;
        break;
      }
      sender.wrote(n, channel);
      moved += n;
      if (moved >= HANDLERS_BYTES) {
        this.#goOn(moved);
        break;
      }
    }
    lane.arm();
  }

  /**
   * Goes on behind the program's handlers: a fast receiver acknowledges while we write, and a program that hears of it now
   * fills the queue before it is empty (measured: a stream of 1 MiB messages otherwise stops for the next timer every time).
   */
  #goOn(moved: number): void {
    const { runtime } = this.#node;
    this.#lane.checkAcks();
    this.#turnBytes += moved;
    if (this.#turnBytes < TURN_BYTES) {
      runtime.defer(() => this.wake());
      return;
    }
    this.#turnBytes = 0;
    runtime.yield(() => this.wake());
  }
}
