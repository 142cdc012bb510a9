/**
 * How one socket sends: the checks, in the order of the kernel's rds_sendmsg (net/rds/send.c), then a copy or a loan, then the
 * queue of the lane. send() does the same as often as it takes (pending.ts).
 */
import { checkObject, checkOptionalBoolean } from '../core/arguments.ts';
import { ZerotxError } from '../core/errors.ts';
import type { Outcome } from '../core/ubuf.ts';
import { MAX_PAYLOAD } from '../wire/rds.ts';
import { INLINE_BYTES_MAX } from './memory.ts';
import type { Destination, RdsNode } from './node.ts';
import {
  type AwaitSendOptions,
  cancelTarget,
  checkTarget,
  checkWaitOptions,
  type RdsAddress,
  type SendOptions,
} from './options.ts';
import { type Attempt, PendingSends, type Released } from './pending.ts';
import { toPieces } from './pieces.ts';
import { cancelled, notConnected, refused, resized } from './send-errors.ts';
import type { RdsSocket } from './socket.ts';
import { checkOpen } from './socket-closing.ts';
import { copiedPayload, type LendingEvents, SocketLender } from './socket-lending.ts';
import type { SocketSettings } from './socket-options.ts';
import type { SendRoom } from './socket-room.ts';

export class SocketSender {
  /** SO_ZEROCOPY. */
  zerocopy: boolean;
  readonly lender: SocketLender;
  readonly pending: PendingSends;
  readonly #socket: RdsSocket;
  readonly #node: RdsNode;
  readonly #room: SendRoom;
  readonly #settings: SocketSettings;
  #destination: RdsAddress | null = null;

  constructor(
    socket: RdsSocket,
    room: SendRoom,
    settings: SocketSettings,
    options: { readonly zerocopy: boolean; readonly pin: boolean },
    events: LendingEvents,
  ) {
    this.#socket = socket;
    this.#node = socket.node;
    this.#room = room;
    this.#settings = settings;
    this.zerocopy = options.zerocopy;
    this.lender = new SocketLender(socket, room, options.pin, events);
    this.pending = new PendingSends(
      (task, delayMs) => this.#node.runtime.timer(task, delayMs),
      () => this.#node.eventsDue(socket),
    );
  }

  /** Where connect() said. */
  get destination(): RdsAddress | null {
    return this.#destination;
  }

