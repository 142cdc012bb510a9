/**
 * One socket's part of the data protocol: keep up to `depth` requests outstanding towards every remote socket, answer
 * every request, and check every byte that is known beforehand. No I/O and no clock of its own: messages and times come
 * and go through `TaskLink` and `receive`.
 *
 * Sending stops and resumes for four reasons, each with its own wake-up, and none of them loses an acknowledgement,
 * because what is owed is a count (`Peer.unacked`) that goes down only when the socket took the message:
 *
 *   full        EAGAIN: the socket's queue is full. Everybody waits for `writable()`.
 *   congested   ENOBUFS: one destination is full. It alone waits for `congestion()` news with its port's bit; without a
 *               congestion monitor it is tried again at the next `pump()`, for which the socket calls `writable()`.
 *   memory      ENOMEM, or no free buffer, in a lending run: everybody waits for `completed()` or `writable()`.
 *   stopped     the run is over: receiving and completions go on, nothing more is sent.
 *
 * Acknowledgements go before requests, over all destinations, and a round that was cut short resumes with the
 * destination it stopped at.
 */
import { ZerotxError } from '../../index.ts';
import {
  checkPattern,
  checkStressHeader,
  decodeStressHeader,
  isOldRetry,
  OP_ACK,
  OP_REQ,
  STRESS_HEADER_BYTES,
  verifyPattern,
} from '../../wire/rds-stress.ts';
import { dotted } from './numbers.ts';
import { Outbox, type SendResult, type TaskLink } from './outbox.ts';
import { Peer } from './peer.ts';
import { type Totals, zeroTotals } from './statistics.ts';

export interface TaskConfig {
  own: { address: number; port: number };
  /** Remote sockets have the ports from `firstPort` on. */
  remote: { address: number; firstPort: number; count: number };
  reqSize: number;
  ackSize: number;
  depth: number;
  /** False on the passive side of a one-way run. */
  sendsRequests: boolean;
  verify: boolean;
  zerocopy: boolean;
  congestionMonitor: boolean;
}

export class TaskEngine {
  readonly totals: Totals = zeroTotals();
  readonly outbox: Outbox;
  /** Messages from elsewhere than the peer's address, which are not of this run. */
  strangers = 0;
  readonly #config: TaskConfig;
  readonly #link: TaskLink;
  readonly #peers: Peer[] = [];
  #state: 'waiting' | 'running' | 'stopped' = 'waiting';
  #blocked: 'full' | 'memory' | undefined;
  /** Where the next round begins. */
  #next = 0;

  constructor(config: TaskConfig, link: TaskLink) {
    this.#config = config;
    this.#link = link;
    this.outbox = new Outbox(config, link);
    for (let i = 0; i < config.remote.count; i++) {
      const remote = { address: config.remote.address, port: config.remote.firstPort + i };
      this.#peers.push(new Peer(config.depth, config.own, remote));
    }
  }

