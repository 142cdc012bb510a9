/**
 * Handshakes of peers that break off, or say whatever they like, over real TCP. A connection ends at every byte of what a peer begins
 * with; and seeded peers send probes with any number of lanes, any generation, with and without SPORT_IDX, from any source port, between
 * messages, pings and ends of connections. What must hold: nothing is delivered but what was sent whole, and once; others are served;
 * no descriptor, no byte stays; and when the same address becomes a good peer, it is served, too.
 */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { after, before, type TestContext, test } from 'node:test';
import { HEADER_BYTES } from '../../src/wire/rds.ts';
import type { ProbeExtensions } from '../../src/wire/rds-exthdr.ts';
import { scaled } from '../support/counts.ts';
import { Random } from '../support/random.ts';
import { LANES, RawLanes } from '../support/raw-lanes.ts';
import {
  KernelRule,
  mapMessage,
  message,
  probeMessage,
  RawConnection,
  RawListener,
  until,
} from '../support/raw-peer.ts';
import { PORT, TestNode, type TestNodeOptions } from '../support/tcp-nodes.ts';

const VICTIM = '127.77.5.5';
const firstSeed = Number(process.env.ZEROTX_SEED ?? Date.now() % 1_000_000);
const options = { timeout: scaled(300_000, 3_600_000) };

let good: TestNode;
let nextHost = 1;

before(() => {
  good = new TestNode('127.77.5.4');
});

/** What would have ended the process: the runner blames no test for what comes behind its end. */
const crashes: Error[] = [];
process.on('uncaughtExceptionMonitor', (error) => crashes.push(error));

after(async () => {
  await good.close();
  assert.deepEqual(crashes, []);
});

async function victimOf(context: TestContext, nodeOptions: TestNodeOptions): Promise<TestNode> {
  const node = new TestNode(VICTIM, nodeOptions);
  context.after(() => node.close());
  await good.exchange(node);
  return node;
}

function descriptors(): number {
  return readdirSync('/proc/self/fd').length;
}

const opening = [mapMessage(), probeMessage('ping', 1), probeMessage('pong', 2)];
const openingBytes = opening.reduce((sum, { length }) => sum + length, 0);
/** What lies behind the opening: a message of 100 bytes. */
const wholeBytes = openingBytes + HEADER_BYTES + 100;

/** Every cut in a header and around it, and a few within the map. */
function cuts(step: number): number[] {
  const all = Array.from({ length: wholeBytes + 1 }, (_, cut) => cut);
  const mapBegin = HEADER_BYTES + 2;
  const mapEnd = mapMessage().length - 2;
  return all.filter((cut) => (cut > mapBegin && cut < mapEnd ? cut % 1009 === 0 : cut % step === 0));
}

for (const weDial of [false, true]) {
  test(`an end at every byte of the opening; we ${weDial ? 'dial' : 'accept'}`, options, async (t) => {
    // Attempts follow each other at once there, and at most 1000 ms apart here.
    const victim = await victimOf(t, { speed: 200 });
    const host = nextHost++;
    const address = weDial ? `127.77.9.${host}` : `127.77.1.${host}`;
    const listener = weDial ? await RawListener.open(address) : null;
    if (listener !== null) t.after(() => listener.close());
    const connect = async (): Promise<RawConnection> =>
      listener === null ? RawConnection.dial(address, VICTIM) : listener.next();
    const before = descriptors();
    if (weDial) await (await RawConnection.dial(address, VICTIM)).gone();
    const whole: string[] = [];
    const begun: string[] = [];
    for (const cut of cuts(weDial ? scaled(8, 1) : 1)) {
      for (const end of ['fin', 'reset'] as const) {
        const text = `${cut} ${end} `.padEnd(100, '.');
        const connection = await connect();
        connection.write(Buffer.concat([...opening, message(3, 9, PORT, text)]).subarray(0, cut));
        if (cut === wholeBytes) (end === 'fin' ? whole : begun).push(text);
        if (end === 'fin') connection.fin();
        else connection.reset();
        await until(`the end of ${text}`, () => connection.ended !== null || connection.closed);
        if (!connection.closed) connection.reset();
      }
    }
    await until('what came whole', () => whole.every((text) => victim.from(address).includes(text)));
    const received = victim.from(address);
    assert.ok(received.length <= whole.length + begun.length, `${received.length} messages`);
    assert.ok(
      received.every((text) => whole.includes(text) || begun.includes(text)),
      'what was cut off was delivered',
    );
    await good.exchange(victim);
    const rule = new KernelRule();
    const last = await connect();
    last.speak(rule);
    last.write(message(1000, 9, PORT, 'good now'));
    victim.socket.sendmsg(Buffer.from('good, too'), { address, port: 7 });
    await until('it is heard', () => victim.from(address).includes('good now'));
    await until('and hears', () => rule.delivered.length === 1);
    last.reset();
    assert.ok(victim.node.counters.recv_truncated > 0);
    assert.equal(victim.node.heldBytes, 0);
    await until('no descriptor stays', () => descriptors() <= before + 2);
  });
}

