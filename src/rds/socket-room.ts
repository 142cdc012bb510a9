/**
 * The room in one socket's send buffer: what is charged to it, and who wants to hear when there is some again.
 *
 * The kernel's rule (rds_send_queue_rm): a message is accepted while less than the limit is queued, so the last one may
 * overshoot. What is queued counts until the peer's TCP acknowledged it, or it was given up.
 */
import type { Destination, RdsNode } from './node.ts';
import type { Refusal } from './pending.ts';
import type { ReceiveQueue } from './receive-queue.ts';
import type { RdsSocket } from './socket.ts';
import type { Timer } from './transport.ts';

/** Another thread may free the memlock budget without our hearing of it. */
const BUDGET_RETRY_MS = 20;
/** The send buffer holds at most one message for this many bytes, which bounds empty messages. */
const BYTES_PER_MESSAGE = 64;

export class SendRoom {
  limitBytes: number;
  readonly #socket: RdsSocket;
  readonly #node: RdsNode;
  readonly #received: ReceiveQueue;
  #queuedBytes = 0;
  #queuedMessages = 0;
  /** A send was refused since 'writable' was last emitted: for want of room, or because its port was congested. */
  #wantsRoom = false;
  #wantsNews = false;
  #budgetTimer: Timer | null = null;

  constructor(socket: RdsSocket, received: ReceiveQueue, limitBytes: number) {
    this.#socket = socket;
    this.#node = socket.node;
    this.#received = received;
    this.limitBytes = limitBytes;
  }

  get queuedBytes(): number {
    return this.#queuedBytes;
  }

  get queuedMessages(): number {
    return this.#queuedMessages;
  }

  get writable(): boolean {
    return this.#queuedBytes < this.limitBytes && this.#queuedMessages * BYTES_PER_MESSAGE < this.limitBytes;
  }

  /** Somebody waits for 'writable'. */
  get wanted(): boolean {
    return this.#wantsRoom;
  }

  /** Null if a message to `port` may be queued now. */
  check(destination: Destination, port: number): 'EAGAIN' | 'ENOBUFS' | null {
    if (destination.congested(port)) {
      destination.peer?.wanted();
      return 'ENOBUFS';
    }
    if (this.writable) return null;
    // The peer's TCP may have acknowledged more than we know: ask before saying no.
    if (destination.peer !== null && destination.peer.checkAcks() > 0 && this.writable) return null;
    return 'EAGAIN';
  }

  charge(bytes: number): void {
    this.#queuedBytes += bytes;
    this.#queuedMessages += 1;
    // Whoever looks at `writable` before sending must hear of room, too.
    if (!this.writable) this.#wantsRoom = true;
  }

  uncharge(bytes: number, messages: number): void {
    this.#queuedBytes -= bytes;
    this.#queuedMessages -= messages;
  }

  /** A message to `port` was not accepted. */
  refused(code: Refusal, port: number): void {
    if (code === 'ENOBUFS') {
      this.#wantsNews = true;
      this.#node.counters.cong_send_error += 1;
      this.#received.watch(port);
      return;
    }
    this.#wantsRoom = true;
    if (code === 'EAGAIN') {
      this.#node.counters.send_queue_full += 1;
      return;
    }
    this.#node.waitsForBudget(this.#socket);
    this.#budgetTimer ??= this.#node.runtime.timer(() => {
      this.#budgetTimer = null;
      this.#socket.roomMade();
    }, BUDGET_RETRY_MS);
  }

  /** A congestion map came: any port may be free. */
  newsCame(): void {
    if (!this.#wantsNews) return;
    this.#wantsNews = false;
    this.#wantsRoom = true;
  }

  /** True once after a refusal, when another try is worth it. */
  takeWritable(): boolean {
    if (!this.#wantsRoom || !this.writable) return false;
    this.#wantsRoom = false;
    return true;
  }

  /** Nobody sends any more. */
  close(): void {
    this.#budgetTimer?.cancel();
    this.#wantsRoom = false;
  }
}