  start(): void {
    if (this.#state === 'waiting') this.#state = 'running';
    this.pump();
  }

  stop(): void {
    this.#state = 'stopped';
  }

  /** Whatever was missing, another try is worth it. */
  writable(): void {
    this.#blocked = undefined;
    this.pump();
  }

  /** Bit `port % 64` of `mask` is set for every destination that may be free again; it may be set without reason. */
  congestion(mask: bigint): void {
    for (const peer of this.#peers)
      if (((mask >> BigInt(peer.port % 64)) & 1n) === 1n) peer.congested = false;
  }

  completed(cookies: readonly number[]): void {
    this.outbox.completed(cookies);
    if (cookies.length > 0 && this.#blocked === 'memory') this.#blocked = undefined;
  }

  /** Sends all that is due and possible. Call it after a batch of `receive`, `completed` and `congestion`. */
  pump(): void {
    if (this.#state === 'stopped' || this.#blocked !== undefined) return;
    if (!this.#config.congestionMonitor) for (const peer of this.#peers) peer.congested = false;
    if (!this.#round(this.#sendAcks)) return;
    if (this.#state === 'running' && this.#config.sendsRequests) this.#round(this.#sendRequests);
  }

  /** Checks one message and counts it; throws ZTX_STRESS_MISMATCH when it is not what the protocol makes it. */
  receive(data: Uint8Array, fromAddress: number, fromPort: number): void {
    if (fromAddress !== this.#config.remote.address || data.length === 0) {
      this.strangers += 1;
      return;
    }
    const peer = this.#peers[fromPort - this.#config.remote.firstPort];
    if (peer === undefined) throw this.#mismatch(fromPort, 'came from a port that is not in this run');
    if (data.length < STRESS_HEADER_BYTES)
      throw this.#mismatch(fromPort, `has ${data.length} bytes, its header alone has ${STRESS_HEADER_BYTES}`);
    if (isOldRetry(data, 0, peer.recvSeq)) return;
    this.#check(peer, data);
    this.#link.trace?.(`received ${describe(data)} from port ${fromPort}`);
    if (data[18] === OP_REQ) {
      this.totals.reqRx += 1;
      peer.requestReceived();
    } else {
      this.#acknowledged(peer);
    }
  }

  #check(peer: Peer, data: Uint8Array): void {
    const op = data[18]!;
    if (op !== OP_REQ && op !== OP_ACK) throw this.#mismatch(peer.port, `has the unknown operation ${op}`);
    const size = op === OP_REQ ? this.#config.reqSize : this.#config.ackSize;
    if (data.length !== size)
      throw this.#mismatch(peer.port, `has ${data.length} bytes, expected ${size} for operation ${op}`);
    const expected = peer.expected;
    expected.seq = peer.recvSeq;
    expected.index = op === OP_REQ ? peer.recvIndex : peer.ackDue;
    expected.op = op;
    const difference = checkStressHeader(data, 0, expected);
    if (difference !== undefined) throw this.#mismatch(peer.port, `has a wrong header: ${difference}`);
    if (op === OP_REQ && peer.unacked === this.#config.depth)
      throw this.#mismatch(peer.port, 'is a request beyond the depth');
    if (op === OP_ACK && peer.pending === 0)
      throw this.#mismatch(peer.port, 'is an acknowledgement and no request is outstanding');
    if (this.#config.verify) this.#checkPayload(peer, data, size);
  }

  #checkPayload(peer: Peer, data: Uint8Array, size: number): void {
    const pattern = verifyPattern().subarray(0, size - STRESS_HEADER_BYTES);
    // One memcmp decides; the slower search only says where.
    if (Buffer.compare(data.subarray(STRESS_HEADER_BYTES), pattern) === 0) return;
    throw this.#mismatch(peer.port, `has a corrupted payload at byte ${checkPattern(data, 0, size)}`);
  }

  #acknowledged(peer: Peer): void {
    const us = this.#link.nowUs() - peer.sentUs[peer.ackDue]!;
    this.totals.ackRx += 1;
    this.totals.rttUs += us;
    this.#link.roundTrip?.(us);
    peer.ackReceived();
  }

  /** Runs `work` for every destination until the socket takes no more; true when all had their turn. */
  #round(work: (peer: Peer) => SendResult): boolean {
    const count = this.#peers.length;
    for (let i = 0; i < count; i++) {
      const at = (this.#next + i) % count;
      const peer = this.#peers[at]!;
      if (peer.congested) continue;
      const result = work(peer);
      if (result === 'congested') peer.congested = true;
      if (result === 'full' || result === 'memory') {
        this.#blocked = result;
        this.#next = at;
        return false;
      }
    }
    return true;
  }

  readonly #sendAcks = (peer: Peer): SendResult => {
    while (peer.unacked > 0) {
      const slot = peer.ackOwed;
      const result = this.outbox.send(peer, OP_ACK, slot);
      if (result !== 'sent') return result;
      this.#link.trace?.(`sent acknowledgement seq ${peer.sendSeq} slot ${slot} to port ${peer.port}`);
      peer.ackSent();
      this.totals.ackTx += 1;
    }
    return 'sent';
  };

  readonly #sendRequests = (peer: Peer): SendResult => {
    while (peer.pending < this.#config.depth) {
      const result = this.outbox.send(peer, OP_REQ, peer.sendIndex);
      if (result !== 'sent') return result;
      this.#link.trace?.(`sent request seq ${peer.sendSeq} slot ${peer.sendIndex} to port ${peer.port}`);
      peer.requestSent(this.outbox.startUs);
      this.totals.reqTx += 1;
      this.totals.sendUs += this.outbox.endUs - this.outbox.startUs;
    }
    return 'sent';
  };

  #mismatch(port: number, what: string): ZerotxError {
    const address = dotted(this.#config.remote.address);
    const message = `message from ${address}:${port} to port ${this.#config.own.port} ${what}`;
    return new ZerotxError('ZTX_STRESS_MISMATCH', message, { address, port });
  }
}

function describe(message: Uint8Array): string {
  const header = decodeStressHeader(message, 0);
  return `${header.op === OP_REQ ? 'request' : 'acknowledgement'} seq ${header.seq} slot ${header.index}`;
}
