/**
 * The public doors as a program uses them. What matters here is that it compiles: the types say which fields a result has,
 * which events there are, and refuse what would fail.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Next, Outcome } from '../../src/index.ts';
import * as door from '../../src/index.ts';
import * as rds from '../../src/rds/index.ts';
import {
  type AwaitReceiveOptions,
  type AwaitSendOptions,
  type CloseOptions,
  FixedBudget,
  type LaneStats,
  type MemlockBudget,
  type NodeEvents,
  type NodeLimits,
  type NodeOptions,
  type NodeStats,
  type RdsAddress,
  type RdsCompletion,
  type RdsCongestionNews,
  type RdsCounters,
  type RdsLatency,
  type RdsMessage,
  RdsNode,
  type RdsOptionValues,
  type RdsReceived,
  type RdsSocket,
  type RdsSocketOptions,
  type ReceiveOptions,
  type SendOptions,
  type SocketEvents,
  type SocketOptions,
  ZerotxError,
} from '../../src/rds/index.ts';

const OPTIONS: NodeOptions = { address: '127.20.30.1', mode: 'auto', budget: new FixedBudget(2048) };

describe('the public doors', () => {
  it('export these values, and no more', () => {
    assert.deepEqual(Object.keys(rds).sort(), [
      'FixedBudget',
      'RdsMessage',
      'RdsNode',
      'RdsSocket',
      'StillLentError',
      'ZerotxError',
      'askRds',
      'askRdsLending',
      'askRdsList',
    ]);
    assert.deepEqual(Object.keys(door).sort(), [
      'ZerotxError',
      'doctor',
      'doctorChecks',
      'features',
      'measureSendCosts',
      'zerocopyIsPossible',
    ]);
    assert.equal(door.ZerotxError, rds.ZerotxError);
  });

  it('request and answer, as the introduction shows', async () => {
    await using node = await RdsNode.open(OPTIONS);
    await using client = node.bind(0, { zerocopy: true });
    await using server = node.bind(4000);
    const serving = serve(server);
    const to: RdsAddress = { address: node.address, port: 4000 };
    const { bytes, copiedBytes }: Outcome = await client.send(Buffer.from('question'), to, {
      timeoutMs: 1000,
    });
    assert.deepEqual([bytes, copiedBytes], [8, 8]);
    for await (const message of client) {
      assert.equal(message.data.toString(), 'answer to question');
      break;
    }
    const closing: CloseOptions = { drain: true, timeoutMs: 1000 };
    await server.close(closing);
    assert.equal(await serving, 1);
  });

  it('the calls that mirror the kernel', async () => {
    const node: RdsNode = await RdsNode.open({ ...OPTIONS, address: '127.20.30.2' });
    const socket: RdsSocket = node.bind(4000, {
      zerocopy: true,
      congestionMonitor: true,
    } satisfies SocketOptions);
    socket.connect({ address: node.address, port: 4000 });
    const options: SendOptions = { zerocopy: true, cookie: 1 };
    const length: number = socket.sendmsg([Buffer.from('a'), new Uint8Array([98])], undefined, options);
    assert.equal(length, 2);
    const peeking: ReceiveOptions = { peek: true };
    assert.equal(socket.recvmsg(peeking)?.kind, 'data');
    await new Promise<void>((resolve) => socket.once('readable', resolve));
    const received: RdsReceived | null = socket.recvmsg();
    assert.ok(received !== null);
    assert.equal(describeReceived(received), 'data of 2 bytes from 127.20.30.2:4000, 1 completions');
    const record: { origin: 'ZCOOKIE'; cookies: readonly number[] } | null = socket.recvErrqueue();
    assert.equal(record, null);
    socket.cancelSentTo(node.address);
    const numbers: readonly number[] = [socket.queuedBytes, socket.unreadBytes, socket.lentBytes];
    assert.deepEqual(numbers, [0, 0, 0]);
    const stats: NodeStats = node.stats();
    const counters: Readonly<RdsCounters> = stats.counters;
    const lanes: readonly LaneStats[] = stats.lanes;
    assert.deepEqual([counters.local_delivered, lanes.length], [1, 0]);
    await node.close();
  });

  it('options by the kernel’s names, and the call that waits', async () => {
    const node = await RdsNode.open({ ...OPTIONS, address: '127.20.30.4' });
    const socket = node.bind(4000, { timestamp: true, receiveLatency: [2], receiveTimeoutMs: 5000 });
    socket.setsockopt('SO_SNDBUF', 100_000);
    const doubled: number = socket.getsockopt('SO_SNDBUF');
    const lends: boolean = socket.getsockopt('SO_ZEROCOPY');
    assert.deepEqual([doubled, lends], [200_000, false]);
    const cancelled: RdsOptionValues['RDS_CANCEL_SENT_TO'] = socket;
    socket.setsockopt('RDS_CANCEL_SENT_TO', cancelled);
    socket.sendmsg(Buffer.from('to itself'), socket);
    const options: AwaitReceiveOptions = { maxBytes: 2, trunc: true };
    const received: RdsReceived = await socket.receive(options);
    assert.ok(received.kind === 'data');
    const latency: readonly RdsLatency[] | null = received.latency;
    const timestamp: number | null = received.timestamp;
    assert.deepEqual([received.data.length, received.length, received.truncated], [2, 9, true]);
    assert.deepEqual([latency?.[0]?.point, typeof timestamp], [2, 'number']);
    const uses = (name: keyof RdsSocketOptions): void => {
      // @ts-expect-error a boolean is no number of bytes
      socket.setsockopt('SO_SNDBUF', true);
      // @ts-expect-error it can only be set
      socket.getsockopt('RDS_CONG_MONITOR');
      // @ts-expect-error there is none of that name
      socket.setsockopt('SO_RCVLOWAT', 1);
      socket.getsockopt(name);
    };
    assert.equal(typeof uses, 'function');
    await node.close();
  });

  it('events and errors are typed', async () => {
    const node = await RdsNode.open({ ...OPTIONS, address: '127.20.30.3' });
    const socket = node.bind(4000);
    const log: string[] = [];
    node.on('peerUp', ({ address }) => log.push(address));
    node.on('peerDown', ({ address, reason }) => log.push(`${address} ${reason}`));
    node.on('warning', ({ event, address, detail }) => log.push(`${event} ${address} ${detail}`));
    socket.on('readable', () => log.push('readable'));
    socket.on('writable', () => log.push('writable'));
    socket.on('close', () => log.push('close'));
    const names: (keyof NodeEvents | keyof SocketEvents)[] = [
      'peerUp',
      'peerDown',
      'warning',
      'close',
      'readable',
      'writable',
    ];
    assert.equal(names.length, 6);
    // @ts-expect-error there is no such event
    socket.on('message', () => {});
    // @ts-expect-error the second argument of an event handler does not exist
    node.on('peerUp', (_event, _more) => {});
    try {
      socket.sendmsg(Buffer.alloc(1));
      assert.fail('not connected');
    } catch (error) {
      if (!(error instanceof ZerotxError)) throw error;
      const next: Next = error.next;
      assert.deepEqual([error.code, next], ['ENOTCONN', 'reconnect']);
    }
    await node.close();
    assert.deepEqual(log, ['close']);
  });

  it('wrong uses do not compile', () => {
    const uses = (node: RdsNode, socket: RdsSocket, received: RdsReceived): void => {
      // @ts-expect-error an address is required
      void RdsNode.open({});
      // @ts-expect-error a mode that does not exist
      void RdsNode.open({ address: '127.0.0.1', mode: 'on' });
      // @ts-expect-error text is not data
      socket.sendmsg('text');
      // @ts-expect-error results are read-only
      socket.queuedBytes = 0;
      // @ts-expect-error only data has data
      received.data;
      // @ts-expect-error a port is a number
      node.bind('4000');
    };
    assert.equal(typeof uses, 'function');
    const budget: MemlockBudget = new FixedBudget(-1);
    const limits: Partial<NodeLimits> = { peers: 4 };
    const waiting: AwaitSendOptions = { signal: AbortSignal.timeout(1000) };
    assert.deepEqual([budget.limitPages, limits.peers, waiting.timeoutMs], [-1, 4, undefined]);
  });
});

/** Answers until its socket is closed; returns how often. */
async function serve(socket: RdsSocket): Promise<number> {
  let count = 0;
  for await (const message of socket) {
    // A message has the address and the port that an answer goes to.
    await socket.send([Buffer.from('answer to '), message.data], message);
    message.recycle();
    count += 1;
  }
  return count;
}

function describeReceived(received: RdsReceived): string {
  switch (received.kind) {
    case 'data': {
      const message: RdsMessage = received;
      const { length, address, port, cookies } = message;
      return `data of ${length} bytes from ${address}:${port}, ${cookies.length} completions`;
    }
    case 'completion': {
      const completion: RdsCompletion = received;
      return `completions ${completion.cookies.join()}`;
    }
    case 'congestion': {
      const news: RdsCongestionNews = received;
      return `ports ${news.mask.toString(16)}`;
    }
  }
}
