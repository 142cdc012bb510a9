/** What the lines of sockets and of RDS nodes have in common. */
import type { SocketStats } from '../../net/index.ts';
import type { Reason, Saving } from './reasons.ts';
import { size } from './size.ts';

/** Sockets of a program, and peers of a node; --all shows all. */
export const SHOWN = 10;
const INDENT = ' '.repeat(25);

export function countLine({ lentBytes, kernelCopiedBytes, fallbackBytes }: SocketStats['zerocopy']): string {
  return (
    `zerotx lent ${size(lentBytes)}, of which the kernel copied ${size(kernelCopiedBytes)}; ` +
    `it copied ${size(fallbackBytes)} itself`
  );
}

export function reasonLines({ id, bytes, why, remedy, saves }: Reason): string[] {
  return [
    `  ${size(bytes).padEnd(10)}  ${id.padEnd(11)}${why}`,
    ...(remedy === undefined ? [] : [`${INDENT}-> ${remedy}`]),
    ...(saves === undefined ? [] : [`${INDENT}would have saved ${saving(saves)} of CPU time`]),
  ];
}

export function moreLine(more: number): string {
  return `${more} more that copied less: --all shows them`;
}

function saving({ leastMs, mostMs }: Saving): string {
  const most = duration(mostMs);
  return duration(leastMs) === most ? `about ${most}` : `${duration(leastMs)} to ${most}`;
}

function duration(ms: number): string {
  if (ms < 1) return 'less than 1 ms';
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toPrecision(2)} s`;
}
