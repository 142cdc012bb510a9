/** The table of situations, cases.md, names tests that exist. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { it } from 'node:test';
import { fileURLToPath } from 'node:url';

const ROOT = new URL('../../../', import.meta.url);
const table = readFileSync(fileURLToPath(new URL('test/net/cases.md', ROOT)), 'utf8');

interface Row {
  readonly id: string;
  readonly tests: string;
}

const rows: Row[] = table
  .split('\n')
  .map((line) => line.split('|').map((cell) => cell.trim()))
  .filter((cells) => /^[A-Z]\d+$/.test(cells[1] ?? ''))
  .map((cells) => ({ id: cells[1] as string, tests: cells.at(-2) as string }));

it('every row of the table has tests, or says why it has none', () => {
  assert.ok(rows.length > 30);
  assert.deepEqual(
    rows.filter(({ tests }) => !/^(?:`test\/|n\/a: |as [A-Z]\d)/.test(tests)).map(({ id }) => id),
    [],
  );
  assert.equal(new Set(rows.map(({ id }) => id)).size, rows.length);
});

it('every test that the table names exists, in the file that it names', () => {
  const missing: string[] = [];
  for (const { id, tests } of rows) {
    // `file` name; name; `file` name (a remark)
    for (const [, file = '', names = ''] of tests.matchAll(/`(test\/[^`]+)`([^`]*)/g)) {
      const source = readFileSync(fileURLToPath(new URL(file, ROOT)), 'utf8').replaceAll("\\'", "'");
      for (const name of names.replace(/\([^)]*\)\s*$/, '').split(';')) {
        const text = name.trim();
        if (text !== '' && !source.includes(text)) missing.push(`${id}: ${file}: ${text}`);
      }
    }
  }
  assert.deepEqual(missing, []);
});
