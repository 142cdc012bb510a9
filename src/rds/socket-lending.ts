/**
 * Messages of one socket whose buffers are lent: to the kernel where they can be, else copied, in either case with a word
 * when the buffer is the program's again. That is a cookie, which comes back in the order of acceptance, or a call as soon as
 * it is true: nobody should wait for a message before his own that nobody acknowledges.
 */
import { pinnedPages } from '../core/budget.ts';
import { type Outcome, Ubuf } from '../core/ubuf.ts';
import type { CopyCause } from '../net/counters.ts';
import { ReleaseOrders } from './cookies.ts';
import type { Destination, RdsNode } from './node.ts';
import type { Attempt, Released } from './pending.ts';
import { copyPieces, fixedView } from './pieces.ts';
import { taken } from './send-errors.ts';
import type { RdsSocket } from './socket.ts';
import type { SendRoom } from './socket-room.ts';

/** What the lender tells the socket. */
export interface LendingEvents {
  completed(cookie: number): void;
  /** Bytes came back. */
  released(): void;
}

export class SocketLender {
  readonly #socket: RdsSocket;
  readonly #node: RdsNode;
  readonly #room: SendRoom;
  readonly #events: LendingEvents;
  readonly #lendOptions: { readonly pin: boolean };
  /** Messages to this process whose release is due in the next turn. */
  readonly #localReleases: (() => void)[] = [];
  /** Completions to one peer come in the order of acceptance, whatever other sockets and peers do. */
  readonly #orders = new ReleaseOrders();
  #lentBytes = 0;

  constructor(socket: RdsSocket, room: SendRoom, pin: boolean, events: LendingEvents) {
    this.#socket = socket;
    this.#node = socket.node;
    this.#room = room;
    this.#events = events;
    this.#lendOptions = { pin };
  }

  get lentBytes(): number {
    return this.#lentBytes;
  }

  /** Queues `pieces` themselves where they can be lent. `then` is a cookie, or is called. */
  lend(
    destination: Destination,
    port: number,
    pieces: readonly Uint8Array[],
    length: number,
    then: number | Released,
  ): Attempt {
    const { budget, memory } = this.#node;
    const waits = typeof then !== 'number';
    let pages = pinnedPages(length, memory.pageBytes);
    const neverFits = waits && budget.limitPages >= 0 && pages > budget.limitPages;
    const lendable =
      destination.peer !== null &&
      !neverFits &&
      pieces.every((piece) => memory.canLend(piece, this.#lendOptions));
    if (!lendable) pages = 0;
    if (pages > 0 && !budget.charge(pages)) return 'ENOMEM';
    const refusal = this.#room.check(destination, port);
    if (refusal !== null) {
      if (pages > 0) budget.uncharge(pages);
      return refusal;
    }
    const released = waits ? then : (): void => this.#events.completed(then);
    // What a connection copies after all, the engine counts.
    if (!lendable) this.#node.lending.copied(destination.address, length, causeOf(destination, neverFits));
    if (destination.peer === null) return this.#lendLocally(destination, port, pieces, length, released);
    const inTurn = waits ? null : this.#orders.take(destination.address);
    this.#room.charge(length);
    this.#lentBytes += length;
    let payload: Ubuf;
    const onRelease = (outcome: Outcome): void => {
      this.#lentBytes -= length;
      if (pages > 0) this.#node.uncharge(pages);
      if (inTurn === null) released(outcome, payload.taken ? taken() : undefined);
      else inTurn(() => released(outcome));
      this.#events.released();
    };
    if (lendable) {
      for (const piece of pieces) memory.lend(piece, this.#lendOptions);
      payload = new Ubuf(pieces.map(fixedView), onRelease, this.#node.runtime.releases);
    } else payload = copiedPayload(this.#node, pieces, length, onRelease);
    const lane = destination.peer.laneFor(this.#socket.port);
    const { queue } = lane.connection.sender;
    const run = queue.addPayload(this.#socket, payload, lendable, this.#socket.port, port);
    lane.queued();
    const { peer } = destination;
    // Not of this lane: until the peer's lanes are agreed on, what waits may come to another.
    const withdraw = (): boolean => peer.cancelRun(run);
    return { lent: { withdraw, acknowledged: () => run.messages === 0 } };
  }

  #lendLocally(
    destination: Destination,
    port: number,
    pieces: readonly Uint8Array[],
    length: number,
    released: Released,
  ): Attempt {
    // A turn later: a program that sends to itself from here must not starve the event loop.
    this.#localReleases.push(() => released({ bytes: length, copiedBytes: length, exact: true }));
    if (this.#localReleases.length === 1) this.#node.runtime.yield(() => this.#releaseLocal());
    this.#node.deliverLocally(destination, this.#socket.port, port, pieces, length);
    return localLent;
  }

  #releaseLocal(): void {
    for (const release of this.#localReleases.splice(0)) release();
  }
}

function causeOf({ peer }: Destination, neverFits: boolean): CopyCause {
  if (peer === null) return 'loopback';
  return neverFits ? 'memlock' : 'foreign';
}

const localLent: Attempt = { lent: { withdraw: () => false, acknowledged: () => true } };

/** A payload in memory of the pool, with what is to happen when it is back there. */
export function copiedPayload(
  { pool, runtime }: RdsNode,
  pieces: readonly Uint8Array[],
  length: number,
  then: ((outcome: Outcome) => void) | null,
): Ubuf {
  const buffer = pool.acquire(length);
  copyPieces(pieces, buffer);
  const onRelease = (): void => {
    pool.release(buffer);
    then?.({ bytes: length, copiedBytes: length, exact: true });
  };
  return new Ubuf([buffer.subarray(0, length)], onRelease, runtime.releases);
}