  connect(to: RdsAddress): void {
    checkOpen(this.#socket, 'connect');
    checkTarget(to, 'connect');
    const { address } = this.#node.destination(to.address, 'connect');
    this.#destination = { address, port: to.port };
  }

  sendmsg(
    data: Uint8Array | readonly Uint8Array[],
    to: RdsAddress | undefined,
    options: SendOptions | undefined,
  ): number {
    checkOpen(this.#socket, 'sendmsg');
    let zerocopy = false;
    let cookie: number | undefined;
    // Mostly there are none: at millions of messages a second, looking into them would show.
    if (options !== undefined) {
      checkObject('options', options);
      ({ zerocopy = false, cookie } = options as SendOptions);
      checkOptionalBoolean('options.zerocopy', zerocopy);
    }
    const { address, port } = this.#target(to, 'sendmsg');
    const destination = this.#node.destination(address, 'sendmsg');
    const pieces = data instanceof Uint8Array ? onePiece(data) : toPieces(data);
    const length = this.#checkLength(pieces, 'sendmsg');
    if (zerocopy || cookie !== undefined) this.#checkCookie(zerocopy, cookie, length);
    const attempt = zerocopy
      ? this.lender.lend(destination, port, pieces, length, cookie as number)
      : this.#copy(destination, port, pieces, length);
    if (typeof attempt !== 'string') return length;
    this.#room.refused(attempt, port);
    throw refused(attempt, { address: destination.address, port });
  }

  send(
    data: Uint8Array | readonly Uint8Array[],
    to: RdsAddress | undefined,
    options: AwaitSendOptions,
  ): Promise<Outcome> {
    try {
      checkWaitOptions(options);
      checkOpen(this.#socket, 'send');
      const { address, port } = this.#target(to, 'send');
      const { address: canonical } = this.#node.destination(address, 'send');
      const pieces = toPieces(data);
      const length = this.#checkLength(pieces, 'send');
      const lends = this.zerocopy && length > 0;
      const attempt = (released: Released): Attempt => {
        // Both may have changed while the message waited: the peer forgotten, the buffer detached.
        const destination = this.#node.destination(canonical, 'send');
        if (this.#checkLength(pieces, 'send') !== length) throw resized();
        const result = lends
          ? this.lender.lend(destination, port, pieces, length, released)
          : this.#copy(destination, port, pieces, length);
        if (typeof result === 'string') this.#room.refused(result, port);
        return result;
      };
      const { signal, timeoutMs }: AwaitSendOptions = options;
      const { sendTimeoutMs } = this.#settings;
      return this.pending.add(
        { address: canonical, port, attempt, bytes: length },
        { signal, timeoutMs, roomTimeoutMs: sendTimeoutMs },
      );
    } catch (error) {
      return Promise.reject(error);
    }
  }

  cancelSentTo(to: RdsAddress | string): void {
    checkOpen(this.#socket, 'cancelSentTo');
    const { address: text, port } = cancelTarget(to);
    const address = this.#node.canonical(text, 'cancelSentTo');
    const peer = this.#node.peer(address);
    peer?.checkAcks();
    this.pending.withdraw(address, port, cancelled('cancelSentTo() was called', 'acknowledged'));
    peer?.cancel(this.#socket, port);
    this.#socket.roomMade();
  }

  /** The socket closes: nothing is sent any more. */
  close(): void {
    this.#room.close();
    this.#node.checkAcks();
    this.pending.withdraw(null, null, cancelled('the socket was closed', 'acknowledged'));
    this.#node.cancel(this.#socket);
  }

  #copy(destination: Destination, port: number, pieces: readonly Uint8Array[], length: number): Attempt {
    const refusal = this.#room.check(destination, port);
    if (refusal !== null) return refusal;
    if (destination.peer === null) {
      this.#node.deliverLocally(destination, this.#socket.port, port, pieces, length);
      return copied;
    }
    const lane = destination.peer.laneFor(this.#socket.port);
    const { queue } = lane.connection.sender;
    const socket = this.#socket;
    this.#room.charge(length);
    if (length <= INLINE_BYTES_MAX) queue.addCopy(socket, pieces, length, socket.port, port);
    else queue.addPayload(socket, copiedPayload(this.#node, pieces, length, null), false, socket.port, port);
    lane.queued();
    return copied;
  }

  /** The way to `to`, or to the connected peer: looked up each time, as an address may become local, or cease to be. */
  #target(to: RdsAddress | undefined, syscall: string): RdsAddress {
    if (to !== undefined) {
      checkTarget(to, syscall);
      return to;
    }
    if (this.#destination !== null) return this.#destination;
    throw notConnected(syscall);
  }

  #checkLength(pieces: readonly Uint8Array[], syscall: string): number {
    let length = 0;
    // An index: this runs for every message, and an iterator shows there.
    for (let i = 0; i < pieces.length; i++) length += (pieces[i] as Uint8Array).byteLength;
    const limit = Math.min(MAX_PAYLOAD, this.#room.limitBytes);
    if (length > limit) {
      const text = `${syscall} EMSGSIZE: ${length} bytes, at most ${limit} fit`;
      throw new ZerotxError('EMSGSIZE', text, { syscall });
    }
    return length;
  }

  #checkCookie(zerocopy: boolean, cookie: number | undefined, length: number): void {
    const effective = zerocopy && this.zerocopy && length > 0;
    if (effective && Number.isInteger(cookie) && (cookie as number) >= 0 && (cookie as number) <= 0xffffffff)
      return;
    const why = !effective
      ? 'a cookie needs zerocopy on the socket and the message, and a payload'
      : 'zerocopy needs options.cookie, an integer from 0 to 4294967295';
    throw new ZerotxError('EINVAL', `sendmsg EINVAL: ${why}`, { syscall: 'sendmsg' });
  }
}

const copied: Attempt = { lent: null };

/** sendmsg() keeps no array it is given, so that one piece needs none of its own: at millions a second it would show. */
const single: Uint8Array[] = [new Uint8Array(0)];

function onePiece(piece: Uint8Array): readonly Uint8Array[] {
  single[0] = piece;
  return single;
}
