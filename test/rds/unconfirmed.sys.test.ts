/**
 * An acceptor that has no lane free resets, after its TCP has acknowledged what came. So whoever dials counts nothing as delivered, and says
 * nothing that must not be lost, before the peer's first byte.
 */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { HANDSHAKE_TIMEOUT_MS } from '../../src/rds/handshake.ts';
import { KernelRule, type RawConnection, RawListener, until } from '../support/raw-peer.ts';
import { PORT, TestNode } from '../support/tcp-nodes.ts';

/** The smaller address: it dials. */
const VICTIM = '127.79.8.1';
const options = { timeout: 60_000 };
const COUNT = 30;
const LARGE_BYTES = 300_000;
let nextHost = 2;

interface Met {
  readonly victim: TestNode;
  readonly listener: RawListener;
  readonly rule: KernelRule;
}

async function met(context: TestContext): Promise<Met> {
  const victim = new TestNode(VICTIM, { speed: 10, socket: { sendBufferBytes: 1 << 26 } });
  context.after(() => victim.close());
  const listener = await RawListener.open(`127.79.8.${nextHost++}`);
  context.after(() => listener.close());
  return { victim, listener, rule: new KernelRule() };
}

/** Kinds of what may come before the peer has said a word. */
function assertProbesOnly({ kinds, partialBytes }: RawConnection): void {
  assert.deepEqual(
    kinds.filter((kind) => kind !== 'congestion' && kind !== 'probe-ping'),
    [],
  );
  assert.equal(partialBytes, 0);
}

/**
 * Takes `count` connections behind `first`, and all that comes on them, and resets them without a word; then it speaks on every other.
 */
async function resetSilently({ listener, victim, rule }: Met, count: number, first: number): Promise<void> {
  const isOver = ({ kinds, ended }: RawConnection): boolean => kinds.length > 0 || ended !== null;
  let queuedBytes: number | null = null;
  let index = first;
  for (let silent = 0; silent < count; index++) {
    await until('a connection', () => listener.accepted.length > index);
    const connection = listener.accepted[index] as RawConnection;
    await until('what comes first', () => isOver(connection));
    // Three times what a peer is given to answer a probe.
    const sinceMs = victim.node.runtime.now();
    await until('it has waited', () => victim.node.runtime.now() > sinceMs + 3 * HANDSHAKE_TIMEOUT_MS);
    assertProbesOnly(connection);
    queuedBytes ??= victim.socket.queuedBytes;
    // Where time is short, a dial may have been given up as it was established.
    if (connection.kinds.length > 0) silent += 1;
    if (silent === count) listener.onConnection = (other) => other.speak(rule);
    if (!connection.closed) connection.reset();
    await until('its end', () => connection.closed);
    assertProbesOnly(connection);
    assert.equal(victim.socket.queuedBytes, queuedBytes);
  }
}

function payload(i: number): Buffer {
  return Buffer.alloc(LARGE_BYTES, i);
}

test(
  'an acceptor that takes everything and resets without a word has been given nothing',
  options,
  async (t) => {
    const made = await met(t);
    const { victim, listener, rule } = made;
    for (let i = 0; i < COUNT; i++)
      victim.socket.sendmsg(payload(i), { address: listener.address, port: PORT });
    await resetSilently(made, 3, 0);
    await until('all of them', () => rule.delivered.length === COUNT);
    for (const [i, one] of rule.delivered.entries())
      assert.ok(one.payload.equals(payload(i)), `message ${i}`);
  },
);

test('nor has it when these are sent again, and would go first', options, async (t) => {
  const made = await met(t);
  const { victim, listener, rule } = made;
  listener.onConnection = (connection) => connection.speak(rule);
  victim.socket.sendmsg(Buffer.from('first'), { address: listener.address, port: PORT });
  await until('the first message', () => rule.delivered.length === 1);
  await until('its acknowledgement', () => {
    victim.node.checkAcks();
    return victim.socket.queuedBytes === 0;
  });
  const first = listener.accepted.at(-1) as RawConnection;
  listener.onConnection = () => {};
  const others = listener.accepted.length;
  first.socket.pause();
  for (let i = 0; i < COUNT; i++)
    victim.socket.sendmsg(payload(i), { address: listener.address, port: PORT });
  await until('a full window', () => {
    victim.node.checkAcks();
    const sender = victim.node.peers[0]?.lanes[0]?.connection.sender;
    return sender?.hasUnacked === true && victim.node.counters.tcp_sndbuf_full > 0;
  });
  first.reset();
  await until('its end', () => first.closed);
  await resetSilently(made, 3, others);
  assert.ok(victim.node.counters.send_retransmitted > 0);
  // What the peer's TCP had of the first connection and its RDS did not read is lost to it, as to a kernel that crashed.
  await until('the last', () => rule.delivered.at(-1)?.payload.equals(payload(COUNT - 1)) === true);
  const got = rule.delivered.slice(1).map(({ payload: one }) => one[0]);
  const from = got[0] as number;
  assert.deepEqual(
    got,
    Array.from({ length: COUNT - from }, (_, i) => from + i),
  );
});
