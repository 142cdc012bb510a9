/**
 * RDS_CANCEL_SENT_TO over links that stall and break: what goes to one port is withdrawn, and nothing else. A message comes once,
 * in order, or not at all, and not at all only if it was withdrawn; each cookie comes back, and not before nobody reads the memory.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import type { RdsMessage } from '../../src/rds/received.ts';
import { scaled } from '../support/counts.ts';
import { codeOf } from '../support/rds-nodes.ts';
import { cut, FROM, readMessages, run, scene, TO } from '../support/scene.ts';

const PORTS = [5000, 5001, 5002] as const;

type Step =
  | { kind: 'send'; port: number; bytes: number; lend: boolean }
  | { kind: 'cancel'; port: number }
  | { kind: 'cancelAll' }
  | { kind: 'run'; ms: number }
  | { kind: 'cut' }
  | { kind: 'stall' };

const port = fc.constantFrom(...PORTS);
const send = fc.record({
  kind: fc.constant('send' as const),
  port,
  bytes: fc.oneof(
    fc.integer({ min: 8, max: 100 }),
    fc.integer({ min: 8, max: 9000 }),
    fc.integer({ min: 8, max: 70_000 }),
  ),
  lend: fc.boolean(),
});
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 10, arbitrary: send },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('cancel' as const), port }) },
  { weight: 1, arbitrary: fc.constant({ kind: 'cancelAll' as const }) },
  {
    weight: 4,
    arbitrary: fc.record({ kind: fc.constant('run' as const), ms: fc.integer({ min: 0, max: 20 }) }),
  },
  { weight: 1, arbitrary: fc.constant({ kind: 'cut' as const }) },
  { weight: 1, arbitrary: fc.constant({ kind: 'stall' as const }) },
);

interface Sent {
  readonly port: number;
  withdrawn: boolean;
}

class Trial {
  readonly made = scene(
    { zerocopy: true, sendBufferBytes: 1 << 26 },
    { peer: { receiveBufferBytes: 1 << 26 } },
  );
  readonly sent: Sent[] = [];
  readonly cookies: number[] = [];
  lent = 0;
  readonly #peers = [
    this.made.peer,
    ...PORTS.slice(1).map((one) => this.made.b.bind(one, { receiveBufferBytes: 1 << 26 })),
  ];
  readonly #last = new Map<number, number>();
  readonly #came = new Set<number>();

  async take(step: Step): Promise<void> {
    const { world, socket } = this.made;
    switch (step.kind) {
      case 'send': {
        const data = Buffer.alloc(step.bytes, this.sent.length & 0xff);
        data.writeUInt32BE(this.sent.length, 0);
        data.writeUInt32BE(step.bytes, 4);
        const options = step.lend ? { zerocopy: true, cookie: this.sent.length } : {};
        if (step.lend) this.lent += 1;
        socket.sendmsg(data, { ...TO, port: step.port }, options);
        this.sent.push({ port: step.port, withdrawn: false });
        return;
      }
      case 'cancel':
        socket.setsockopt('RDS_CANCEL_SENT_TO', { ...TO, port: step.port });
        for (const message of this.sent) if (message.port === step.port) message.withdrawn = true;
        return;
      case 'cancelAll':
        socket.cancelSentTo(TO.address);
        for (const message of this.sent) message.withdrawn = true;
        return;
      case 'run':
        await run(world, step.ms);
        this.read();
        return;
      case 'cut':
        cut(world);
        return;
      case 'stall':
        for (const link of world.links) link.stall(30);
    }
  }

  read(): void {
    const { socket } = this.made;
    for (let got = socket.recvmsg(); got !== null; got = socket.recvmsg())
      if (got.kind === 'completion') this.cookies.push(...got.cookies);
    for (const peer of this.#peers) for (const message of readMessages(peer)) this.#check(peer.port, message);
  }

  #check(to: number, { data }: RdsMessage): void {
    const number = data.readUInt32BE(0);
    assert.equal(data.readUInt32BE(4), data.length);
    assert.ok(data.subarray(8).every((byte) => byte === (number & 0xff)));
    assert.equal(this.sent[number]?.port, to);
    assert.ok(!this.#came.has(number), `${number} came twice`);
    this.#came.add(number);
    assert.ok(number > (this.#last.get(to) ?? -1), `${number} came late`);
    this.#last.set(to, number);
  }

  end(): void {
    const { a, socket } = this.made;
    this.read();
    const missing = this.sent.flatMap(({ withdrawn }, i) => (withdrawn || this.#came.has(i) ? [] : [i]));
    assert.deepEqual(missing, []);
    assert.equal(new Set(this.cookies).size, this.lent);
    assert.equal(this.cookies.length, this.lent);
    assert.deepEqual([socket.queuedBytes, socket.lentBytes, a.budget.used()], [0, 0, 0]);
  }
}

describe('messages withdrawn by port', () => {
  it('are the only ones that do not come', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 60 }), async (steps) => {
        const trial = new Trial();
        for (const one of steps) await trial.take(one);
        await run(trial.made.world, 60_000);
        trial.end();
      }),
      { numRuns: scaled(150, 5000) },
    );
  });

  it('among small ones of one stretch: the others keep their order and their boundaries', async () => {
    const { world, b, socket, peer } = scene({ sendBufferBytes: 1 << 20 });
    const other = b.bind(5001);
    for (let i = 0; i < 300; i++) {
      const data = Buffer.alloc(4 + (i % 50));
      data.writeUInt32BE(i);
      socket.sendmsg(data, { ...TO, port: i % 3 === 0 ? 5001 : TO.port });
    }
    const before = socket.queuedBytes;
    socket.setsockopt('RDS_CANCEL_SENT_TO', { ...TO, port: 5001 });
    assert.ok(socket.queuedBytes < before && socket.queuedBytes > 0);
    socket.sendmsg(Buffer.from([0, 0, 1, 44]), TO);
    await run(world, 1000);
    assert.deepEqual(
      readMessages(peer).map(({ data }) => data.readUInt32BE()),
      [...Array.from({ length: 300 }, (_, i) => i).filter((i) => i % 3 !== 0), 300],
    );
    assert.deepEqual(readMessages(other), []);
    assert.equal(socket.queuedBytes, 0);
  });

  it('in a send(): rejected with ECANCELED, and others wait on', async () => {
    const { world, socket } = scene({ zerocopy: true });
    const away = { address: '10.0.0.9', port: 1 };
    const codes: string[] = [];
    const sending = [1, 2].map((to) =>
      socket
        .send(Buffer.alloc(600), { ...away, port: to })
        .catch((error) => codes.push(`${to} ${error.code}`)),
    );
    await run(world, 10);
    socket.setsockopt('RDS_CANCEL_SENT_TO', { ...away, port: 2 });
    await run(world, 10);
    assert.deepEqual(codes, ['2 ECANCELED']);
    socket.cancelSentTo(away.address);
    await run(world, 10);
    await Promise.all(sending);
    assert.deepEqual(codes, ['2 ECANCELED', '1 ECANCELED']);
  });
});

describe('a message that the kernel has and the program withdraws', () => {
  for (const how of ['cancel', 'close'] as const) {
    it(`by ${how}: its cookie, or the end, waits for the memory`, async () => {
      const made = scene({ zerocopy: true, sendBufferBytes: 1 << 24 });
      const { world, socket, peer } = made;
      socket.sendmsg(Buffer.alloc(1), TO);
      await run(world, 1000);
      assert.equal(readMessages(peer).length, 1);
      for (const link of world.links) link.stall(1000);
      const data = Buffer.alloc(1 << 20, 7);
      socket.sendmsg(data, TO, { zerocopy: true, cookie: 1 });
      socket.sendmsg(data, TO, { zerocopy: true, cookie: 2 });
      await run(world, 10);
      let closed = false;
      if (how === 'cancel') socket.cancelSentTo(TO.address);
      else
        void socket.close().then(() => {
          closed = true;
        });
      await run(world, 10);
      const { lentBytes } = socket;
      assert.ok(lentBytes >= 1 << 20, 'the first is half sent');
      assert.deepEqual([closed, codeOf(() => socket.recvErrqueue())], [false, null]);
      await run(world, 100_000);
      assert.equal(socket.lentBytes, 0);
      const lengths = readMessages(peer).map(({ length }) => length);
      assert.deepEqual(lengths, [1 << 20], 'the stream stays framed, and the second is gone');
      if (how === 'close') assert.equal(closed, true);
      else assert.deepEqual(socket.recvErrqueue()?.cookies, [1, 2]);
      assert.equal(socket.address, FROM.address);
    });
  }
});
