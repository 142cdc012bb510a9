/** RDS nodes in `zerotx explain`: for each peer what was lent to it, what of it was copied after all, and why, as for sockets. */
import type { SendCosts } from '../../index.ts';
import type { ZerocopyStats } from '../../net/index.ts';
import type { NodeLending } from '../../rds/index.ts';
import { othersOf, type Reason, reasonsOf } from './reasons.ts';
import { size } from './size.ts';
import { countLine, moreLine, reasonLines, SHOWN } from './text-parts.ts';
import type { Ways } from './ways.ts';

/** TCP port of RDS nodes, and of their peers. */
export const RDS_TCP_PORT = 16_385;

export interface ExplainedNode extends Pick<NodeLending, 'address' | 'mode' | 'thresholdBytes'> {
  readonly peers: readonly ExplainedPeer[];
  /** Peers that are gone, or were not listed; null if there are none. */
  readonly others: Omit<ExplainedPeer, 'address'> | null;
}

interface ExplainedPeer {
  readonly address: string;
  readonly zerocopy: ZerocopyStats;
  readonly reasons: readonly Reason[];
}

/** A peer as `ways` looks at the other end of a socket. */
export function peerEnds(
  nodes: readonly NodeLending[],
): { remote: string; kind: 'rds'; zerocopy: ZerocopyStats }[] {
  return nodes.flatMap(({ peers }) =>
    peers.map(({ address, zerocopy }) => ({ remote: endOf(address), kind: 'rds' as const, zerocopy })),
  );
}

export function explainNode(
  { address: own, mode, thresholdBytes, zerocopy: total, peers }: NodeLending,
  ways: Ways,
  costs: SendCosts | undefined,
  withOthers: boolean,
): ExplainedNode {
  const options = { kind: 'rds' as const, mode, thresholdBytes };
  const zerocopy = othersOf(total, peers);
  const unknown = { unknown: 'the ways to these peers are not known any more' };
  const hasOthers = withOthers && zerocopy.fallbackBytes + zerocopy.lentBytes > 0;
  return {
    address: own,
    mode,
    thresholdBytes,
    peers: peers.map(({ address, zerocopy: its }) => {
      const way = ways.to({ remote: endOf(address), kind: 'rds' });
      return { address, zerocopy: its, reasons: reasonsOf({ ...options, zerocopy: its }, way, costs) };
    }),
    others: hasOthers ? { zerocopy, reasons: reasonsOf({ ...options, zerocopy }, unknown, costs) } : null,
  };
}

/** Whether anything was to be lent at all. */
function hasLent({ zerocopy: { lentBytes, fallbackBytes } }: { readonly zerocopy: ZerocopyStats }): boolean {
  return lentBytes + fallbackBytes > 0;
}

export function nodeLines(node: ExplainedNode, all: boolean): string[] {
  const { address, mode, thresholdBytes, peers, others } = node;
  const options = `mode ${mode}, threshold ${size(thresholdBytes)}`;
  const used = peers.filter(hasLent);
  const shown = all ? peers : used.slice(0, SHOWN);
  if (shown.length === 0 && others === null) {
    return [
      '',
      `rds ${address}  ${options}`,
      '  no message was to be lent: see `zerocopy` of bind() and sendmsg()',
    ];
  }
  const lines = shown.flatMap((peer) => peerLines(`rds ${address} -> ${peer.address}  ${options}`, peer));
  if (!all && used.length > shown.length) lines.push('', moreLine(used.length - shown.length));
  if (others !== null)
    lines.push(...peerLines(`rds ${address} -> peers that are gone or not listed  ${options}`, others));
  return lines;
}

function peerLines(heading: string, { zerocopy, reasons }: Omit<ExplainedPeer, 'address'>): string[] {
  return ['', heading, `  ${countLine(zerocopy)}`, ...reasons.flatMap(reasonLines)];
}

function endOf(address: string): string {
  return address.includes(':') ? `[${address}]:${RDS_TCP_PORT}` : `${address}:${RDS_TCP_PORT}`;
}
