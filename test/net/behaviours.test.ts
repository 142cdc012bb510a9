/** The table of behaviours as a table: complete, without doubles, and with its differences in the documentation. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { ROOT } from '../support/sources.ts';
import { BEHAVIOURS } from './behaviours/index.ts';

const rows = Object.values(BEHAVIOURS).flat();

test('it covers what programs do with sockets', () => {
  assert.ok(rows.length >= 200, `${rows.length} rows`);
  const areas = new Set(rows.flatMap((row) => row.areas));
  const wanted = [
    ...['connect', 'connect errors', 'autoSelectFamily', 'lookup', 'events', 'half-open', 'destroy', 'write'],
    ...[
      'back-pressure',
      'cork',
      'encodings',
      'read',
      'pause',
      'iteration',
      'pipe',
      'onread',
      'timeout',
      'options',
    ],
    ...[
      'ref',
      'address',
      'counts',
      'state',
      'ipv6',
      'unix',
      'listen',
      'server',
      'server close',
      'connections',
    ],
    ...['signal', 'dispose', 'errors', 'uncaught', 'arguments'],
  ];
  assert.deepEqual(
    wanted.filter((area) => !areas.has(area)),
    [],
  );
});

test('each name stands once', () => {
  const names = rows.map(({ name }) => name);
  assert.deepEqual(
    names.filter((name, i) => names.indexOf(name) !== i),
    [],
  );
});

test('each difference stands in docs/net.md, in the same words', () => {
  const page = readFileSync(join(ROOT, 'docs/net.md'), 'utf8').replace(/\s+/g, ' ');
  const missing = rows.flatMap(({ differs }) =>
    differs === undefined || page.includes(differs.why) ? [] : [differs.why],
  );
  assert.deepEqual(missing, []);
});
