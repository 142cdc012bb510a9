/** UDP sockets and node:dgram's: each understands the other, and behaves the same where they should. */
import assert from 'node:assert/strict';
import { createSocket, type Socket } from 'node:dgram';
import { once } from 'node:events';
import { afterEach, describe, it } from 'node:test';
import { UdpSocket } from '../../src/net/udp.ts';
import { DEADLINE_MS } from '../support/sockets.ts';
import { bound, closeSockets, Inbox, LOCALHOST, make, pattern, skipFamily } from '../support/udp.ts';

const theirs = new Set<Socket>();

function dgram(type: 'udp4' | 'udp6'): Socket {
  const socket = createSocket({ type, recvBufferSize: 1 << 20 });
  theirs.add(socket);
  return socket;
}

afterEach(async () => {
  await closeSockets();
  await Promise.all(Array.from(theirs, (socket) => new Promise<void>((resolve) => socket.close(resolve))));
  theirs.clear();
});

for (const type of ['udp4', 'udp6'] as const) {
  describe(`${type} with node:dgram`, { timeout: 4 * DEADLINE_MS, skip: skipFamily(type) }, () => {
    for (const mode of ['auto', 'force'] as const) {
      it(`receives our segments as single datagrams (${mode})`, async () => {
        const receiver = dgram(type);
        receiver.bind(0, LOCALHOST[type]);
        await once(receiver, 'listening');
        const inbox = new Inbox(receiver);
        const sender = make({ type, zerocopy: { mode, pin: true } });
        const to = { port: receiver.address().port, address: LOCALHOST[type] };
        await sender.sendSegments(pattern(70_001), 1000, to);
        const messages = await inbox.take(71);
        assert.deepEqual(Buffer.concat(messages.map(({ data }) => data)), pattern(70_001));
        assert.deepEqual(messages[0]?.from, { ...sender.address(), address: LOCALHOST[type], size: 1000 });
      });
    }

    it('sends to us', async () => {
      const { socket: receiver, port } = await bound({ type });
      const inbox = new Inbox(receiver);
      const sender = dgram(type);
      const texts = Array.from({ length: 40 }, (_, i) => `message ${i}`);
      for (const text of texts) sender.send(text, port, LOCALHOST[type]);
      const messages = await inbox.take(40);
      assert.deepEqual(
        messages.map(({ data }) => data.toString()),
        texts,
      );
      assert.deepEqual(messages[0]?.from, { ...sender.address(), address: LOCALHOST[type], size: 9 });
    });
  });
}

describe('a socket of both families', { timeout: 2 * DEADLINE_MS, skip: skipFamily('udp6') }, () => {
  it('names IPv4 senders as node:dgram does, and answers them', async () => {
    const seen: unknown[] = [];
    for (const receiver of [make({ type: 'udp6' }), dgram('udp6')]) {
      receiver.bind(0);
      await once(receiver, 'listening');
      const { port } = receiver.address();
      const inbox = new Inbox(receiver);
      const { socket: sender, port: senderPort } = await bound({ type: 'udp4' });
      const answers = new Inbox(sender);
      sender.send('question', port, '127.0.0.1');
      const [question] = await inbox.take(1);
      assert.equal(question?.from.port, senderPort);
      seen.push({ ...question?.from, port: 0 });
      receiver.send('answer', senderPort, question?.from.address);
      const [answer] = await answers.take(1);
      assert.equal(answer?.data.toString(), 'answer');
    }
    assert.deepEqual(seen[0], seen[1]);
    assert.equal((seen[0] as { address: string }).address, '::ffff:127.0.0.1');
  });

  it('without IPv4 leaves it to others', async () => {
    const socket = make({ type: 'udp6', ipv6Only: true });
    socket.bind(0);
    await once(socket, 'listening');
    const other = make({ type: 'udp4' });
    other.bind(socket.address().port);
    await once(other, 'listening');
  });
});

interface Alike {
  bind(...args: unknown[]): unknown;
  connect(...args: unknown[]): void;
  disconnect(): void;
  send(...args: unknown[]): void;
  close(callback?: () => void): unknown;
  on(event: string, listener: (...args: unknown[]) => void): unknown;
  address(): unknown;
}

const makers: readonly [string, () => Alike][] = [
  ['dgram', () => createSocket('udp4') as unknown as Alike],
  ['zerotx', () => new UdpSocket('udp4') as unknown as Alike],
];

/** Runs `script` on one socket of each kind, and compares the events, in order, and the errors. */
function alike(name: string, script: (socket: Alike, log: string[], done: () => void) => void): void {
  it(name, { timeout: DEADLINE_MS }, async () => {
    const logs: string[][] = [];
    for (const [, makeOne] of makers) {
      const socket = makeOne();
      const log: string[] = [];
      for (const event of ['listening', 'connect', 'close', 'message'])
        socket.on(event, () => log.push(event));
      socket.on('error', (error) => log.push(`error ${(error as Error & { code: string }).code}`));
      await new Promise<void>((resolve) => script(socket, log, resolve));
      logs.push(log);
    }
    assert.deepEqual(logs[1], logs[0]);
    assert.ok((logs[0]?.length ?? 0) > 0);
  });
}

/** What a call throws, for the log. */
function code(call: () => unknown): string {
  try {
    call();
    return 'ok';
  } catch (error) {
    return `throws ${(error as Error & { code: string }).code}`;
  }
}

describe('the same happens to both kinds of socket', () => {
  alike('that are bound and closed', (socket, log, done) => {
    socket.bind(0, '127.0.0.1', () => {
      log.push('callback');
      socket.close(() => {
        log.push('closed');
        log.push(code(() => socket.close()));
        setImmediate(done);
      });
      log.push('after close()');
    });
    log.push('after bind()');
  });

  alike('that send to themselves before they are bound', (socket, log, done) => {
    socket.on('listening', () => {
      const { port } = socket.address() as { port: number };
      socket.send('a', port, (error: unknown, bytes: unknown) => log.push(`sent ${error} ${bytes}`));
      socket.on('message', () => socket.close(done));
    });
    socket.bind(0);
  });

  alike('that connect, disconnect and connect again', (socket, log, done) => {
    socket.connect(9, '127.0.0.1', () => {
      log.push('connected');
      log.push(code(() => socket.connect(9, '127.0.0.1')));
      log.push(code(() => socket.send('x', 1, 1, 9, '127.0.0.1')));
      socket.disconnect();
      log.push(code(() => socket.disconnect()));
      socket.connect(9, '127.0.0.1', () => socket.close(done));
    });
    log.push(code(() => socket.connect(9, '127.0.0.1')));
  });

  alike('whose address is not theirs', (socket, log, done) => {
    socket.on('error', () => {
      log.push('closing');
      socket.close(done);
    });
    socket.bind(0, '192.0.2.1');
  });

  alike('that are closed while they are being bound', (socket, log, done) => {
    socket.bind(0);
    socket.close(() => setImmediate(done));
    log.push(code(() => socket.bind(0)));
  });
});
