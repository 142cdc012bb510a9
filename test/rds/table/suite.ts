/** The table as tests, over a factory of our own sockets. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { ZerotxError } from '../../../src/core/errors.ts';
import { RdsNode } from '../../../src/rds/node.ts';
import { testNode } from '../../support/rds-nodes.ts';
import { deviations } from './deviations.ts';
import { groups } from './index.ts';
import { Table } from './run.ts';
import type { Factory } from './shape.ts';

export interface Place {
  readonly addresses: readonly [string, string];
  readonly absent: string;
  /** Nodes that share a map are local to each other; over TCP each has its own. */
  readonly nodes?: Map<string, RdsNode>;
}

function factoryOf({ addresses, absent, nodes }: Place): Factory {
  return {
    transport: 'tcp',
    addresses,
    absent,
    open: async (address) => {
      if (addresses.includes(address)) return testNode(address, { nodes: nodes ?? new Map() });
      // What is not of this host is refused, before there is a node.
      const node = await RdsNode.open({ address });
      await node.close();
      throw new ZerotxError('EEXIST', `${address} can be opened`);
    },
  };
}

export function tableSuite(name: string, place: Place): void {
  const isIpv6 = place.absent.includes(':');
  describe(`sockets ${name}`, { timeout: 120_000 }, () => {
    let table: Table;
    before(async () => {
      table = await Table.open(factoryOf(place), deviations);
    });
    after(() => table.close());
    for (const group of groups) {
      describe(group.name, () => {
        for (const row of group.rows) {
          if (isIpv6 && row.name.includes('from an IPv4 socket')) continue;
          it(row.name, async () => {
            const { outcome, expected } = await table.run(group, row);
            assert.deepEqual(outcome, expected);
          });
        }
      });
    }
  });
}
