/**
 * Messages of one kernel socket whose buffers are lent, from sendmsg(2) with MSG_ZEROCOPY to the cookie that comes back.
 *
 * The kernel is given cookies of our own, numbers that no other message under way has: so what the program chose need not be unique,
 * and each message is known when it completes. Until then its memory is referred to from here, whatever becomes of the
 * program's references. Cookies of the program come back in the order in which the messages to that peer were accepted; the
 * kernel's own order is another one when more than eight are waiting (rds_rm_zerocopy_callback in net/rds/message.c).
 *
 * What cannot be lent is copied, and completes all the same.
 */
import { pinnedPages } from '../../core/budget.ts';
import { errnoError, errnoName, errnoOf, type ZerotxError } from '../../core/errors.ts';
import { type Outcome, Ubuf } from '../../core/ubuf.ts';
import { type Borrowed, borrow, pageBytes } from '../../net/lending.ts';
import { native } from '../../sys/binding.ts';
import { MSG_ZEROCOPY } from '../../sys/constants.ts';
import { ReleaseOrders } from '../cookies.ts';
import type { Attempt, Refusal, Released } from '../pending.ts';
import { fixedView } from '../pieces.ts';
import { taken } from '../send-errors.ts';
import type { Target } from './address.ts';
import type { KernelRdsNode } from './node.ts';

/** Pieces that one call takes (native/env.h). */
const PIECES_MAX = 64;
const EOPNOTSUPP = -errnoOf('EOPNOTSUPP');

export interface LenderOwner {
  readonly fd: number;
  readonly node: Pick<KernelRdsNode, 'runtime' | 'budget' | 'settling'>;
  /** A cookie of the program has come back. */
  completed(cookie: number): void;
  /** Bytes came back. */
  released(): void;
}

interface Loan {
  readonly length: number;
  readonly pages: number;
  readonly borrowed: readonly Borrowed[];
  readonly then: number | Released;
}

interface Lent {
  readonly address: string;
  readonly port: number;
  readonly payload: Ubuf;
  withdrawn: boolean;
}

export class KernelLender {
  readonly #owner: LenderOwner;
  /** The program promises to leave lent memory where it is. */
  readonly #pin: boolean;
  readonly #lent = new Map<number, Lent>();
  readonly #orders = new ReleaseOrders();
  #lastCookie = 0;
  #lentBytes = 0;

  constructor(owner: LenderOwner, pin: boolean) {
    this.#owner = owner;
    this.#pin = pin;
  }

  /** Bytes of the program's memory that are lent, those of withdrawn messages included. */
  get lentBytes(): number {
    return this.#lentBytes;
  }

