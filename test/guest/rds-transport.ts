/** The tests of the kernel transport, in the order in which they run: see rds-transport.guest.test.ts. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { RdsNode } from '../../src/rds/node.ts';
import { splitZone } from '../../src/wire/sockaddr.ts';
import { assertIdle, codeOf, testNode } from '../support/rds-nodes.ts';
import { hasIpv6 } from './lab.ts';
import { type Flow, flowBytes, pattern } from './messages.ts';
import { receiveAll, sendAll } from './rds-transport-flows.ts';
import { GUEST, IPV6, OURS, TransportGuest } from './rds-transport-guest.ts';
import { held } from './rds-transport-held.ts';

const KIB = 1024;
const SIZES = [1, 2, 63, 64, 4095, 4096, 65_535, 65_536, 106_496, 1024 * KIB];
const flow: Flow = { bytes: SIZES, count: 2 * SIZES.length };

describe('RDS sockets of a kernel', () => {
  const guest = new TransportGuest();
  const nodes = new Map<string, RdsNode>();

  before(() => guest.setUp(), { timeout: 120_000 });
  after(async () => {
    await guest.tearDown();
    await Promise.all([...nodes.values()].map((node) => node.close()));
  });

  function node(address: string): RdsNode {
    const known = nodes.get(address) ?? testNode(address);
    nodes.set(address, known);
    return known;
  }

  it('on the loopback transport lend nothing, and send all the same', { timeout: 20_000 }, async () => {
    const result = await guest.call('check', 'loopback');
    assert.deepEqual(result, {
      code: 'EOPNOTSUPP',
      outcome: { bytes: 10_000, copiedBytes: 10_000, exact: true },
      transport: 3,
    });
  });

  it('get a loan back from the same host when it was read', { timeout: 20_000 }, async () => {
    const result = await guest.call('check', 'localLoan');
    assert.deepEqual(result, {
      before: { lentBytes: 100_000, received: null },
      after: { received: { kind: 'completion', cookies: [7] }, lentBytes: 0 },
    });
  });

  for (const [role, address] of Object.entries(OURS)) {
    for (const zerocopy of [false, true]) {
      it(`exchange ${flow.count} messages of 1 B to 1 MiB with ours, the ${role} address, ${zerocopy ? 'lent' : 'copied'}`, {
        timeout: 60_000,
      }, async () => {
        const theirs = await guest.call('bind', 0, { zerocopy });
        const ours = node(address).bind(0, { zerocopy });
        const [sent, , , received] = await Promise.all([
          guest.call('send', theirs, flow, { address, port: ours.port }),
          receiveAll(ours, flow),
          sendAll(ours, flow, { address: GUEST, port: theirs }),
          guest.call('receive', theirs, flow),
        ]);
        assert.deepEqual(received, { address, port: ours.port });
        assert.deepEqual(sent, {
          messages: flow.count,
          bytes: flowBytes(flow),
          copiedBytes: zerocopy ? 0 : flowBytes(flow),
        });
        await Promise.all([guest.call('close', theirs, {}), ours.close()]);
        assertIdle(node(address));
      });
    }
  }

  for (const [scope, { ours: address, guest: theirAddress, theirView }] of Object.entries(IPV6)) {
    const skip = hasIpv6 ? false : 'this machine has no IPv6';
    it(`exchange them over ${scope} IPv6`, { timeout: 60_000, skip }, async () => {
      const theirs = await guest.call('bind', 0, { zerocopy: true }, theirAddress);
      const ours = node(address).bind(0);
      const seen = splitZone(theirAddress).host + (address.includes('%') ? '%zk0' : '');
      const [, from, , received] = await Promise.all([
        guest.call('send', theirs, flow, { address: theirView, port: ours.port }),
        receiveAll(ours, flow),
        sendAll(ours, flow, { address: seen, port: theirs }),
        guest.call('receive', theirs, flow),
      ]);
      assert.deepEqual(from, { address: seen, port: theirs });
      assert.deepEqual(received, { address: theirView, port: ours.port });
      await Promise.all([guest.call('close', theirs, {}), ours.close()]);
    });
  }

  it('give back every cookie, though all have the same number', { timeout: 60_000 }, async () => {
    const theirs = await guest.call('bind', 0, { zerocopy: true });
    const many: Flow = { bytes: [1, 4097, 20_000, 65_536], count: 400 };
    for (const address of Object.values(OURS)) {
      const ours = node(address).bind(0);
      const to = { address, port: ours.port };
      const [returned] = await Promise.all([
        guest.call('cookies', theirs, many, to, 0xffffffff),
        receiveAll(ours, many),
      ]);
      assert.equal(returned, many.count);
      await ours.close();
    }
    await guest.call('close', theirs, {});
    assert.equal((await guest.call('stats')).lentBytes, 0);
  });

  for (const [role, address] of Object.entries(OURS)) {
    it(`lose no wake-up where buffers are always full, with us as the ${role} address`, {
      timeout: 60_000,
    }, async () => {
      const tight = { sendBufferBytes: 4608, receiveBufferBytes: 2304, zerocopy: true };
      const theirs = await guest.call('bind', 0, tight);
      const ours = node(address).bind(0, tight);
      const small: Flow = { bytes: [64, 1500, 3], count: 1500 };
      await Promise.all([
        guest.call('send', theirs, small, { address, port: ours.port }),
        receiveAll(ours, small),
        sendAll(ours, small, { address: GUEST, port: theirs }),
        guest.call('receive', theirs, small),
      ]);
      await Promise.all([guest.call('close', theirs, {}), ours.close()]);
    });
  }

  it('hold back for a congested port of ours, and hear when it is free', { timeout: 30_000 }, async () => {
    const theirs = await guest.call('bind', 0, { congestionMonitor: true });
    const ours = node(OURS.smaller).bind(0, { receiveBufferBytes: 100_000 });
    const to = { address: OURS.smaller, port: ours.port };
    const accepted = await guest.call('fill', theirs, 10_000, to);
    assert.ok(accepted > 10, `${accepted}`);
    const news = guest.call('news', theirs);
    await receiveAll(ours, { bytes: 10_000, count: accepted });
    assert.equal((BigInt(await news) >> BigInt(ours.port % 64)) & 1n, 1n);
    const after: Flow = { bytes: 10_000, count: 5 };
    await Promise.all([guest.call('send', theirs, after, to), receiveAll(ours, after)]);
    await Promise.all([guest.call('close', theirs, {}), ours.close()]);
  });

  it('hold us back when theirs is congested, until it is read', { timeout: 30_000 }, async () => {
    const theirs = await guest.call('bind', 0, { receiveBufferBytes: 100_000 });
    const ours = node(OURS.larger).bind(0);
    const to = { address: GUEST, port: theirs };
    let accepted = 0;
    while (codeOf(() => ours.sendmsg(pattern(accepted, 10_000), to)) !== 'ENOBUFS') {
      accepted += 1;
      await new Promise((resolve) => setImmediate(resolve));
    }
    const after: Flow = { bytes: 10_000, count: 1 };
    const sending = sendAll(ours, after, to);
    await guest.call('receive', theirs, { bytes: 10_000, count: accepted });
    await Promise.all([sending, guest.call('receive', theirs, after)]);
    await Promise.all([guest.call('close', theirs, {}), ours.close()]);
  });

  held(guest, node);

  it('go with their thread, loans and all', { timeout: 30_000 }, async () => {
    const result = await guest.call('check', 'threadEnds');
    assert.deepEqual(result, { lentBytes: 300_000, isSamePort: true });
  });

  it('meet the kernel’s limit of pinned pages, and wait', { timeout: 60_000 }, async () => {
    const result = await guest.call('check', 'memlock');
    const codes = [null, null, null, 'ENOMEM'];
    assert.deepEqual(result, { codes, lentBytes: 3 * 256 * KIB, wasWritable: true, waiting: 'ECANCELED' });
  });

  it('meet the budget of the process', { timeout: 30_000 }, async () => {
    const result = await guest.call('check', 'budget');
    assert.deepEqual(result, {
      // 75 pages; another 75 do not fit, 2 do.
      codes: [null, 'ENOMEM', null],
      used: 77,
      tooLarge: { bytes: 500_000, copiedBytes: 500_000, exact: true },
      again: null,
    });
  });

  it('keep a lease out of its pool while it is lent', { timeout: 20_000 }, async () => {
    const result = await guest.call('check', 'lease');
    assert.deepEqual(result, { during: 1, lentBytes: 100_000, sent: 'ECANCELED', after: 0 });
  });

  it('iterate, dispose, and have cookies as error-queue records', { timeout: 20_000 }, async () => {
    const result = await guest.call('check', 'surface');
    assert.deepEqual(result, {
      lengths: [10, 11, 12, 13, 14, 15, 16, 17, 18, 19],
      records: [
        { origin: 'ZCOOKIE', cookies: [0, 1, 2, 3, 4, 5, 6, 7] },
        { origin: 'ZCOOKIE', cookies: [8, 9] },
        null,
      ],
    });
  });

  it('are in the kernel’s tables, with every lane of their connections', { timeout: 20_000 }, async () => {
    const theirs = await guest.call('bind', 0, {});
    const { counters, sockets, connections, tcpSockets } = await guest.call('info');
    assert.ok((counters.recv_delivered ?? 0) > 100);
    assert.ok(Object.keys(counters).includes('tcp_data_ready_calls'));
    const socket = sockets.find((each) => each.port === theirs);
    assert.equal(socket?.address, GUEST);
    for (const address of Object.values(OURS)) {
      const connection = connections.find((each) => each.remoteAddress === address);
      const { transport, connected, lane, localAddress } = connection ?? {};
      assert.deepEqual(
        { transport, connected, lane, localAddress },
        { transport: 'tcp', connected: true, lane: 0, localAddress: GUEST },
      );
      const lanes = tcpSockets.filter((each) => each.remoteAddress === address);
      assert.ok(lanes.length >= 1);
      // One of the two ports is that of RDS: who dialled has another.
      assert.ok(lanes.every((each) => each.localPort === 16_385 || each.remotePort === 16_385));
    }
    await guest.call('close', theirs, {});
  });

  it('do what the table of calls says', { timeout: 120_000 }, async () => {
    const results = (await guest.call('check', 'table')) as { row: string; holds: boolean }[];
    assert.deepEqual(
      results.filter(({ holds }) => !holds),
      [],
    );
    console.log(`${results.length} rows of the table hold for the kernel`);
  });
});
