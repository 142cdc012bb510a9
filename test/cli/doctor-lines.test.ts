import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { findingLine, summaryLine } from '../../src/cli/doctor/lines.ts';
import type { Finding, Status } from '../../src/index.ts';

function finding(status: Status, more: Partial<Finding> = {}): Finding {
  return { id: 'optmem', title: 'Records', status, found: '20 KiB a socket', ...more };
}

describe('a finding as a line', () => {
  it('has status, id, what was found, and the remedy', () => {
    assert.equal(findingLine(finding('ok'), false), 'ok    optmem              20 KiB a socket');
    assert.equal(
      findingLine(finding('warn', { remedy: 'sysctl -w net.core.optmem_max=131072' }), false),
      'warn  optmem              20 KiB a socket -> sysctl -w net.core.optmem_max=131072',
    );
  });

  it('is coloured in its first word only', () => {
    assert.equal(
      findingLine(finding('fail'), true),
      '\u001b[31mfail\u001b[0m  optmem              20 KiB a socket',
    );
  });

  it('stays one line, and gives the terminal no commands of others', () => {
    const line = findingLine(finding('warn', { found: 'tap of \u001b[2Jevil\r\nname\u009b1m' }), false);
    assert.equal(line, 'warn  optmem              tap of  [2Jevil name 1m');
  });
});

describe('the summary', () => {
  const lends = finding('ok', { data: { lends: true } });

  it('counts what there is', () => {
    assert.equal(
      summaryLine([lends, finding('ok'), finding('warn'), finding('skip')], true),
      '2 ok, 1 warn, 1 skip: memory can be lent here',
    );
  });

  it('says so when nothing can be lent, and when nobody tried', () => {
    assert.match(summaryLine([finding('fail')], false), /^1 fail: NOTHING CAN BE LENT/);
    assert.match(summaryLine([finding('ok')], true), /^1 ok: lending was not tried$/);
  });
});
