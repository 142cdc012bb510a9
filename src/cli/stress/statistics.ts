/**
 * What is counted, and the rates made of it. Every socket keeps one set of running totals; a report is the difference
 * of two sums over all sockets.
 */

export interface Totals {
  reqTx: number;
  reqRx: number;
  ackTx: number;
  ackRx: number;
  /** Microseconds in sendmsg, over all requests sent. */
  sendUs: number;
  /** Microseconds from a request's sendmsg to its acknowledgement, over all acknowledgements received. */
  rttUs: number;
}

const fields = ['reqTx', 'reqRx', 'ackTx', 'ackRx', 'sendUs', 'rttUs'] as const satisfies (keyof Totals)[];

export function zeroTotals(): Totals {
  return { reqTx: 0, reqRx: 0, ackTx: 0, ackRx: 0, sendUs: 0, rttUs: 0 };
}

export function sumTotals(all: Iterable<Readonly<Totals>>): Totals {
  const sum = zeroTotals();
  for (const one of all) for (const field of fields) sum[field] += one[field];
  return sum;
}

/** `later - earlier`. */
export function totalsBetween(later: Readonly<Totals>, earlier: Readonly<Totals>): Totals {
  const difference = zeroTotals();
  for (const field of fields) difference[field] = later[field] - earlier[field];
  return difference;
}

export interface Rates {
  /** Requests in the interval, not per second: the tool's columns show raw counts of about one second. */
  requestsSent: number;
  requestsReceived: number;
  txPerSecond: number;
  rxPerSecond: number;
  /** Requests and acknowledgements in both directions. */
  kibPerSecond: number;
  txUs: number;
  rttUs: number;
}

export function ratesOf(
  totals: Readonly<Totals>,
  seconds: number,
  sizes: { reqSize: number; ackSize: number },
): Rates {
  const bytes = (totals.reqTx + totals.reqRx) * sizes.reqSize + (totals.ackTx + totals.ackRx) * sizes.ackSize;
  return {
    requestsSent: totals.reqTx,
    requestsReceived: totals.reqRx,
    txPerSecond: ratio(totals.reqTx, seconds),
    rxPerSecond: ratio(totals.reqRx, seconds),
    kibPerSecond: ratio(bytes / 1024, seconds),
    txUs: ratio(totals.sendUs, totals.reqTx),
    rttUs: ratio(totals.rttUs, totals.ackRx),
  };
}

/** 0 where nothing was measured. */
function ratio(amount: number, of: number): number {
  return of > 0 ? amount / of : 0;
}
