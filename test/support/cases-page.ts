/** Pages that say which tests hold which situation (cases.md): tests that every row has some, and that they exist. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { it } from 'node:test';
import { fileURLToPath } from 'node:url';

const ROOT = new URL('../../../', import.meta.url);

interface Row {
  readonly id: string;
  readonly tests: string;
}

function read(path: string): string {
  return readFileSync(fileURLToPath(new URL(path, ROOT)), 'utf8');
}

/** Rows of all tables of the page: an id such as `A1` in the first column, tests in the last. */
function rowsOf(page: string): Row[] {
  return read(page)
    .split('\n')
    .map((line) => line.split('|').map((cell) => cell.trim()))
    .filter((cells) => /^[A-Z]\d+$/.test(cells[1] ?? ''))
    .map((cells) => ({ id: cells[1] as string, tests: cells.at(-2) as string }));
}

/** Declares the tests of the page at `page`, a path from the root, which has more than `rowsMin` rows. */
export function itNamesTests(page: string, rowsMin: number): void {
  const rows = rowsOf(page);

  it('every row of the table has tests, or says why it has none', () => {
    assert.ok(rows.length > rowsMin, `${rows.length} rows`);
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
        const source = read(file).replaceAll("\\'", "'");
        for (const name of names.replace(/\([^)]*\)\s*$/, '').split(';')) {
          const text = name.trim();
          if (text !== '' && !source.includes(text)) missing.push(`${id}: ${file}: ${text}`);
        }
      }
    }
    assert.deepEqual(missing, []);
  });
}
