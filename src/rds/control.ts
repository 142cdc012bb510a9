/**
 * RDS through the control socket of the process (net/control.ts): what its nodes show, list by list, for rds-info, and what they
 * lent, for `zerotx explain`.
 *
 *   {"get":"rds"}                            {...,"nodes":["127.0.0.1"],"counters":{...}}
 *   {"get":"rds","list":"connections"}       {...,"records":[...],"leftOut":0}
 *   {"get":"rds","list":"lending"}           {...,"lending":[{"address":"127.0.0.1","peers":[...],...}]}
 *
 * Counters are added up over the nodes, as a kernel has one set for all its addresses.
 */
import { ZerotxError } from '../core/errors.ts';
import { showThroughControl } from '../net/control.ts';
import { askControl, type ControlAnswer } from '../net/control-client.ts';
import type { RdsCounters } from './counters.ts';
import type { RdsInfo } from './info.ts';
import {
  countersFromJson,
  fromJson,
  INFO_LISTS,
  type InfoLists,
  LISTED_MAX,
  toJson,
} from './info-records.ts';
import { lendingFromJson, lendingRecords, type NodeLending } from './lending-records.ts';
import type { NodeStats } from './stats.ts';

/** What is asked of a node. */
export interface ShownNode {
  readonly address: string;
  readonly counters: RdsCounters;
  info(options?: { readonly limit?: number }): RdsInfo;
  stats(): NodeStats;
}

/** Shows the nodes of this thread from now on, whichever they are at the time. */
export function showNodes(nodes: () => Iterable<ShownNode>): void {
  showThroughControl('rds', ({ list }) => {
    const all = [...nodes()];
    if (list === undefined) {
      return {
        nodes: all.map(({ address }) => address),
        counters: summed(all.map(({ counters }) => ({ ...counters }))),
      };
    }
    if (list === 'lending') return { lending: lendingRecords(all.map((node) => node.stats())) };
    const known = INFO_LISTS.find((one) => one === list);
    if (known === undefined) {
      throw new ZerotxError('EINVAL', `list: one of ${[...INFO_LISTS, 'lending'].join(', ')}`);
    }
    const records: object[] = [];
    let leftOut = 0;
    for (const node of all) {
      const info = node.info({ limit: LISTED_MAX });
      const unlisted: Readonly<Partial<Record<keyof InfoLists, number>>> = info.leftOut;
      const room = LISTED_MAX - records.length;
      records.push(...info[known].slice(0, room));
      leftOut += Math.max(0, info[known].length - room) + (unlisted[known] ?? 0);
    }
    return { records: toJson(records), leftOut };
  });
}

export interface RdsSummaryAnswer extends ControlAnswer {
  /** Addresses of the nodes. */
  readonly nodes: readonly string[];
  readonly counters: Readonly<Record<string, number>>;
}

export interface RdsListAnswer<L extends keyof InfoLists> extends ControlAnswer {
  readonly records: InfoLists[L];
  /** Further ones, that the program did not list. */
  readonly leftOut: number;
}

/**
 * Nodes and counters of the program behind this control socket. Rejects with ECONNREFUSED or ENOENT if no program listens
 * there, EACCES if it is another user's, ETIMEDOUT if it does not answer, EPROTO if what answers speaks another language
 * or has no RDS.
 */
export async function askRds(path: string): Promise<RdsSummaryAnswer> {
  const { from, body } = await askControl(path, { get: 'rds' });
  const nodes: unknown = body.nodes;
  if (!Array.isArray(nodes)) throw new ZerotxError('EPROTO', 'the answer has no nodes');
  return { ...from, nodes: nodes.map((node) => String(node)), counters: countersFromJson(body.counters) };
}

/** One list of what RDS_INFO_* shows, of all nodes of the program behind this control socket. Rejects as askRds(). */
export async function askRdsList<L extends keyof InfoLists>(
  path: string,
  list: L,
): Promise<RdsListAnswer<L>> {
  const { from, body } = await askControl(path, { get: 'rds', list });
  const leftOut = typeof body.leftOut === 'number' ? body.leftOut : 0;
  return { ...from, records: fromJson(list, body.records), leftOut };
}

export interface RdsLendingAnswer extends ControlAnswer {
  readonly nodes: readonly NodeLending[];
}

/** What the nodes of the program behind this control socket lent, and what was copied and why, for each peer. Rejects as askRds(). */
export async function askRdsLending(path: string): Promise<RdsLendingAnswer> {
  const { from, body } = await askControl(path, { get: 'rds', list: 'lending' });
  return { ...from, nodes: lendingFromJson(body.lending) };
}

function summed(all: readonly Readonly<Record<string, number>>[]): Record<string, number> {
  const sums: Record<string, number> = {};
  for (const counters of all) {
    for (const [name, count] of Object.entries(counters)) sums[name] = (sums[name] ?? 0) + count;
  }
  return sums;
}
