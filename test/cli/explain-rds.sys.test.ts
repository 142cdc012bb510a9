/** `zerotx explain` against a live program that has RDS nodes and nothing else: for each peer what was lent, what was copied, and why. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { openControl, TcpSocket } from '../../src/net/index.ts';
import { askRdsLending, RdsNode } from '../../src/rds/index.ts';
import { type Running, runtimeFolder, startProgram } from '../support/programs.ts';
import { testNode } from '../support/rds-nodes.ts';
import { type Ended, startTool } from '../support/tools.ts';

const child = new URL('./children/rds-copying.js', import.meta.url);
const runtime = runtimeFolder();
process.env.XDG_RUNTIME_DIR = runtime.path;
const PEER = '127.43.2.1';
/** Of a node of this process. */
const OWN = '127.43.2.2';

interface Peer {
  readonly address: string;
  readonly zerocopy: { readonly lentBytes: number; readonly fallbackBytes: number };
  readonly reasons: readonly { readonly id: string; readonly bytes: number; readonly by: string }[];
}

interface Program {
  readonly pid: number;
  readonly sockets: readonly { readonly stats: { readonly remote: string } }[];
  readonly rds: readonly {
    readonly address: string;
    readonly mode: string;
    readonly peers: readonly Peer[];
  }[];
}

const run = (...args: string[]): Promise<Ended> =>
  startTool('dist/cli/zerotx.js', ['explain', ...args]).ended;

async function report(...args: string[]): Promise<Program> {
  const { code, out, errors } = await run('--json', ...args);
  assert.deepEqual({ code, errors }, { code: 0, errors: '' });
  const { programs } = JSON.parse(out) as { programs: Program[] };
  assert.equal(programs.length, 1);
  return programs[0] as Program;
}

/** `id bytes by` of each reason. */
function told(peer: Peer | undefined): string[] {
  return (peer?.reasons ?? []).map(({ id, bytes, by }) => `${id} ${bytes} ${by}`);
}

describe('zerotx explain, of RDS nodes', { timeout: 60_000 }, () => {
  let program: Running;
  let close: () => Promise<void>;
  before(async () => {
    const node = await testNode(PEER);
    close = () => node.close();
    const socket = node.bind(4000);
    socket.on('readable', () => {
      while (socket.recvmsg() !== null);
    });
    program = await startProgram(child, [PEER], { ZEROTX_CONTROL: '1' });
  });
  after(async () => {
    assert.equal(await program.end(), 0);
    await close();
    runtime.remove();
  });

  it('tells of each peer what was lent to it, what was copied, and why', async () => {
    const { sockets, rds } = await report(`${program.pid}`);
    assert.deepEqual(sockets, []);
    assert.deepEqual(
      rds.map(({ address, mode }) => [address, mode]),
      [
        ['127.43.1.1', 'auto'],
        ['127.43.1.2', 'force'],
        ['127.43.1.3', 'auto'],
      ],
    );
    const of = (node: number, address: string): Peer | undefined =>
      rds[node]?.peers.find((peer) => peer.address === address);
    assert.deepEqual(told(of(0, PEER)), ['loopback 300000 zerotx', 'threshold 10000 zerotx']);
    assert.deepEqual(told(of(0, '127.43.1.2')), ['loopback 5000 zerotx']);
    // The kernel lent it, and copied it when it was delivered; what did not fit one call may have gone in an ordinary one.
    const forced = of(1, PEER);
    assert.match(told(forced)[0] ?? '', /^local \d+ kernel$/);
    const { lentBytes = 0, fallbackBytes = 0 } = forced?.zerocopy ?? {};
    assert.equal(lentBytes + fallbackBytes, 300_000);
    assert.deepEqual(told(of(2, PEER)), []);
  });

  it('tells a person, too, and never that there is nothing', async () => {
    const { code, out, errors } = await run(`${program.pid}`);
    assert.deepEqual({ code, errors }, { code: 0, errors: '' });
    assert.match(
      out,
      new RegExp(`^node rds-copying\\.js \\(pid ${program.pid}\\): 0 sockets, 0 gone; 3 RDS nodes\n`),
    );
    assert.match(out, /^rds 127\.43\.1\.1 -> 127\.43\.2\.1 {2}mode auto, threshold 32 KiB$/m);
    assert.match(out, /^ {2}zerotx lent 0 B, of which the kernel copied 0 B; it copied 303 KiB itself$/m);
    assert.match(out, /^ {2}293 KiB {5}loopback {3}the receiver is on this host/m);
    assert.match(out, /^ {25}-> leave out mode 'force'/m);
    assert.match(out, /^rds 127\.43\.1\.3 .*\n {2}no message was to be lent/m);
    assert.doesNotMatch(out, /nothing/);
  });

  it('finds nodes and peers by their address', async () => {
    const byPeer = await report(`${PEER}:16385`);
    assert.deepEqual(
      byPeer.rds.map(({ address, peers }) => [address, peers.map((peer) => peer.address)]),
      ['127.43.1.1', '127.43.1.2', '127.43.1.3'].map((address) => [address, [PEER]]),
    );
    const byNode = await report('127.43.1.2:16385');
    assert.deepEqual(
      byNode.rds.map(({ address, peers }) => [address, peers.map((peer) => peer.address)]),
      [
        ['127.43.1.1', ['127.43.1.2']],
        ['127.43.1.2', [PEER]],
      ],
    );
    assert.equal((await run('127.43.9.9:16385')).code, 1);
  });

  it('shows the sockets of a program by either spelling of the address, next to its nodes', async () => {
    // Of an IPv6 socket, which the node takes for another peer.
    const socket = new TcpSocket();
    const control = openControl();
    const node = await RdsNode.open({ address: OWN });
    try {
      socket.resume().connect(16385, `::ffff:${OWN}`);
      await once(socket, 'connect');
      const { programs } = JSON.parse((await run('--json', `${OWN}:16385`)).out) as { programs: Program[] };
      const own = programs.find(({ pid }) => pid === process.pid);
      assert.deepEqual(
        own?.rds.map(({ address }) => address),
        [OWN],
      );
      assert.deepEqual(
        own?.sockets.map(({ stats: { remote } }) => remote),
        [`[::ffff:${OWN}]:16385`],
      );
    } finally {
      socket.destroy();
      await node.close();
      control.close();
    }
  });

  it('asks with a call that programs have, too', async () => {
    const { pid, nodes } = await askRdsLending(join(runtime.path, 'zerotx', `${program.pid}.sock`));
    assert.equal(pid, program.pid);
    const [auto] = nodes;
    assert.equal(auto?.zerocopy.copied.loopback, 305_000);
    assert.equal(auto?.thresholdBytes, 32_768);
  });
});
