import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { ZerotxError } from '../../src/core/errors.ts';
import { catalogue, select } from '../../src/doctor/catalogue.ts';
import { parseHostPort } from '../../src/doctor/destination.ts';
import { type Check, type Finding, result, type Status } from '../../src/doctor/finding.ts';
import { Absent } from '../../src/doctor/loopback.ts';
import { doctor, runChecks } from '../../src/doctor/run.ts';
import { zerocopyIsPossible } from '../../src/doctor/verdict.ts';
import { ROOT } from '../support/sources.ts';

function check(id: string, run: Check['run']): Check {
  return { id, title: id, withoutAddon: true, run };
}

async function all(findings: AsyncIterable<Finding>): Promise<Finding[]> {
  const list: Finding[] = [];
  for await (const finding of findings) list.push(finding);
  return list;
}

const fine = check('fine', () => result('ok', 'found'));

describe('checks', () => {
  it('are run in order, each with its id and title', async () => {
    const findings = await all(
      runChecks([fine, check('b', async () => result('warn', 'x'))], undefined, 1000),
    );
    assert.deepEqual(findings, [
      { id: 'fine', title: 'fine', status: 'ok', found: 'found' },
      { id: 'b', title: 'b', status: 'warn', found: 'x' },
    ]);
  });

  it('that throw fail for themselves alone', async () => {
    const bad = check('bad', () => {
      throw new ZerotxError('EPERM', 'not for you');
    });
    const odd = check('odd', async () => {
      throw 'a string';
    });
    const findings = await all(runChecks([bad, odd, fine], undefined, 1000));
    assert.deepEqual(
      findings.map(({ status, found, data }) => [status, found, data?.code]),
      [
        ['fail', 'not for you', 'EPERM'],
        ['fail', 'a string', null],
        ['ok', 'found', undefined],
      ],
    );
  });

  it('for which there is nothing to try are skipped, with the way out', async () => {
    const [finding] = await all(
      runChecks([check('none', () => Promise.reject(new Absent('no loopback')))], undefined, 1000),
    );
    assert.equal(finding?.status, 'skip');
    assert.match(finding?.remedy ?? '', /ip link/);
  });

  it('that do not come back are told so, and left behind', { timeout: 10_000 }, async () => {
    let told = false;
    const stuck = check(
      'stuck',
      ({ signal }) =>
        new Promise((_, reject) => {
          signal.addEventListener('abort', () => {
            told = true;
            reject(new Error('too late to matter'));
          });
        }),
    );
    const findings = await all(runChecks([stuck, fine], undefined, 20));
    assert.equal(told, true);
    assert.deepEqual(
      findings.map(({ status, found }) => [status, found]),
      [
        ['fail', 'no answer within 20 ms'],
        ['ok', 'found'],
      ],
    );
  });

  it('look for the destination once', async () => {
    const promises = new Set<Promise<unknown>>();
    const asks = (id: string): Check =>
      check(id, async ({ destination, asked }) => {
        const found = destination();
        promises.add(found);
        assert.equal(asked, true);
        await found;
        return result('ok', 'found');
      });
    // Not an address, and no name either: getaddrinfo() refuses it without asking anybody.
    await all(runChecks([asks('a'), asks('b')], { host: 'a b' }, 5000));
    assert.equal(promises.size, 1);
  });
});

describe('names of checks', () => {
  it('are unique, and no group has the name of a check', () => {
    const ids = catalogue.map(({ id }) => id);
    assert.equal(new Set(ids).size, ids.length);
    assert.deepEqual(
      ids.filter((id) => ids.some((other) => other.startsWith(`${id}.`))),
      [],
    );
  });

  it('are all on the page that explains them', () => {
    const page = readFileSync(join(ROOT, 'docs/doctor.md'), 'utf8');
    const named = new Set([...page.matchAll(/`([\w.]+)`/g)].map(([, name = '']) => name));
    const missing = catalogue.filter(({ id }) => !named.has(id) && !named.has(id.replace(/^\w+/, '')));
    assert.deepEqual(missing, []);
  });

  it('select checks and groups, in the order of the catalogue', () => {
    const ids = (only: readonly string[]): string[] => select(only).map(({ id }) => id);
    assert.deepEqual(ids(['memlock', 'addon']), ['addon', 'memlock']);
    assert.deepEqual(ids(['udp']), ['udp.segment', 'udp.gro']);
    assert.deepEqual(ids(['zerocopy.tcp4', 'zerocopy']).length, 6);
    assert.equal(select(undefined), catalogue);
  });

  it('that are unknown are refused before anything runs', async () => {
    assert.throws(() => select(['memlok']), { code: 'EINVAL', message: /"memlok"/ });
    await assert.rejects(all(doctor({ only: ['zero'] })), { code: 'EINVAL' });
    await assert.rejects(all(doctor({ to: 'a:b:c' })), { code: 'EINVAL' });
  });
});

describe('a destination', () => {
  it('is a host, with a port or without', () => {
    assert.deepEqual(parseHostPort('storage.example'), { host: 'storage.example' });
    assert.deepEqual(parseHostPort('storage.example:9000'), { host: 'storage.example', port: 9000 });
    assert.deepEqual(parseHostPort('203.0.113.7:1'), { host: '203.0.113.7', port: 1 });
    assert.deepEqual(parseHostPort('2001:db8::7'), { host: '2001:db8::7' });
    assert.deepEqual(parseHostPort('[2001:db8::7]'), { host: '2001:db8::7' });
    assert.deepEqual(parseHostPort('[::ffff:10.0.0.1]:65535'), { host: '::ffff:10.0.0.1', port: 65_535 });
  });

  it('is nothing else', () => {
    for (const text of [
      '',
      ':80',
      'host:',
      'host:0',
      'host:65536',
      'host:http',
      'a:b:c',
      '[::1',
      '::1]:80',
    ]) {
      assert.throws(() => parseHostPort(text), { code: 'EINVAL' }, text);
    }
  });
});

describe('the verdict', () => {
  const finding = (id: string, status: Status, data?: Finding['data']): Finding => ({
    id,
    title: id,
    status,
    found: '',
    ...(data === undefined ? {} : { data }),
  });

  it('is no only if nothing that was tried lends', () => {
    assert.equal(
      zerocopyIsPossible([finding('zerocopy.tcp4', 'fail'), finding('zerocopy.udp4', 'ok')]),
      true,
    );
    assert.equal(
      zerocopyIsPossible([finding('zerocopy.tcp4', 'fail'), finding('zerocopy.tcp6', 'skip')]),
      false,
    );
  });

  it('is open if nothing was tried', () => {
    assert.equal(zerocopyIsPossible([]), null);
    assert.equal(zerocopyIsPossible([finding('memlock', 'fail'), finding('zerocopy.vsock', 'skip')]), null);
    assert.equal(zerocopyIsPossible([finding('zerocopy.unix', 'ok')]), null);
  });

  it('does not take local sockets for an answer', () => {
    assert.equal(
      zerocopyIsPossible([finding('zerocopy.tcp4', 'fail'), finding('zerocopy.unix', 'ok')]),
      false,
    );
  });

  it('is no without the addon, whatever else was asked for', () => {
    const missing = { code: 'ZTX_NO_ADDON' };
    assert.equal(zerocopyIsPossible([finding('addon', 'fail', missing)]), false);
    assert.equal(zerocopyIsPossible([finding('zerocopy.tcp4', 'skip', missing)]), false);
  });
});
