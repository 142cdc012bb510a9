/** What `zerotx explain` says to a person. */
import type { SendCosts } from '../../index.ts';
import type { SocketStats } from '../../net/index.ts';
import { printable } from '../printable.ts';
import { type ExplainedNode, nodeLines } from './rds.ts';
import type { Reason } from './reasons.ts';
import { size } from './size.ts';
import { countLine, moreLine, reasonLines, SHOWN } from './text-parts.ts';

export interface ExplainedSocket {
  readonly stats: SocketStats;
  readonly reasons: readonly Reason[];
}

export interface ExplainedProgram {
  readonly pid: number;
  readonly threadId: number;
  readonly command: string;
  readonly closedSockets: number;
  readonly openSockets: number;
  readonly sockets: readonly ExplainedSocket[];
  /** Sockets that are gone, or were not listed; null if there are none. */
  readonly others: { readonly zerocopy: SocketStats['zerocopy']; readonly reasons: readonly Reason[] } | null;
  readonly rds: readonly ExplainedNode[];
}

export function programLines(program: ExplainedProgram, all: boolean): string[] {
  const { pid, threadId, command, openSockets, closedSockets, sockets, others, rds } = program;
  const thread = threadId === 0 ? '' : `, worker ${threadId}`;
  const nodes = rds.length === 0 ? '' : `; ${rds.length} RDS node${rds.length === 1 ? '' : 's'}`;
  const heading = `${command} (pid ${pid}${thread}): ${openSockets} socket${openSockets === 1 ? '' : 's'}, ${closedSockets} gone${nodes}`;
  const copying = sockets.filter(({ reasons }) => reasons.length > 0);
  const shown = all ? sockets : copying.slice(0, SHOWN);
  const lines = [heading, ...shown.flatMap(socketLines)];
  const more = copying.length - shown.length;
  if (!all && more > 0) lines.push('', moreLine(more));
  if (copying.length === 0 && (others?.reasons.length ?? 0) === 0 && rds.length === 0) {
    lines.push(
      '',
      sockets.length === 0 ? 'nothing to explain' : 'nothing was copied: there is nothing to explain',
    );
  }
  if (others !== null && others.reasons.length > 0) {
    lines.push('', 'sockets that are gone or not listed', `  ${countLine(others.zerocopy)}`);
    lines.push(...others.reasons.flatMap(reasonLines));
  }
  lines.push(...rds.flatMap((node) => nodeLines(node, all)));
  return lines.map(printable);
}

function socketLines({ stats, reasons }: ExplainedSocket): string[] {
  const { kind, local, remote, mode, thresholdBytes, zerocopy } = stats;
  const lends = isLending(stats) ? 'lending' : 'not lending';
  return [
    '',
    `${kind} ${local || '(unnamed)'} -> ${remote || '(any)'}  mode ${mode}, threshold ${size(thresholdBytes)}, ${lends} now`,
    `  ${countLine(zerocopy)}`,
    ...reasons.flatMap(reasonLines),
  ];
}

/** A socket that would lend to others, but whose receivers so far are of a kind for which it never does, is not lending. */
function isLending({ lending, zerocopy: { copied, lentBytes } }: SocketStats): boolean {
  return lending && (lentBytes > 0 || copied.loopback + copied.unsupported === 0);
}

/** How savings were found, and of what. */
export function costLine(costs: SendCosts | undefined): string {
  if (costs === undefined) return 'What a change would save could not be measured here.';
  const { cheapCopyMs, dearCopyMs, lendMs } = costs;
  if (lendMs === undefined)
    return 'What a change would save is not known: lending was refused when it was tried here.';
  return (
    `Savings are for the bytes so far, from costs measured here just now: a GB takes ${Math.round(cheapCopyMs)} ms to copy ` +
    `if all is in a cache, ${Math.round(dearCopyMs)} ms if nothing is, and ${Math.round(lendMs)} ms to lend.`
  );
}
