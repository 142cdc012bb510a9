/** On this host as it is, by an ordinary user: what must work, works, and whatever is found has its form. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { describe, it } from 'node:test';
import { doctor, doctorChecks, type Finding, features } from '../../src/index.ts';

async function find(only?: readonly string[]): Promise<Map<string, Finding>> {
  const found = new Map<string, Finding>();
  for await (const finding of doctor(only === undefined ? {} : { only })) found.set(finding.id, finding);
  return found;
}

describe('doctor', { timeout: 120_000 }, () => {
  it('runs every check, and none fails', async () => {
    const found = await find();
    assert.deepEqual(
      [...found.keys()],
      doctorChecks.map(({ id }) => id),
    );
    for (const { id, status, found: text, remedy, data } of found.values()) {
      assert.ok(['ok', 'warn', 'skip'].includes(status), `${id}: ${text}`);
      assert.ok(text.length > 0, id);
      assert.ok(remedy !== '', id);
      // Plain values, as JSON keeps them.
      assert.deepEqual(JSON.parse(JSON.stringify(data ?? {})), data ?? {}, id);
    }
  });

  it('lends on TCP and UDP, and not on local sockets', async () => {
    const found = await find(['zerocopy']);
    for (const id of ['zerocopy.tcp4', 'zerocopy.udp4']) {
      assert.deepEqual(found.get(id)?.data, { lends: true, copied: true, bytes: 8192 }, id);
    }
    assert.equal(found.get('zerocopy.unix')?.data?.lends, false);
  });

  it('takes a destination on this host for what it is', async () => {
    const found: Finding[] = [];
    for await (const finding of doctor({ to: '127.0.0.1:80', only: ['device'] })) found.push(finding);
    assert.deepEqual(
      found.map(({ id, status }) => [id, status]),
      [
        ['device.route', 'warn'],
        ['device.offload', 'skip'],
        ['device.taps', 'skip'],
      ],
    );
  });

  it('tells of a name that nobody has once, with a remedy', async () => {
    const found: Finding[] = [];
    // Not a name that a resolver would ask for.
    for await (const finding of doctor({ to: 'a b', only: ['device'] })) found.push(finding);
    const [route, ...others] = found.map(({ status, found: text, remedy }) => [status, text, remedy]);
    assert.deepEqual(route, [
      'fail',
      'there is no host of the name a b',
      'check the name after --to, or give an address',
    ]);
    const skipped = ['skip', 'there is no way to look at: device.route says why', undefined];
    assert.deepEqual(others, [skipped, skipped]);
  });

  it('says who has the port of RDS', async (t) => {
    const server = createServer();
    server.listen(16_385, '127.93.71.5');
    try {
      await once(server, 'listening');
    } catch {
      t.skip('somebody has the port on all addresses');
      return;
    }
    const { status, found, data } = (await find(['rds.port'])).get('rds.port') ?? assert.fail();
    server.close();
    assert.equal(status, 'warn');
    assert.match(found, new RegExp(`pid ${process.pid}\\b`));
    assert.equal(data?.free, false);
  });

  it('can be left before its end', async () => {
    for await (const { id } of doctor()) {
      assert.equal(id, 'addon');
      break;
    }
  });
});

describe('features()', { timeout: 60_000 }, () => {
  it('says the same without words', async () => {
    const is = await features();
    const found = await find(['zerocopy', 'fragments', 'memlock', 'udp', 'iouring', 'lending']);
    for (const [family, lends] of Object.entries(is.zerocopy)) {
      assert.equal(lends, found.get(`zerocopy.${family}`)?.data?.lends, family);
    }
    assert.equal(is.maxSkbFrags, found.get('fragments')?.data?.most);
    assert.equal(is.memlockBytes, found.get('memlock')?.data?.limitBytes);
    assert.equal(is.ioUring, found.get('iouring')?.data?.allowed);
    assert.equal(is.lendsForeign, found.get('lending')?.data?.lendsForeign);
    assert.equal(is.udpSegment, found.get('udp.segment')?.status === 'ok');
    assert.equal(is.udpGro, found.get('udp.gro')?.status === 'ok');
    assert.ok([4096, 16_384, 65_536].includes(is.pageBytes));
  });
});
