/**
 * RdsConnection under arbitrary sequences of events. RdsDriver checks after each event what must always hold; here a
 * model of the peer adds what it is all for: after any history of lost, refused, replaced and half-acknowledged
 * connections, a peer that keeps the kernel's receive rule has every message once and in order.
 *
 * The peer's TCP may have received more than it could acknowledge before the connection was lost, and its RDS layer looks at
 * none of it unless it adopted the connection, which it shows by sending its first byte.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { readU32 } from '../../src/wire/bytes.ts';
import * as rds from '../../src/wire/rds.ts';
import { CONG_MAP_BYTES } from '../../src/wire/rds-congestion.ts';
import { encodeExtensions } from '../../src/wire/rds-exthdr.ts';
import { type DriverChannel, RdsDriver } from '../support/rds-driver.ts';
import * as headers from '../support/rds-headers.ts';
import { splitMessages } from '../support/rds-messages.ts';

const seed = process.env.FC_SEED;
const parameters = {
  numRuns: 400,
  includeErrorInReport: true,
  ...(seed === undefined ? {} : { seed: Number(seed) }),
};

const SPORT = 4000;
const DPORT = 5000;

function header(sport: number, dport: number, seq: number, length: number, flags = 0): Buffer {
  const out = Buffer.alloc(rds.HEADER_BYTES + length);
  rds.encodeHeader(out, 0, 0, seq, length, sport, dport, flags);
  return out;
}

const mapBytes = header(0, 0, 0, CONG_MAP_BYTES, rds.CONG_BITMAP);

function probe(isPing: boolean, genNum: number): Buffer {
  const out = isPing ? header(1, 0, 1, 0) : header(0, 1, 2, 0);
  encodeExtensions(out, rds.EXTHDR_OFFSET, { npaths: 8, genNum, sportIdx: true });
  return out;
}

/** What the peer did with one connection. */
interface PeerEnd {
  adopted: boolean;
  /** Bytes its TCP has, and of these its RDS layer has seen. */
  receivedBytes: number;
  parsedBytes: number;
}

class World {
  readonly driver: RdsDriver;
  readonly got: number[] = [];
  sent = 0;
  readonly #ends = new Map<DriverChannel, PeerEnd>();
  #nextSeq = 0n;

  constructor(dials: boolean, random: () => number) {
    this.driver = new RdsDriver({ dials, random });
  }

  end(channel: DriverChannel): PeerEnd {
    let end = this.#ends.get(channel);
    if (end === undefined) {
      end = { adopted: channel.by === 'peer', receivedBytes: 0, parsedBytes: 0 };
      this.#ends.set(channel, end);
    }
    return end;
  }

  send(bytes: number): void {
    const payload = Buffer.alloc(Math.max(4, bytes), this.sent);
    payload.writeUInt32BE(this.sent++, 0);
    this.driver.send(payload, SPORT, DPORT);
  }

  /** Of what was written and not received, the part `share` in 0..1 arrives. */
  arrive(share: number): void {
    const { channel } = this.driver;
    if (channel === null || !channel.established) return;
    const end = this.end(channel);
    end.receivedBytes += Math.round((channel.writtenBytes - end.receivedBytes) * share);
    this.#parse(channel, end);
  }

  ack(share: number): void {
    const { channel } = this.driver;
    if (channel === null) return;
    const end = this.end(channel);
    const acked = channel.ackedBytes;
    this.driver.ack(acked + Math.floor((end.receivedBytes - acked) * share));
  }

  /** The peer's RDS layer says something: it has adopted the connection. */
  say(bytes: Uint8Array): void {
    const { channel } = this.driver;
    if (channel === null || !channel.established || bytes.length === 0) return;
    if (this.driver.connection.state === 'dialing') return;
    const end = this.end(channel);
    end.adopted = true;
    this.#parse(channel, end);
    this.driver.receive(bytes);
  }