/** What a peer may say of itself, true or not. */
function anyProbe(random: Random): ProbeExtensions {
  const npaths = random.pick([undefined, 0, 1, 2, 3, 8, 9, 65_535]);
  const genNum = random.pick([undefined, 0, 0x77, random.below(2 ** 32), random.below(2 ** 32)]);
  return {
    ...(npaths === undefined ? {} : { npaths }),
    ...(genNum === undefined ? {} : { genNum }),
    sportIdx: random.chance(0.6),
  };
}

/** One address that keeps several connections, and does anything on any of them. */
class Liar {
  readonly peer: RawLanes;
  readonly open: RawConnection[] = [];
  readonly sent: string[] = [];
  readonly #random: Random;
  readonly #listener: RawListener | null;
  #next = 0;

  constructor(random: Random, address: string, listener: RawListener | null) {
    this.#random = random;
    this.peer = new RawLanes(address, VICTIM);
    this.#listener = listener;
    if (listener !== null) listener.onConnection = (connection) => this.open.push(connection);
  }

  get address(): string {
    return this.peer.address;
  }

  async step(): Promise<void> {
    const random = this.#random;
    const usable = this.open.filter(({ closed, ended }) => !closed && ended === null);
    if (usable.length === 0 || random.chance(0.15)) {
      const connection = await this.peer.dial(random.below(LANES));
      // From a larger address it is a poke, and reset.
      if (this.#listener === null) this.open.push(connection);
      return;
    }
    const connection = random.pick(usable);
    switch (random.below(8)) {
      case 0:
      case 1:
      case 2:
        connection.write(probeMessage(random.pick(['ping', 'pong']), 1 + random.below(50), anyProbe(random)));
        return;
      case 3:
        connection.write(mapMessage());
        return;
      case 4:
        connection.write(message(1 + random.below(50), random.pick([0, 9]), 0));
        return;
      case 5:
        if (random.chance(0.5)) connection.fin();
        else connection.reset();
        return;
      default: {
        const text = `${this.address} ${this.#next++}`;
        this.sent.push(text);
        connection.write(message(100 + this.#next, 9, PORT, text));
      }
    }
  }

  end(): void {
    for (const connection of this.open) if (!connection.closed) connection.reset();
    this.peer.reset();
  }
}

function assertOnlyWhatWasSent(victim: TestNode, liar: Liar): void {
  const received = victim.from(liar.address);
  assert.equal(new Set(received).size, received.length, 'a message was delivered twice');
  const sent = new Set(liar.sent);
  for (const text of received) assert.ok(sent.has(text), `never sent: ${text}`);
}

for (const weDial of [false, true]) {
  test(`probes that say anything, in any order; we ${weDial ? 'dial' : 'accept'}`, options, async (t) => {
    for (let round = 0; round < scaled(8, 300); round++) {
      const seed = firstSeed + round;
      t.diagnostic(`seed ${seed}`);
      const random = new Random(seed);
      const victim = new TestNode(VICTIM, { speed: 100, lanes: random.pick([1, 2, 8]) });
      const address = `127.77.${weDial ? 9 : 1}.${nextHost++ % 250}`;
      const listener = weDial ? await RawListener.open(address) : null;
      const liar = new Liar(random, address, listener);
      try {
        await good.exchange(victim);
        const toThem = { address, port: 7 };
        let sent = 0;
        for (let step = 0; step < 150; step++) {
          await liar.step();
          if (random.chance(0.2)) {
            victim.socket.sendmsg(Buffer.from(`${sent++}`), toThem);
          }
          if (random.chance(0.1)) await until('a turn', () => true);
          assert.ok((victim.node.peer(address)?.lanes.length ?? 0) <= LANES);
        }
        await good.exchange(victim);
        assertOnlyWhatWasSent(victim, liar);
        // Whatever it said: from now on it is a kernel of one lane, with a generation of its own.
        const rule = new KernelRule();
        const probe = { npaths: 1, genNum: 0xabc, sportIdx: false };
        if (listener !== null) listener.onConnection = (connection) => void connection.speak(rule, probe);
        liar.end();
        const text = `the truth ${seed}`;
        victim.socket.sendmsg(Buffer.from(text), toThem);
        const has = (): boolean => rule.delivered.some(({ payload }) => payload.toString() === text);
        // A kernel dials again when its connection ends.
        for (let attempt = 0; listener === null && attempt < 50 && !has(); attempt++) {
          const connection = await RawConnection.dial(address, VICTIM);
          t.after(() => connection.reset());
          connection.speak(rule, probe);
          await until('an answer', () => connection.ended !== null || has());
        }
        await until('the last message', has);
        await until('nothing is queued', () => {
          victim.node.checkAcks();
          return victim.socket.queuedBytes === 0;
        });
        assert.equal(victim.node.heldBytes, 0);
        const numbers = rule.delivered.map(({ payload }) => Number(payload)).filter(Number.isInteger);
        assert.deepEqual(
          numbers,
          [...new Set(numbers)].sort((x, y) => x - y),
        );
      } catch (error) {
        throw new Error(`seed ${seed}: ${(error as Error).message}`, { cause: error });
      } finally {
        liar.end();
        listener?.close();
        await victim.close();
      }
    }
  });
}
