/** One engine against messages written by hand: what it accepts, what ends a run, and who waits for what. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type TaskConfig, TaskEngine } from '../../src/cli/stress/engine.ts';
import type { SendResult } from '../../src/cli/stress/outbox.ts';
import { Peer } from '../../src/cli/stress/peer.ts';
import {
  decodeStressHeader,
  encodeStressHeader,
  fillPattern,
  OP_ACK,
  OP_REQ,
  type StressHeader,
} from '../../src/wire/rds-stress.ts';

const own = { address: 0x0a000001, port: 4001 };
const remoteAddress = 0x0a000002;

interface Sent extends StressHeader {
  bytes: number;
  cookie: number | undefined;
}

interface Rig {
  engine: TaskEngine;
  sent: Sent[];
  /** What the next sends answer; 'sent' when it runs out. */
  results: SendResult[];
  clock: { us: number };
}

function rig(change: Partial<TaskConfig> = {}): Rig {
  const sent: Sent[] = [];
  const results: SendResult[] = [];
  const clock = { us: 0 };
  const config: TaskConfig = {
    own,
    remote: { address: remoteAddress, firstPort: 4001, count: 1 },
    reqSize: 100,
    ackSize: 63,
    depth: 2,
    sendsRequests: true,
    verify: false,
    zerocopy: false,
    congestionMonitor: true,
    ...change,
  };
  const engine = new TaskEngine(config, {
    nowUs: () => clock.us,
    send(message, _port, cookie) {
      clock.us += 5;
      const result = results.shift() ?? 'sent';
      if (result === 'sent') sent.push({ ...decodeStressHeader(message, 0), bytes: message.length, cookie });
      return result;
    },
  });
  return { engine, sent, results, clock };
}

/** A message from the peer, right for the first request unless changed. */
function incoming(change: Partial<StressHeader> & { size?: number } = {}): Uint8Array {
  const header: StressHeader = {
    seq: 0,
    fromAddr: remoteAddress,
    toAddr: own.address,
    fromPort: 4001,
    toPort: 4001,
    index: 0,
    op: OP_REQ,
    ...change,
  };
  const size = change.size ?? (header.op === OP_ACK ? 63 : 100);
  const message = new Uint8Array(Math.max(size, 63));
  encodeStressHeader(message, 0, header);
  fillPattern(message, 0, message.length);
  return message.subarray(0, size);
}

test('fills the pipeline, answers requests first, and measures', () => {
  const { engine, sent, clock } = rig();
  engine.start();
  assert.deepEqual(
    sent.map(({ seq, index, op, bytes }) => [seq, index, op, bytes]),
    [
      [0, 0, OP_REQ, 100],
      [1, 1, OP_REQ, 100],
    ],
  );
  clock.us = 1000;
  engine.receive(incoming({ op: OP_ACK }), remoteAddress, 4001);
  engine.receive(incoming({ seq: 1 }), remoteAddress, 4001);
  engine.pump();
  assert.deepEqual(
    sent.slice(2).map(({ seq, index, op, bytes }) => [seq, index, op, bytes]),
    [
      [2, 0, OP_ACK, 63],
      [3, 0, OP_REQ, 100],
    ],
  );
  assert.deepEqual(engine.totals, { reqTx: 3, reqRx: 1, ackTx: 1, ackRx: 1, sendUs: 15, rttUs: 1000 });
});

test('a refused acknowledgement stays owed and goes first', () => {
  const { engine, sent, results } = rig({ sendsRequests: false });
  results.push('full');
  engine.receive(incoming(), remoteAddress, 4001);
  engine.pump();
  engine.receive(incoming({ seq: 1, index: 1 }), remoteAddress, 4001);
  engine.pump();
  assert.equal(sent.length, 0, 'a full queue is left alone until it has room');
  results.push('congested');
  engine.writable();
  engine.congestion(1n << 5n);
  engine.pump();
  assert.equal(sent.length, 0, 'news about another port');
  engine.congestion(1n << BigInt(4001 % 64));
  engine.pump();
  assert.deepEqual(
    sent.map(({ seq, index, op }) => [seq, index, op]),
    [
      [0, 0, OP_ACK],
      [1, 1, OP_ACK],
    ],
  );
});

test('a lending engine waits for its own completions and copies when none can come', () => {
  const { engine, sent, results } = rig({ zerocopy: true });
  results.push('sent', 'memory');
  engine.start();
  assert.equal(sent.length, 1);
  engine.pump();
  assert.equal(sent.length, 1, 'still no memory');
  results.push('memory');
  engine.completed([sent[0]!.cookie!]);
  engine.pump();
  assert.equal(sent.length, 2);
  assert.equal(sent[1]!.cookie, undefined, 'copied');
  assert.equal(engine.outbox.copiedInstead, 1);
  assert.throws(() => engine.completed([sent[0]!.cookie!]), { code: 'ZTX_STRESS_MISMATCH' });
});