  /** One message, copied by the kernel during the call. Throws what cannot be waited for. */
  copy(target: Target, pieces: readonly Uint8Array[], length: number): Attempt {
    return refusal(this.#send(target, gathered(pieces, length), 0, -1), target) ?? copied;
  }

  /** Sends `pieces` themselves where they can be lent. `then` is a cookie, or is called. */
  lend(target: Target, pieces: readonly Uint8Array[], length: number, then: number | Released): Attempt {
    const { budget } = this.#owner.node;
    const waits = typeof then !== 'number';
    const pages = pinnedPages(length, pageBytes());
    const neverFits = waits && budget.limitPages >= 0 && pages > budget.limitPages;
    const borrowed = neverFits || pieces.length > PIECES_MAX ? null : this.#borrow(pieces);
    if (borrowed === null) return this.#copyInstead(target, pieces, length, then);
    if (!budget.charge(pages)) {
      giveBack(borrowed);
      return 'ENOMEM';
    }
    const views = borrowed.map(({ view }) => fixedView(view));
    const cookie = this.#freeCookie();
    const result = this.#send(target, views, MSG_ZEROCOPY, cookie);
    if (result < 0) {
      budget.uncharge(pages);
      giveBack(borrowed);
      // The loopback transport, and any other but TCP, lends nothing; who waits for the buffer wants it sent.
      if (waits && result === EOPNOTSUPP) return this.#copyInstead(target, pieces, length, then);
      return refusal(result, target) ?? copied;
    }
    this.#accepted(cookie, target, views, { length, pages, borrowed, then });
    return lent;
  }

  /** The kernel gave this cookie back. */
  cameBack(cookie: number): void {
    const lent = this.#lent.get(cookie);
    if (lent === undefined) return;
    this.#lent.delete(cookie);
    const { address, payload, withdrawn } = lent;
    if (withdrawn) this.#owner.node.settling.add(address, payload.byteLength, () => payload.unref());
    else payload.unref();
    this.#owner.node.settling.progress();
  }

  /** What is lent to `address` and `port` (null: any) is about to be withdrawn. Returns the ports it was sent to, by address. */
  withdraw(address: string | null, port: number | null): Map<string, Set<number>> {
    const targets = new Map<string, Set<number>>();
    for (const lent of this.#lent.values()) {
      if (address !== null && lent.address !== address) continue;
      if (port !== null && lent.port !== port) continue;
      lent.withdrawn = true;
      const ports = targets.get(lent.address) ?? new Set();
      targets.set(lent.address, ports.add(lent.port));
    }
    return targets;
  }

  #accepted(
    cookie: number,
    { address, port }: Target,
    views: readonly Uint8Array[],
    { length, pages, borrowed, then }: Loan,
  ): void {
    const { runtime, budget } = this.#owner.node;
    const inTurn = typeof then === 'number' ? this.#orders.take(address) : null;
    const payload = new Ubuf(
      views,
      (outcome) => {
        this.#lentBytes -= length;
        budget.uncharge(pages);
        giveBack(borrowed);
        if (typeof then === 'number') inTurn?.(() => this.#owner.completed(then));
        else then(outcome, payload.taken ? taken() : undefined);
        this.#owner.released();
      },
      runtime.releases,
    );
    // What TCP copied below it the kernel does not tell.
    payload.exact = false;
    this.#lentBytes += length;
    this.#lent.set(cookie, { address, port, payload, withdrawn: false });
  }

  /** Null if one of them may not be lent. */
  #borrow(pieces: readonly Uint8Array[]): Borrowed[] | null {
    const all: Borrowed[] = [];
    for (const piece of pieces) {
      const borrowed = borrow(piece, this.#pin);
      if (borrowed === null) {
        giveBack(all);
        return null;
      }
      all.push(borrowed);
    }
    return all;
  }

  #copyInstead(
    target: Target,
    pieces: readonly Uint8Array[],
    length: number,
    then: number | Released,
  ): Attempt {
    const refused = refusal(this.#send(target, gathered(pieces, length), 0, -1), target);
    if (refused !== null) return refused;
    const inTurn = typeof then === 'number' ? this.#orders.take(target.address) : null;
    const outcome: Outcome = { bytes: length, copiedBytes: length, exact: true };
    this.#owner.node.runtime.releases.run(() => {
      if (typeof then === 'number') inTurn?.(() => this.#owner.completed(then));
      else then(outcome);
      this.#owner.released();
    });
    return lent;
  }

  #send({ sockaddr }: Target, views: readonly Uint8Array[], flags: number, cookie: number): number {
    return native().rdsSendmsg(this.#owner.fd, views, views.length, sockaddr, flags, cookie);
  }

  #freeCookie(): number {
    do this.#lastCookie = (this.#lastCookie + 1) >>> 0;
    while (this.#lent.has(this.#lastCookie));
    return this.#lastCookie;
  }
}

const copied: Attempt = { lent: null };
/** The kernel withdraws by address, never one message; and it does not tell what was acknowledged but by its cookie. */
const lent: Attempt = { lent: { withdraw: () => false, acknowledged: () => false } };

function giveBack(borrowed: readonly Borrowed[]): void {
  for (const each of borrowed) each.giveBack();
}

/** Null if the call succeeded; what to wait for; throws the rest. */
function refusal(result: number, target: Target): Refusal | null {
  if (result >= 0) return null;
  const code = errnoName(result);
  if (code === 'EAGAIN' || code === 'ENOBUFS' || code === 'ENOMEM') return code;
  throw sendError(result, target);
}

/** What sendmsg(2) answered, with a way out where there is one. */
export function sendError(result: number, { address, port }: Target): ZerotxError {
  const hint = hints[errnoName(result)];
  return errnoError(result, 'sendmsg', { address, port, ...(hint === undefined ? {} : { hint }) });
}

const hints: Readonly<Record<string, string>> = {
  EMSGSIZE: 'over 1 MiB, or over the send buffer, which net.core.wmem_max limits',
  EOPNOTSUPP: 'this way to the destination lends no memory (loopback), or IPv4 and IPv6 were mixed',
  EINVAL: 'zerocopy needs a cookie, SO_ZEROCOPY on the socket, and a payload; a cookie needs zerocopy',
};

/** As many pieces as one call takes. */
function gathered(pieces: readonly Uint8Array[], length: number): readonly Uint8Array[] {
  return pieces.length <= PIECES_MAX ? pieces : [Buffer.concat(pieces, length)];
}
