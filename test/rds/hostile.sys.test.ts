/**
 * Peers that send what they should not, over real TCP. Each time: that connection is dropped or the nonsense ignored,
 * as the rules say; a counter moves; there is one warning per peer and kind; and a good peer goes on exchanging messages.
 *
 * Both roles are played: a smaller address dials the node under test, a larger one is dialled by it.
 */
import assert from 'node:assert/strict';
import { after, before, describe, type TestContext, test } from 'node:test';
import type { RdsCounters } from '../../src/rds/counters.ts';
import { CONG_BITMAP, HEADER_BYTES, MAX_PAYLOAD } from '../../src/wire/rds.ts';
import { CONG_MAP_BYTES } from '../../src/wire/rds-congestion.ts';
import { Random } from '../support/random.ts';
import { mapMessage, message, probeMessage, RawConnection, RawListener, until } from '../support/raw-peer.ts';
import { PORT, TestNode } from '../support/tcp-nodes.ts';

const VICTIM = '127.71.5.5';
const options = { timeout: 60_000 };

let victim: TestNode;
let good: TestNode;
let nextHost = 1;

before(async () => {
  victim = new TestNode(VICTIM, { speed: 10 });
  good = new TestNode('127.71.5.4');
  await good.exchange(victim);
});

after(async () => {
  await Promise.all([victim.close(), good.close()]);
});

interface Peer {
  readonly address: string;
  /** The connection in use. */
  readonly connection: RawConnection;
  /** After a drop: the next connection. */
  again(): Promise<RawConnection>;
}

type Role = 'smaller' | 'larger';

/** A peer with a fresh address and one established connection to the victim. */
async function peer(context: TestContext, role: Role): Promise<Peer> {
  const host = nextHost++;
  if (role === 'smaller') {
    const address = `127.71.1.${host}`;
    const again = async (): Promise<RawConnection> => {
      const connection = await RawConnection.dial(address, VICTIM);
      context.after(() => connection.reset());
      return connection;
    };
    return { address, connection: await again(), again };
  }
  const address = `127.71.9.${host}`;
  const listener = await RawListener.open(address);
  context.after(() => listener.close());
  // The wrong side dials: a poke. It is reset, and the victim dials.
  const poke = await RawConnection.dial(address, VICTIM);
  assert.equal(await poke.gone(), 'reset');
  assert.equal(poke.receivedBytes, 0);
  return { address, connection: await listener.next(), again: () => listener.next() };
}

function counters(): RdsCounters {
  return { ...victim.node.counters };
}

/** How much each named counter moved since `since`. */
function moved<K extends keyof RdsCounters>(since: RdsCounters, ...names: K[]): number[] {
  return names.map((name) => victim.node.counters[name] - since[name]);
}

function laneState(address: string): string | undefined {
  return victim.node.peer(address)?.lanes[0]?.connection.state;
}

/** After whatever happened, a new connection of the same peer carries messages. */
async function worksAgain(hostile: Peer): Promise<void> {
  const connection = await hostile.again();
  connection.speak();
  const text = `after all ${hostile.address}`;
  connection.write(message(1000, 9, PORT, text));
  await until(text, () => victim.from(hostile.address).includes(text));
  connection.reset();
}