  /** The kernel's rule: flagged messages with an old number are dropped, any other is taken and sets the number. */
  #parse(channel: DriverChannel, end: PeerEnd): void {
    if (!end.adopted) return;
    const stream = channel.out.subarray(end.parsedBytes, end.receivedBytes);
    for (const { bytes, payload } of splitMessages(stream).messages) {
      end.parsedBytes += bytes.length;
      const { flags, seqHi, seqLo, dport } = headers.decodeHeader(bytes, 0);
      if (flags === rds.CONG_BITMAP) continue;
      const seq = (BigInt(seqHi) << 32n) | BigInt(seqLo);
      if (seq < this.#nextSeq && (flags & rds.RETRANSMITTED) !== 0) continue;
      this.#nextSeq = seq + 1n;
      if (dport === DPORT) {
        const id = readU32(payload, 0);
        assert.ok(payload.subarray(4).every((byte) => byte === (id & 0xff)));
        this.got.push(id);
      }
    }
  }

  /** A peer and a network that behave: everything must arrive. */
  finish(): void {
    const { driver } = this;
    if (driver.channel !== null && driver.connection.state !== 'dialing') driver.fail();
    driver.waiting.length = 0;
    for (let round = 0; !driver.connection.sender.idle; round++) {
      assert.ok(round < 100, `not idle: ${driver.connection.state}, got ${this.got.length} of ${this.sent}`);
      const { state } = driver.connection;
      if (state === 'dialing' && driver.connection.dials) driver.dialed();
      else if (state === 'dialing' || state === 'down') {
        if (driver.connection.dials) driver.advance(1001);
        else driver.accept();
        continue;
      } else if (state === 'draining') {
        driver.end();
        driver.advance(5001);
        continue;
      }
      if (driver.channel !== null) driver.channel.room = Number.POSITIVE_INFINITY;
      driver.makeRoom(0);
      const { maps } = driver;
      this.say(mapBytes);
      assert.equal(driver.maps, maps + 1);
      this.say(probe(false, 7));
      this.arrive(1);
      this.ack(1);
    }
  }
}

type Command = (world: World) => void;

const share = fc.oneof(fc.constant(1), fc.double({ min: 0, max: 1, noNaN: true }));

/** What can happen on a network with a peer that keeps the protocol. */
const lawful: fc.Arbitrary<Command> = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.oneof(fc.nat(300), fc.nat(9000)).map(
      (n): Command =>
        (world) =>
          world.send(n),
    ),
  },
  {
    weight: 3,
    arbitrary: share.map(
      (part): Command =>
        (world) =>
          world.arrive(part),
    ),
  },
  {
    weight: 3,
    arbitrary: share.map(
      (part): Command =>
        (world) =>
          world.ack(part),
    ),
  },
  {
    weight: 3,
    arbitrary: fc.oneof(fc.nat(20), fc.nat(7000)).map(
      (ms): Command =>
        (world) =>
          world.driver.advance(ms),
    ),
  },
  {
    weight: 3,
    // The send buffer of the new connection is small or large.
    arbitrary: fc.oneof(fc.nat(200), fc.nat(20_000), fc.constant(1e9)).map(
      (room): Command =>
        (world) => {
          if (world.driver.channel !== null) world.driver.channel.room = room;
          world.driver.dialed();
        },
    ),
  },
  {
    weight: 2,
    arbitrary: fc.constant<Command>((world) => world.say(mapBytes)),
  },
  {
    weight: 2,
    arbitrary: fc.boolean().map(
      (isPing): Command =>
        (world) =>
          world.say(probe(isPing, 7)),
    ),
  },
  {
    weight: 1,
    arbitrary: fc.integer({ min: 2, max: 9 }).map(
      (sport): Command =>
        (world) =>
          world.say(header(sport, 0, 3, 0)),
    ),
  },
  { weight: 1, arbitrary: fc.constant<Command>((world) => world.driver.dialFailed()) },
  {
    weight: 1,
    // Half of something, and gone.
    arbitrary: fc.nat(8000).map(
      (n): Command =>
        (world) => {
          world.say(mapBytes.subarray(0, n));
          world.driver.fail();
        },
    ),
  },
  {
    weight: 2,
    arbitrary: fc.constant<Command>((world) => {
      world.driver.accept();
    }),
  },
  { weight: 1, arbitrary: fc.constant<Command>((world) => world.driver.end()) },
  { weight: 1, arbitrary: fc.constant<Command>((world) => world.driver.fail()) },
  {
    weight: 1,
    arbitrary: fc.nat(9000).map(
      (n): Command =>
        (world) =>
          world.driver.makeRoom(n),
    ),
  },
  {
    weight: 1,
    arbitrary: fc.constant<Command>(({ driver }) => driver.connection.drop(driver.nowMs, 'a test')),
  },
);

