/**
 * What the ledgers of a device count (ledger.ts): chains, what was lent of them, why not more, and how it came back. One set serves all
 * transmit queues of a device, from one connection to the next.
 */

export interface LedgerCounters {
  /** Chains taken and given back. */
  taken: number;
  reported: number;
  /** Borrowings, their bytes, and those that were copied after all. */
  lent: number;
  lentBytes: number;
  copied: number;
  /** Asked for and not granted: too many out, of the queue or of the borrower; copies too often; keeps too long or is backing off; the queue is stopping. */
  refusedLimit: number;
  refusedCopies: number;
  refusedOverdue: number;
  refusedDraining: number;
  /** Borrowings that took longer than holdMs; chains that were overtaken; calls for what held up a ring with IN_ORDER; borrowings whose end nobody knows. */
  overdue: number;
  overtaken: number;
  recalls: number;
  quarantined: number;
  /** Chains that were made available again while they were out. */
  twice: number;
  /** Borrowings that came back after detach(). */
  late: number;
  /** Chains that were aside at detach(). */
  forced: number;
  /** Chains that the last owner of the ring had set aside, and that were given back when the queue started. */
  inherited: number;
}

export function ledgerCounters(): LedgerCounters {
  return {
    taken: 0,
    reported: 0,
    lent: 0,
    lentBytes: 0,
    copied: 0,
    refusedLimit: 0,
    refusedCopies: 0,
    refusedOverdue: 0,
    refusedDraining: 0,
    overdue: 0,
    overtaken: 0,
    recalls: 0,
    quarantined: 0,
    twice: 0,
    late: 0,
    forced: 0,
    inherited: 0,
  };
}
