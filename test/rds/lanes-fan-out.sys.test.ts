/**
 * What a 7.x kernel says at the moment it learns of lanes, over real TCP. It has sent on lane 0 until then, and goes on on another lane
 * as soon as TCP has acknowledged all of that (mprds_catchup_tx0_retries counts how often it was not yet): which says nothing of who reads it first.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { RawLanes } from '../support/raw-lanes.ts';
import { until } from '../support/raw-peer.ts';
import { TestNode } from '../support/tcp-nodes.ts';

/** Before, so that TCP's window has grown: the kernel then takes those behind them before anybody reads. */
const FIRST = 200;
/** Large ones, each of which ends a turn of reading. */
const MESSAGES = 5;
const BYTES = 20_000;

test('a socket that leaves lane 0 keeps its order, though lane 0 is not read to its end', {
  timeout: 30_000,
}, async (t) => {
  const victim = new TestNode('127.77.14.2');
  t.after(() => victim.close());
  const socket = victim.node.bind(7, { receiveBufferBytes: 1 << 24 });
  const got: number[] = [];
  socket.on('readable', () => {
    for (let next = socket.recvmsg(); next !== null; next = socket.recvmsg())
      if (next.kind === 'data') got.push(next.data.readUInt32BE(0));
  });
  const peer = new RawLanes('127.77.14.1', '127.77.14.2');
  t.after(() => peer.reset());
  await peer.up();
  const say = (lane: number, i: number, bytes: number): void => {
    const payload = Buffer.alloc(bytes);
    payload.writeUInt32BE(i);
    peer.connections[lane]?.say(9, 7, payload);
  };
  for (let i = 0; i < FIRST; i++) say(0, i, BYTES);
  await until('the first have come', () => got.length === FIRST);
  await until('lanes are agreed', () => victim.node.peers[0]?.npaths === 8);
  // Before this process reads again.
  for (let i = 0; i < MESSAGES; i++) say(0, FIRST + i, BYTES);
  // Else TCP has not taken it, and a kernel would wait, too.
  assert.equal(peer.connections[0]?.socket.writableLength, 0);
  const last = FIRST + MESSAGES;
  say(3, last, 4);
  await until('all have come', () => got.length === last + 1);
  assert.deepEqual(
    got,
    Array.from({ length: last + 1 }, (_, i) => i),
  );
});