/** And what a peer may do that keeps nothing. */
const anything: fc.Arbitrary<Command> = fc.oneof(
  { weight: 6, arbitrary: lawful },
  {
    weight: 2,
    arbitrary: fc.uint8Array({ maxLength: 200 }).map(
      (bytes): Command =>
        (world) =>
          world.say(bytes),
    ),
  },
  // Well-formed, and not to be believed.
  {
    weight: 2,
    arbitrary: fc
      .tuple(fc.nat(3), fc.nat(3), fc.integer({ min: 0, max: 0xffffffff }), fc.nat(300), fc.nat(255))
      .map(
        ([sport, dport, seq, length, flags]): Command =>
          (world) =>
            world.say(header(sport, dport, seq, length, flags)),
      ),
  },
  {
    weight: 1,
    arbitrary: fc.integer({ min: 1, max: 0xffffffff }).map(
      (gen): Command =>
        (world) =>
          world.say(probe(true, gen)),
    ),
  },
  {
    weight: 1,
    arbitrary: fc.constant<Command>(({ driver }) => {
      // More pings than pongs are queued for.
      for (let i = 0; i < 100 && driver.connection.state === 'up'; i++) driver.receive(header(9, 0, i, 0));
    }),
  },
);

function run(world: World, commands: readonly Command[]): void {
  for (const command of commands) {
    command(world);
    world.driver.settle();
    // After a loss those that were in flight are queued again: the transport's buffer bounds them then.
    const { connection, counters } = world.driver;
    if (counters.conn_reset === 0)
      assert.ok(connection.sender.queue.controlQueued <= 66, 'pongs without bound');
  }
}

const randoms = fc.array(fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }), {
  minLength: 1,
  maxLength: 5,
});

function worldOf(dials: boolean, values: readonly number[]): World {
  let i = 0;
  return new World(dials, () => values[i++ % values.length]!);
}

for (const dials of [true, false]) {
  const role = dials ? 'dialler' : 'acceptor';

  test(`${role}: every message once and in order, whatever happened to its connections`, () => {
    fc.assert(
      fc.property(randoms, fc.array(lawful, { maxLength: 80, size: 'max' }), (values, commands) => {
        const world = worldOf(dials, values);
        run(world, commands);
        world.finish();
        assert.deepEqual(
          world.got,
          Array.from({ length: world.sent }, (_, i) => i),
        );
        assert.equal(world.driver.settledMessages, world.sent);
      }),
      parameters,
    );
  });

  test(`${role}: arbitrary events and bytes are survived, and the way out is shutdown`, () => {
    fc.assert(
      fc.property(randoms, fc.array(anything, { maxLength: 80, size: 'max' }), (values, commands) => {
        const world = worldOf(dials, values);
        run(world, commands);
        const { driver } = world;
        driver.shutdown();
        driver.advance(6000);
        assert.equal(driver.connection.state, 'closed');
        assert.equal(driver.connection.deadline(), Number.POSITIVE_INFINITY);
        assert.equal(driver.log.at(-1), 'closed');
        assert.equal(driver.settledMessages, world.sent);
        for (const channel of driver.channels) assert.notEqual(channel.closed, null);
      }),
      parameters,
    );
  });
}
