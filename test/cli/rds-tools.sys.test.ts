/** rds-ping and rds-info as a user starts them: against nodes of this process, which shows them through its control socket. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { after, before, describe, it } from 'node:test';
import { openControl } from '../../src/net/index.ts';
import { RdsNode, type RdsSocket } from '../../src/rds/index.ts';
import { runtimeFolder } from '../support/programs.ts';
import { receive } from '../support/rds-nodes.ts';
import { RawPeer } from '../support/rds-raw-peer.ts';
import { type Ended, startTool } from '../support/tools.ts';

const runtime = runtimeFolder();
process.env.XDG_RUNTIME_DIR = runtime.path;
after(() => runtime.remove());

const run = (tool: string, ...args: string[]): Promise<Ended> => startTool(`dist/cli/${tool}.js`, args).ended;
const ping = (...args: string[]): Promise<Ended> => run('rds-ping', ...args);

describe('rds-ping', { timeout: 60_000 }, () => {
  let node: RdsNode;
  before(async () => {
    node = await RdsNode.open({ address: '127.41.3.1' });
  });
  after(() => node.close());

  it('prints a line for each answer, and ends after -c', async () => {
    const { code, out, errors } = await ping('-c', '3', '-i', '5ms', '-I', '127.41.3.2', '127.41.3.1');
    assert.equal(errors, '');
    // Each socket has its lane, and lanes keep no order among each other.
    assert.match(out, /^( {3}[012]: \d+ usec\n){3}\n3 sent, 3 answered; min\/avg\/max /);
    assert.equal(code, 0);
  });

  it('pings from the larger address, too, which cannot dial', async () => {
    const { code, out } = await ping('-c', '1', '-I', '127.41.3.0', '127.41.3.1');
    assert.match(out, /1 sent, 1 answered/);
    assert.equal(code, 0);
  });

  it('prints JSON', async () => {
    const { code, out } = await ping('--json', '-c', '2', '-i', '5ms', '-I', '127.41.3.3', '127.41.3.1');
    const lines = out.trim().split('\n');
    const answers = lines.map((line) => JSON.parse(line) as Record<string, unknown>);
    const sums = answers.pop();
    assert.deepEqual(answers.map(({ id }) => id).sort(), [0, 1]);
    assert.deepEqual([answers[0]?.duplicate, answers[0]?.address], [false, '127.41.3.1']);
    assert.deepEqual([sums?.sent, sums?.received, sums?.from], [2, 2, '127.41.3.3']);
    assert.equal(code, 0);
  });

  it('ends with 1 where nobody answers, and says what is in the way', async () => {
    const { code, out, errors } = await ping('-c', '1', '-W', '300ms', '-I', '127.41.3.4', '127.41.3.9');
    assert.match(out, /1 sent, 0 answered\n$/);
    assert.match(errors, /dial failed: 127\.41\.3\.9: .*ECONNREFUSED/);
    assert.equal(code, 1);
  });

  it('ends after -c, too, when all of its sockets wait', async () => {
    const args = ['-c', '10', '-i', '2ms', '-W', '500ms', '-I', '127.41.3.4', '127.41.3.9'];
    const { code, out } = await ping(...args);
    assert.match(out, /8 sent, 0 answered, 2 left out\n$/);
    assert.equal(code, 1);
  });

  it('goes on with another socket when an answer is lost for good, and is not confused when it comes late', async () => {
    const peer = new RawPeer('127.41.3.200');
    try {
      const args = ['-c', '20', '-i', '60ms', '-W', '400ms', '-I', '127.41.3.6', '127.41.3.200'];
      const ended = ping(...args);
      const connection = await peer.accept();
      const portsOfPings = (): number[] =>
        connection.messages.filter(({ kind }) => kind === 'ping').map(({ header }) => header.sport);
      // None of the first is answered, but the rest is.
      await connection.until(() => portsOfPings().length >= 14);
      for (const port of portsOfPings().slice(0, 1)) connection.send(0, port, Buffer.alloc(0));
      for (let answered = portsOfPings().length; answered < 20; answered++) {
        await connection.until(() => portsOfPings().length > answered);
        connection.send(0, portsOfPings()[answered] as number, Buffer.alloc(0));
      }
      const { code, out } = await ended;
      assert.match(out, /\n20 sent, [1-6] answered; min/);
      assert.doesNotMatch(out, /DUP|left out|^ +0:/m);
      assert.equal(new Set(portsOfPings()).size > 8, true);
      assert.equal(code, 0);
    } finally {
      peer.close();
    }
  });

  const wrong: [args: string[], code: number, says: RegExp][] = [
    [[], 2, /missing required argument/],
    [['-c', '0', '127.41.3.1'], 2, /not a number of pings/],
    [['-i', 'soon', '127.41.3.1'], 2, /not a time/],
    [['-Q', '1', '127.41.3.1'], 2, /no type of service/],
    [['-I', '192.0.2.55', '127.41.3.1'], 1, /not an address of this host/],
    [['-I', '127.41.3.1', '127.41.3.5'], 1, /TCP port 16385 is taken/],
    [['127.41.3.1', '-I', '127.41.3.1'], 1, /own address: say with -I/],
  ];
  for (const [args, expected, says] of wrong) {
    it(`ends with ${expected} for ${args.join(' ') || 'nothing'}`, async () => {
      const { code, errors } = await ping(...args);
      assert.match(errors, says);
      assert.equal(code, expected);
    });
  }
});

describe('rds-info', { timeout: 60_000 }, () => {
  let nodes: RdsNode[] = [];
  let sender: RdsSocket;
  let receiver: RdsSocket;
  const info = (...args: string[]): Promise<Ended> => run('rds-info', ...args);
  const pid = String(process.pid);

  before(async () => {
    openControl();
    nodes = [await RdsNode.open({ address: '127.41.4.1' }), await RdsNode.open({ address: '::1' })];
    sender = nodes[0]?.bind(4000, { sendBufferBytes: 100_000 }) as RdsSocket;
    receiver = nodes[0]?.bind(4001) as RdsSocket;
    sender.connect({ address: '127.41.4.1', port: 4001 });
    sender.sendmsg(Buffer.alloc(1000));
    // Nobody is at home there: it stays in the send queue.
    sender.sendmsg(Buffer.alloc(2000), { address: '127.41.4.77', port: 5000 });
  });
  after(async () => {
    openControl().close();
    await Promise.all(nodes.map((node) => node.close()));
  });

  it('shows sockets, queues and connections in the layout of rds-tools', async () => {
    const { code, out, errors } = await info('-k', '-n', '-r', '-s', '-t', '--pid', pid);
    assert.equal(errors, '');
    assert.equal(code, 0);
    assert.match(out, /\nRDS Sockets:\n +BoundAddr BPort +ConnAddr CPort +SndBuf +RcvBuf +Inode\n/);
    assert.match(out, / 127\.41\.4\.1 {2}4000 +127\.41\.4\.1 {2}4001 +100000 /);
    assert.match(
      out,
      /\nReceive Message Queue:\n[^\n]+\n +127\.41\.4\.1 {2}4001 +127\.41\.4\.1 {2}4000 +0 +0 +1000\n/,
    );
    assert.match(
      out,
      /\nSend Message Queue:\n[^\n]+\n +127\.41\.4\.1 {2}4000 +127\.41\.4\.77 {2}5000 +0 +\d+ +2000\n/,
    );
    assert.match(out, /\nRDS Connections:\n[^\n]+\n +127\.41\.4\.1 +127\.41\.4\.77 +0 +\d+ +0 -/);
    assert.equal(out.includes('Counters'), false);
  });

  it('shows everything without options, for its own user', async () => {
    const { code, out } = await info();
    assert.equal(code, 0);
    for (const title of ['Counters', 'RDS Sockets', 'RDS Connections', 'TCP Connections']) {
      assert.match(out, new RegExp(`\\n${title}:\\n`));
    }
    assert.match(out, /\n +conn_reset +\d+\n +recv_drop_bad_checksum +0\n/);
  });

  it('prints JSON, with sequence numbers as text', async () => {
    const { out } = await info('--json', '--pid', pid);
    const found = JSON.parse(out) as Record<string, Record<string, unknown>[]> & { counters: object };
    assert.deepEqual(
      found.programs?.map(({ nodes: addresses, pid: whose }) => [addresses, whose]),
      [[['127.41.4.1', '::1'], process.pid]],
    );
    const [queued] = found.sendQueue ?? [];
    assert.deepEqual([queued?.bytes, typeof queued?.sequence], [2000, 'string']);
    assert.ok('send_queued' in found.counters);
  });

  it('shows the others when one program answers with rubbish', async () => {
    // As a worker of this process; for the first question it behaves.
    const rubbish = createServer((client) => {
      client.once('data', (request) => {
        const isList = request.includes('list');
        const body = isList ? { records: [{}] } : { nodes: ['\u001b[2J'], counters: {} };
        client.end(`${JSON.stringify({ protocol: 1, pid: process.pid, threadId: 9, ...body })}\n`);
      });
    });
    rubbish.listen(openControl().path.replace('.sock', '.9.sock'));
    await once(rubbish, 'listening');
    try {
      const { code, out, errors } = await info('-k');
      assert.match(out, / 127\.41\.4\.1 {2}4000 /);
      assert.match(errors, new RegExp(`process ${process.pid}: the program's answer has no address`));
      assert.equal(code, 1);
    } finally {
      rubbish.close();
    }
  });

  it('shows what was read no more', async () => {
    const [message] = await receive(receiver, 1);
    assert.equal(message?.length, 1000);
    const { out } = await info('-r', '--pid', pid);
    assert.equal(out.includes('1000'), false);
  });

  const wrong: [args: string[], code: number, says: RegExp][] = [
    [['--pid', '4194303'], 1, /shows no RDS node: .*ZEROTX_CONTROL=1.*looked in .*\/zerotx, /],
    [['--pid', 'x'], 2, /not a process/],
    [['-x'], 2, /unknown option/],
  ];
  for (const [args, expected, says] of wrong) {
    it(`ends with ${expected} for ${args.join(' ')}`, async () => {
      const { code, errors } = await info(...args);
      assert.match(errors, says);
      assert.equal(code, expected);
    });
  }
});
