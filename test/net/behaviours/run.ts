/** Runs the table over one module, as tests. */
import { networkInterfaces } from 'node:os';
import { describe, it } from 'node:test';
import { BEHAVIOURS } from './index.ts';
import { Scene, WAIT_MS } from './scene.ts';
import type { Behaviour, NetModule } from './table.ts';

export interface Subject {
  readonly name: string;
  readonly net: NetModule;
  /** What a child process imports. */
  readonly specifier: string;
  /** Rows that differ run in their other form. */
  readonly differs: boolean;
}

const hasIpv6 = Object.values(networkInterfaces()).some((list) =>
  list?.some(({ address }) => address === '::1'),
);

export function runTable(subject: Subject): void {
  describe(`behaviours over ${subject.name}`, () => {
    for (const [area, table] of Object.entries(BEHAVIOURS)) {
      describe(area, () => {
        for (const row of table) {
          it(row.name, { timeout: 2 * WAIT_MS, skip: reasonToSkip(row) }, () => perform(row, subject));
        }
      });
    }
  });
}

async function perform(row: Behaviour, { net, specifier, differs }: Subject): Promise<void> {
  const scene = new Scene(net, specifier);
  const run = differs ? (row.differs?.run ?? row.run) : row.run;
  try {
    await run(net, scene);
  } finally {
    await scene.end();
  }
}

function reasonToSkip({ since, ipv6 }: Behaviour): string | false {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
  if (since !== undefined) {
    const newest = Math.max(...Object.keys(since).map(Number));
    const has = major > newest || minor >= (since[major] ?? Number.POSITIVE_INFINITY);
    if (!has) return `Node ${process.versions.node} does not have it`;
  }
  if (ipv6 === true && !hasIpv6) return 'no ::1 on the loopback interface';
  return false;
}