test('never more lent than two buffers for each message that may be outstanding', () => {
  const { engine, sent } = rig({ zerocopy: true, depth: 1 });
  engine.start();
  for (let i = 0; i < 5; i++) {
    if (sent.length > i) engine.receive(incoming({ op: OP_ACK, seq: i }), remoteAddress, 4001);
    engine.pump();
    if (sent.length === i + 1) break;
  }
  assert.equal(sent.length, 2);
  engine.completed([sent[0]!.cookie!]);
  engine.pump();
  assert.equal(sent.length, 3);
});

test('after stop nothing is sent, and what comes is still counted', () => {
  const { engine, sent } = rig();
  engine.stop();
  engine.start();
  engine.receive(incoming(), remoteAddress, 4001);
  engine.pump();
  engine.writable();
  assert.equal(sent.length, 0);
  assert.equal(engine.totals.reqRx, 1);
});

test('one way: the passive side sends no requests', () => {
  const { engine, sent } = rig({ sendsRequests: false });
  engine.start();
  assert.equal(sent.length, 0);
});

test('what is not of this run is ignored and counted', () => {
  const { engine } = rig();
  engine.receive(incoming(), 0x0a000003, 4001);
  engine.receive(new Uint8Array(0), remoteAddress, 0);
  assert.equal(engine.strangers, 2);
  assert.equal(engine.totals.reqRx, 0);
});

test('a message marked as sent again is skipped when its number has passed', () => {
  const { engine } = rig();
  engine.receive(incoming(), remoteAddress, 4001);
  const again = incoming();
  again[60] = 1;
  engine.receive(again, remoteAddress, 4001);
  assert.equal(engine.totals.reqRx, 1);
});

const mismatches: [name: string, message: Uint8Array, port: number, expected: RegExp][] = [
  ['sequence', incoming({ seq: 1 }), 4001, /seq is 1, expected 0/],
  [
    'sender address',
    incoming({ fromAddr: 0x0a000003 }),
    4001,
    /from_addr is 10\.0\.0\.3, expected 10\.0\.0\.2/,
  ],
  ['own address', incoming({ toAddr: 0x0a000003 }), 4001, /to_addr/],
  ['sender port', incoming({ fromPort: 4002 }), 4001, /from_port/],
  ['own port', incoming({ toPort: 4002 }), 4001, /to_port/],
  ['slot', incoming({ index: 1 }), 4001, /index is 1, expected 0/],
  ['operation', incoming({ op: 3 }), 4001, /unknown operation 3/],
  ['unasked acknowledgement', incoming({ op: OP_ACK }), 4001, /no request is outstanding/],
  ['short', incoming({ size: 62 }), 4001, /has 62 bytes, its header alone has 63/],
  ['size', incoming({ size: 101 }), 4001, /has 101 bytes, expected 100/],
  ['port outside the run', incoming(), 4002, /port that is not in this run/],
];
for (const [name, message, port, expected] of mismatches)
  test(`mismatch: ${name}`, () => {
    const { engine } = rig();
    assert.throws(() => engine.receive(message, remoteAddress, port), {
      code: 'ZTX_STRESS_MISMATCH',
      message: expected,
    });
  });

test('mismatch: a request beyond the depth', () => {
  const { engine } = rig({ depth: 1 });
  engine.receive(incoming(), remoteAddress, 4001);
  assert.throws(() => engine.receive(incoming({ seq: 1 }), remoteAddress, 4001), /beyond the depth/);
});

test('mismatch: payload, only when it is verified', () => {
  const message = incoming();
  message[80] = message[80]! ^ 1;
  rig().engine.receive(message, remoteAddress, 4001);
  const { engine } = rig({ verify: true });
  assert.throws(() => engine.receive(message, remoteAddress, 4001), /corrupted payload at byte 80/);
});

test('sequence numbers wrap at 2^32 and slots at the depth', () => {
  const peer = new Peer(3, own, { address: remoteAddress, port: 4001 });
  peer.sendSeq = peer.recvSeq = 2 ** 32 - 1;
  peer.sendIndex = peer.recvIndex = 2;
  peer.requestSent(7);
  peer.requestReceived();
  assert.deepEqual([peer.sendSeq, peer.recvSeq, peer.sendIndex, peer.recvIndex], [0, 0, 0, 0]);
  assert.deepEqual([peer.ackDue, peer.ackOwed, peer.sentUs[2]], [2, 2, 7]);
});
