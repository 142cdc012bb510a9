/** Findings as lines: status, id, what was found, and what to do about it. */
import type { Finding, Status } from '../../index.ts';
import { printable } from '../printable.ts';

const colors: Readonly<Record<Status, number>> = { ok: 32, warn: 33, fail: 31, skip: 90 };

const ID_COLUMNS = 18;

/** One line, whatever the system's messages have in them. */
export function findingLine({ status, id, found, remedy }: Finding, color: boolean): string {
  const word = status.padEnd(4);
  const text = remedy === undefined ? found : `${found} -> ${remedy}`;
  return `${color ? `\u001b[${colors[status]}m${word}\u001b[0m` : word}  ${id.padEnd(ID_COLUMNS)}  ${printable(text)}`;
}

/** Counts, and what they come to: `possible` is what zerocopyIsPossible() says, `to` whom it was asked for. */
export function summaryLine(
  findings: readonly Finding[],
  possible: boolean | null,
  to: string | undefined,
): string {
  const counts = (Object.keys(colors) as Status[])
    .map((status) => [status, findings.filter((finding) => finding.status === status).length] as const)
    .filter(([, count]) => count > 0)
    .map(([status, count]) => `${count} ${status}`);
  return printable(`${counts.join(', ')}: ${verdict(findings, possible, to)}`);
}

function verdict(findings: readonly Finding[], possible: boolean | null, to: string | undefined): string {
  if (possible === false) return 'NOTHING CAN BE LENT HERE: every send is copied';
  if (possible === null) {
    const tried = findings.filter(({ status }) => status !== 'skip').map(({ id }) => id);
    return `lending was not tried${tried.length === 0 ? '' : `, only ${tried.join(', ')}`}`;
  }
  if (to === undefined) return 'memory can be lent here';
  if (wayIsLost(findings)) return `lending works on loopback, but no way to ${to} was found`;
  const warnings = findings.filter(({ id, status }) => id.startsWith('device.') && status === 'warn');
  if (warnings.length === 0) return 'memory can be lent here';
  return `memory can be lent here, but on the way to ${to} see ${warnings.map(({ id }) => id).join(', ')}`;
}

/** A host was named, and there is none, or no route to it. */
export function wayIsLost(findings: readonly Finding[]): boolean {
  return findings.some(({ id, status }) => id === 'device.route' && status === 'fail');
}
