/** `zerotx` as a user starts it: its streams and exit codes, by way of `zerotx doctor`. */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { doctorChecks } from '../../src/index.ts';
import { ROOT } from '../support/sources.ts';

const tool = join(ROOT, 'dist/cli/zerotx.js');

function run(args: readonly string[], env: Record<string, string> = {}) {
  const { status, stdout, stderr } = spawnSync(process.execPath, [tool, ...args], {
    encoding: 'utf8',
    timeout: 60_000,
    env: { ...process.env, ...env },
  });
  return { status, stdout, stderr };
}

describe('zerotx', { timeout: 120_000 }, () => {
  it('prints its version and its help, with examples', () => {
    const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
    assert.deepEqual(run(['--version']), { status: 0, stdout: `${version}\n`, stderr: '' });
    const help = run(['--help']);
    assert.equal(help.status, 0);
    assert.match(help.stdout, /Commands:\n {2}doctor/);
    assert.match(help.stdout, /Examples:\n {2}zerotx doctor/);
    assert.deepEqual(run(['help', 'doctor']).stdout, run(['doctor', '--help']).stdout);
  });

  it('answers a wrong command line with 2, on standard error', () => {
    for (const args of [
      [],
      ['bogus'],
      ['--bogus'],
      ['doctor', '--bogus'],
      ['doctor', 'excess'],
      ['doctor', '--to'],
      ['doctor', '--to', 'a:b:c'],
      ['doctor', '--only', 'memlok'],
    ]) {
      const { status, stdout, stderr } = run(args);
      assert.deepEqual({ status, stdout }, { status: 2, stdout: '' }, args.join(' '));
      assert.ok(stderr.length > 0, args.join(' '));
    }
  });

  it('ends like any tool when nobody reads its output any more', async () => {
    const child = spawn(process.execPath, [tool, 'doctor'], { stdio: ['ignore', 'pipe', 'pipe'] });
    child.stdout.destroy();
    let errors = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      errors += text;
    });
    const [code] = await once(child, 'close');
    assert.deepEqual({ code, errors }, { code: 141, errors: '' });
  });
});

describe('zerotx doctor', { timeout: 120_000 }, () => {
  it('prints a line for each check, and a summary', () => {
    const { status, stdout, stderr } = run(['doctor']);
    assert.deepEqual({ status, stderr }, { status: 0, stderr: '' });
    const lines = stdout.trimEnd().split('\n');
    assert.equal(lines.length, doctorChecks.length + 1);
    for (const [i, { id }] of doctorChecks.entries()) {
      assert.match(lines[i]!, new RegExp(`^(?:ok  |warn|fail|skip)  ${id.replace('.', '\\.')} +\\S`));
    }
    assert.match(lines.at(-1)!, /: memory can be lent here$/);
    // Not a terminal: no colours.
    assert.ok(!stdout.includes('\u001b'));
  });

  it('prints one JSON document', () => {
    const { status, stdout } = run(['doctor', '--json', '--only', 'memlock,udp']);
    assert.equal(status, 0);
    const report = JSON.parse(stdout);
    assert.deepEqual(Object.keys(report), [
      ...['zerotx', 'node', 'kernel', 'arch', 'uid', 'to', 'zerocopyPossible', 'findings'],
    ]);
    assert.equal(report.node, process.version);
    assert.equal(report.zerocopyPossible, null, 'nobody tried');
    assert.deepEqual(
      report.findings.map(({ id }: { id: string }) => id),
      ['memlock', 'udp.segment', 'udp.gro'],
    );
    for (const finding of report.findings) {
      assert.deepEqual(
        Object.keys(finding).filter((key) => key !== 'remedy' && key !== 'data'),
        ['id', 'title', 'status', 'found'],
      );
    }
  });

  it('exits with 1 when the host was not found', () => {
    const { status, stdout } = run(['doctor', '--to', 'a b', '--only', 'zerocopy.tcp4,device']);
    assert.equal(status, 1);
    assert.match(stdout, /: lending works on loopback, but no way to a b was found$/m);
    assert.equal(run(['doctor', '--to', '127.0.0.1', '--only', 'device']).status, 0);
  });

  it('exits with 1 when nothing can be lent: without the addon', () => {
    const { status, stdout } = run(['doctor'], { ZEROTX_ADDON: '/nonexistent.node' });
    assert.equal(status, 1);
    assert.match(stdout, /^fail {2}addon .* -> npm run build:native/);
    assert.match(stdout, /^skip {2}zerocopy\.tcp4 +needs the addon$/m);
    assert.match(stdout, /NOTHING CAN BE LENT HERE/);
    assert.equal(run(['doctor', '--only', 'zerocopy'], { ZEROTX_ADDON: '/nonexistent.node' }).status, 1);
  });

  it('does not load the addon for its help', () => {
    assert.equal(run(['doctor', '--help'], { ZEROTX_ADDON: '/nonexistent.node' }).status, 0);
  });
});
