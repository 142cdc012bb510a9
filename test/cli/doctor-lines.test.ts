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
  const way = (status: Status): Finding => finding(status, { id: 'device.route' });

  it('counts what there is', () => {
    assert.equal(
      summaryLine([finding('ok'), finding('ok'), finding('warn'), finding('skip')], true, undefined),
      '2 ok, 1 warn, 1 skip: memory can be lent here',
    );
  });

  it('says so when nothing can be lent', () => {
    assert.match(summaryLine([finding('fail')], false, undefined), /^1 fail: NOTHING CAN BE LENT/);
  });

  it('says what was tried when lending was not', () => {
    assert.equal(
      summaryLine([finding('ok'), way('skip')], null, undefined),
      '1 ok, 1 skip: lending was not tried, only optmem',
    );
    assert.equal(summaryLine([finding('skip')], null, undefined), '1 skip: lending was not tried');
  });

  it('assures of the way to a host only if it was looked at, and is clear', () => {
    assert.equal(summaryLine([way('ok')], true, 'host:1'), '1 ok: memory can be lent here');
    assert.equal(
      summaryLine([way('warn'), finding('warn')], true, 'host:1'),
      '2 warn: memory can be lent here, but on the way to host:1 see device.route',
    );
    assert.equal(
      summaryLine([way('fail')], true, 'no\u009bhost'),
      '1 fail: lending works on loopback, but no way to no host was found',
    );
  });
});
