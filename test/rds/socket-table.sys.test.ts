/**
 * The table of calls over our own sockets: two nodes in two worlds of their own, so that there is TCP between them, and two in
 * one, which are local to each other. Over IPv6 in socket-table.lab.test.ts, over the kernel's sockets in test/guest.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { deviations } from './table/deviations.ts';
import { groups } from './table/index.ts';
import { rowName } from './table/shape.ts';
import { tableSuite } from './table/suite.ts';

tableSuite('over TCP', { addresses: ['127.25.0.1', '127.25.0.2'], absent: '127.25.0.200' });
tableSuite('within one process', {
  addresses: ['127.25.1.1', '127.25.1.2'],
  absent: '127.25.1.200',
  nodes: new Map(),
});

describe('the list of deviations', () => {
  it('names rows that there are, each once for a transport', () => {
    const rows = new Set(groups.flatMap((group) => group.rows.map((row) => rowName(group, row))));
    const names = deviations.map(({ transport, row }) => `${transport} ${row}`);
    assert.deepEqual(
      deviations.filter(({ row }) => !rows.has(row)),
      [],
    );
    assert.equal(new Set(names).size, names.length);
    assert.ok(deviations.every(({ reason }) => reason.length > 20));
  });

  it('rows have names of their own', () => {
    const names = groups.flatMap((group) => group.rows.map((row) => rowName(group, row)));
    assert.equal(new Set(names).size, names.length);
  });
});
