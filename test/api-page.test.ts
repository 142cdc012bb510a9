/** docs/api.md is written by hand: what it names must exist, and what it lists must be complete. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { zerocopyCounters } from '../src/net/counters.ts';
import { rdsCounters } from '../src/rds/counters.ts';
import * as door from '../src/rds/index.ts';
import { defaultLimits } from '../src/rds/options.ts';
import { ROOT, sources } from './support/sources.ts';

const page = readFileSync(join(ROOT, 'docs/api.md'), 'utf8');
const src = sources(['src'], ['.ts'])
  .map(({ text }) => text)
  .join('\n');
/** The text between backquotes, as the page has it. */
const spans = [...page.matchAll(/`([^`\n]+)`/g)].map(([, text = '']) => text);

test('names in code spans, and codes of errors, are names in the sources', () => {
  // What is not ours: commands, the caller's own variables, words of the language and of Node.
  const foreign = new Set([
    'rds-info -c',
    'dist/rds/index.d.ts',
    'floor(bytes / page) + 2',
    'signal.reason',
    'await using',
  ]);
  const words = spans
    .filter((text) => !foreign.has(text))
    .flatMap((text) => text.match(/[A-Za-z_]\w*/g) ?? [])
    .concat(page.match(/\b(?:E[A-Z_]{4,}|ZTX_[A-Z_]+|RDS_[A-Z_]+)\b/g) ?? []);
  assert.ok(words.length > 200, `only ${words.length} words`);
  const unknown = words.filter((word) => !new RegExp(`\\b${word}\\b`).test(src));
  assert.deepEqual([...new Set(unknown)], []);
});

test('it has every class, limit, event, option and counter', () => {
  const members = [door.RdsNode, door.RdsSocket].flatMap(({ prototype }) =>
    Object.getOwnPropertyNames(prototype),
  );
  // For the library's own use, though it can be seen.
  const internal = new Set(
    [
      'constructor roomMade cancel checkAcks congestionNews deliver deliverLocally destination emitEvents',
      'eventsDue forget held lane laneClosed paused peers receiveLocally sequenceBase unbind uncharge waitsForBudget warn',
    ]
      .join(' ')
      .split(' '),
  );
  const wanted = [
    ...Object.keys(door),
    ...Object.keys(defaultLimits).map((name) => `limits.${name}`),
    ...Object.keys(rdsCounters()),
    ...Object.keys(zerocopyCounters()),
    ...members.filter((name) => !internal.has(name)),
  ];
  const named = new Set(spans.flatMap((text) => [...text.split(/[^\w.]+/), ...text.split(/\W+/)]));
  const missing = wanted.filter((name) => !named.has(name));
  assert.deepEqual(missing, []);
});
