import assert from 'node:assert/strict';
import { it } from 'node:test';
import { runChild } from '../support/children.ts';

const RUNS = Number(process.env.FUZZ_RUNS ?? '300');

it('wrong arguments never crash the process', { timeout: 300_000 }, async () => {
  const child = new URL('./children/fuzz.js', import.meta.url);
  const result = await runChild(child, [`${RUNS}`], { deadlineMs: 280_000 });
  assert.deepEqual({ code: result.code, signal: result.signal }, { code: 0, signal: null }, explain(result));
  assert.match(result.stdout, /survived/, explain(result));
});

function explain(result: { stdout: string; stderr: string }): string {
  return `${result.stdout}\n${result.stderr.slice(-4000)}`;
}
