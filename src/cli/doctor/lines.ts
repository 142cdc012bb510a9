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

export function summaryLine(findings: readonly Finding[], possible: boolean): string {
  const counts = (Object.keys(colors) as Status[])
    .map((status) => [status, findings.filter((finding) => finding.status === status).length] as const)
    .filter(([, count]) => count > 0)
    .map(([status, count]) => `${count} ${status}`);
  const lends = findings.some(({ data }) => data?.lends === true);
  const verdict = possible
    ? lends
      ? 'memory can be lent here'
      : 'lending was not tried'
    : 'NOTHING CAN BE LENT HERE: every send is copied';
  return `${counts.join(', ')}: ${verdict}`;
}