for (const role of ['smaller', 'larger'] as const) {
  describe(`a peer with a ${role} address`, () => {
    const violations: [string, Buffer][] = [
      ['garbage', Buffer.alloc(5000, 0xff)],
      ['h_len 0xffffffff', Buffer.alloc(HEADER_BYTES)],
      ['h_len of 1 MiB and one byte', Buffer.alloc(HEADER_BYTES)],
    ];
    violations[1]![1].writeUInt32BE(0xffffffff, 16);
    violations[2]![1].writeUInt32BE(MAX_PAYLOAD + 1, 16);

    for (const [name, bytes] of violations) {
      test(`${name}: dropped, said once, and may come back`, options, async (t) => {
        const since = counters();
        const hostile = await peer(t, role);
        hostile.connection.write(bytes);
        assert.equal(await hostile.connection.gone(), 'reset');
        const second = await hostile.again();
        second.write(bytes);
        await second.gone();
        await until('both are counted', () => moved(since, 'recv_oversized')[0] === 2);
        assert.deepEqual(victim.warningsOf(hostile.address), ['protocol violation']);
        await worksAgain(hostile);
        await good.exchange(victim);
      });
    }

    for (const how of ['fin', 'reset'] as const) {
      test(`a message cut short by ${how}: counted, nothing delivered`, options, async (t) => {
        const since = counters();
        const hostile = await peer(t, role);
        const { connection } = hostile;
        connection.write(
          message(1, 9, PORT, 'whole'),
          message(2, 9, PORT, 'x'.repeat(30_000)).subarray(0, 20_000),
        );
        await until('the whole one', () => victim.from(hostile.address).length === 1);
        await until(
          'the rest was read',
          () => (victim.node.peer(hostile.address)?.lanes[0]?.connection.receiver.partialBytes ?? 0) > 19_000,
        );
        if (how === 'fin') connection.fin();
        else connection.reset();
        await until('it is counted', () => moved(since, 'recv_truncated')[0] === 1);
        if (how === 'fin') await connection.gone();
        assert.deepEqual(victim.from(hostile.address), ['whole']);
        await worksAgain(hostile);
        await good.exchange(victim);
      });
    }

    test('a map of a wrong length is ignored, what follows is read', options, async (t) => {
      const since = counters();
      const hostile = await peer(t, role);
      const { connection } = hostile;
      const lengths = [0, 1, CONG_MAP_BYTES - 1, CONG_MAP_BYTES + 1, MAX_PAYLOAD + 1];
      for (const [i, length] of lengths.entries()) {
        connection.write(message(0, 0, 0, Buffer.alloc(length, 0xff), CONG_BITMAP));
        connection.write(message(i + 1, 9, PORT, `behind ${length}`));
      }
      await until('all of them', () => victim.from(hostile.address).length === lengths.length);
      assert.deepEqual(
        victim.from(hostile.address),
        lengths.map((length) => `behind ${length}`),
      );
      assert.deepEqual(moved(since, 'cong_bad_length', 'cong_update_received'), [lengths.length, 0]);
      // Not one of their bits was taken for a map.
      assert.equal(victim.node.peer(hostile.address)!.map.congested(9), false);
      await good.exchange(victim);
    });

    test(
      'surplus bytes behind a map: zeros change nothing, random ones end the connection',
      options,
      async (t) => {
        const since = counters();
        const hostile = await peer(t, role);
        const { connection } = hostile;
        connection.speak();
        // The surplus is no multiple of a header, so that whatever came behind it would be misread.
        await until('our probe', () => connection.kinds.includes('probe-ping'));
        connection.write(message(41, 9, PORT, 'before'), mapMessage(), Buffer.alloc(65_536));
        const headers = Math.floor(65_536 / HEADER_BYTES);
        await until('the zeros are read', () => moved(since, 'recv_ignored')[0] === headers);
        const { receiver } = victim.node.peer(hostile.address)!.lanes[0]!.connection;
        assert.deepEqual(receiver.rule.next, { hi: 0, lo: 42 });
        assert.deepEqual(moved(since, 'send_pong', 'recv_ping'), [0, 0]);
        assert.ok(!connection.kinds.includes('pong'));

        const random = new Random(20_260_801);
        connection.write(Buffer.from(Array.from({ length: 65_536 }, () => random.below(256))));
        await connection.gone();
        assert.deepEqual(victim.from(hostile.address), ['before']);
        await worksAgain(hostile);
        await good.exchange(victim);
      },
    );

    test(
      'it connects and says nothing: held, with maps and probes alone until the gate opens',
      options,
      async (t) => {
        const since = counters();
        const hostile = await peer(t, role);
        const { connection } = hostile;
        victim.socket.sendmsg(Buffer.from('waits'), { address: hostile.address, port: 7 });
        await until('our opening', () => connection.messages.length >= 2);
        assert.deepEqual(connection.kinds, ['congestion', 'probe-ping']);
        if (role === 'smaller') {
          // It dialled, so it has adopted the connection; that it does not answer pings opens the gate after a second.
          await until('the gate', () => connection.messages.length === 3);
          assert.deepEqual(connection.kinds, ['congestion', 'probe-ping', 'data']);
        } else {
          // We dialled: nobody may have adopted it. Given up after 30 seconds, and tried again.
          assert.equal(await connection.gone(), 'reset');
          assert.deepEqual(connection.kinds, ['congestion', 'probe-ping']);
          const next = await hostile.again();
          next.speak();
          await until('the message', () => next.kinds.includes('data'));
          assert.ok(moved(since, 'conn_reset')[0]! >= 1);
        }
        await good.exchange(victim);
      },
    );

    test('it does not read: what is queued is bounded, and so are pongs', options, async (t) => {
      const since = counters();
      const hostile = await peer(t, role);
      const { connection } = hostile;
      connection.speak();
      await until('the probe is answered', () => connection.kinds.includes('probe-ping'));
      connection.socket.pause();
      const to = { address: hostile.address, port: 7 };
      const chunk = Buffer.alloc(256 * 1024);
      await until('the gate', () => victim.node.peer(hostile.address)!.lanes[0]!.connection.settled);
      const limitBytes = 8 * 1024 * 1024;
      let refused = 0;
      // Until nothing goes for a while: the transport is full, too.
      await until('nothing is taken any more', () => {
        try {
          for (;;) {
            victim.socket.sendmsg(chunk, to);
            refused = 0;
          }
        } catch (error) {
          assert.equal((error as { code?: string }).code, 'EAGAIN');
          refused += 1;
        }
        return refused > 50;
      });
      assert.ok(victim.node.stats().queuedBytes <= limitBytes + chunk.length);

      const pings = Array.from({ length: 20_000 }, (_, i) => message(100 + i, 9, 0));
      connection.write(Buffer.concat(pings));
      await until('pings over pings', () => moved(since, 'recv_ping')[0]! >= 20_000);
      assert.ok(moved(since, 'pong_drop_full')[0]! >= 19_000);
      assert.ok(victim.node.peer(hostile.address)!.lanes[0]!.connection.sender.queue.controlQueued <= 64);
      assert.equal(laneState(hostile.address), 'up');
      // The socket is full of messages to that peer; another one of the node is not.
      const other = victim.node.bind(0);
      other.sendmsg(Buffer.from(`meanwhile ${role}`), { address: good.address, port: PORT });
      await until('another peer', () => good.from(VICTIM).includes(`meanwhile ${role}`));
      await other.close();
      victim.socket.cancelSentTo(hostile.address);
      await good.exchange(victim);
    });
  });
}

test('a probe storm: every answer has its number, and the lane goes on', options, async (t) => {
  const hostile = await peer(t, 'smaller');
  const { connection } = hostile;
  connection.write(mapMessage());
  for (let i = 0; i < 50; i++) connection.write(probeMessage('ping', 1));
  connection.write(message(3, 9, PORT, 'behind the probes'));
  await until('the message', () => victim.from(hostile.address).length === 1);
  await until('the pongs', () => connection.kinds.filter((kind) => kind === 'probe-pong').length === 50);
  const numbers = connection.messages.filter(({ bytes }) => bytes[20] === 0 && bytes[23] === 1);
  const read = numbers.map(({ bytes }) => Buffer.from(bytes).readBigUInt64BE());
  assert.ok(
    read.every((number, i) => i === 0 || number >= (read[i - 1] as bigint)),
    'numbers never go back',
  );
  await good.exchange(victim);
});
