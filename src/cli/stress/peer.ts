/**
 * What one local socket knows about one remote socket: the numbers of the data protocol.
 *
 *   requests sent:   slot  … | o  o  o |  .        `sendIndex` is the slot of the next one, `pending` how many are
 *                            └ pending ┘           unanswered; the answer due is for slot sendIndex - pending
 *   requests got:    slot  … | g  g |  .           `recvIndex` is the slot of the next one, `unacked` how many we
 *                            └unacked┘             still have to answer, the oldest from slot recvIndex - unacked
 *
 * Slots count modulo the depth. Requests and acknowledgements share `sendSeq`, which counts what was handed over
 * successfully: a message the socket refused is built again later with the number due then, so nothing is ever skipped.
 */
import type { StressHeader } from '../../wire/rds-stress.ts';

export class Peer {
  readonly port: number;
  sendSeq = 0;
  recvSeq = 0;
  sendIndex = 0;
  recvIndex = 0;
  pending = 0;
  unacked = 0;
  /** The destination said ENOBUFS; nothing is sent there until news of its congestion comes. */
  congested = false;
  /** When the request in each slot was sent, in microseconds. */
  readonly sentUs: Float64Array;
  /** Kept between messages: only `seq`, `index` and `op` change. */
  readonly outgoing: StressHeader;
  readonly expected: StressHeader;
  readonly #depth: number;

  constructor(
    depth: number,
    own: { address: number; port: number },
    remote: { address: number; port: number },
  ) {
    this.port = remote.port;
    this.#depth = depth;
    this.sentUs = new Float64Array(depth);
    this.outgoing = header(own, remote);
    this.expected = header(remote, own);
  }

  /** Slot of the acknowledgement that may come next. */
  get ackDue(): number {
    return (this.sendIndex - this.pending + this.#depth) % this.#depth;
  }

  /** Slot of the request that we have to answer next. */
  get ackOwed(): number {
    return (this.recvIndex - this.unacked + this.#depth) % this.#depth;
  }

  requestSent(startUs: number): void {
    this.sentUs[this.sendIndex] = startUs;
    this.sendIndex = (this.sendIndex + 1) % this.#depth;
    this.pending += 1;
    this.sendSeq = (this.sendSeq + 1) >>> 0;
  }

  ackSent(): void {
    this.unacked -= 1;
    this.sendSeq = (this.sendSeq + 1) >>> 0;
  }

  requestReceived(): void {
    this.unacked += 1;
    this.recvIndex = (this.recvIndex + 1) % this.#depth;
    this.recvSeq = (this.recvSeq + 1) >>> 0;
  }

  ackReceived(): void {
    this.pending -= 1;
    this.recvSeq = (this.recvSeq + 1) >>> 0;
  }
}

function header(
  from: { address: number; port: number },
  to: { address: number; port: number },
): StressHeader {
  return {
    seq: 0,
    fromAddr: from.address,
    toAddr: to.address,
    fromPort: from.port,
    toPort: to.port,
    index: 0,
    op: 0,
  };
}
