/**
 * Replay of captured connections: the peer's bytes are those a real kernel sent (Linux 6.1 and 7.2), in both roles, and
 * our answers are compared with what the real other kernel answered in the same place.
 *
 * Where we differ by design: every connection of ours opens with a map and a probe, as there is one lane (kernels send
 * them on some lanes only), and our probes carry NPATHS = 1, GEN_NUM and SPORT_IDX. All else is byte for byte the same
 * but for sequence numbers.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import * as rds from '../../src/wire/rds.ts';
import { parseExtensions } from '../../src/wire/rds-exthdr.ts';
import { type Connection, readConnections, type Side, type StreamEvent } from '../support/pcap.ts';
import { type DriverChannel, RdsDriver } from '../support/rds-driver.ts';
import { splitMessages, type WireMessage } from '../support/rds-messages.ts';
import { readVector } from '../support/vectors.ts';

const GEN = 0xabcdef01;
const PING_61 = '01-rds-ping-linux61.pcap';
const REBOOT = '07-peer-reboot-linux61.pcap';
const STORM = '08-rds-ping-linux72-dials-linux61.pcap';
const names = [PING_61, REBOOT, STORM];

const captures = new Map(names.map((name) => [name, readConnections(readVector(`rds/${name}`))]));

function connection(name: string, clientPort: number): Connection {
  const found = captures.get(name)!.find(({ client }) => client.endsWith(`:${clientPort}`));
  assert.ok(found !== undefined, `${name} has no connection from port ${clientPort}`);
  return found;
}

function other(side: Side): Side {
  return side === 'client' ? 'server' : 'client';
}

function kindOf({ bytes }: WireMessage): rds.MessageKind {
  return rds.classify(bytes, 0);
}

/** A message in which the sequence number, and a probe's extensions, are zero. */
function comparable({ bytes }: WireMessage): string {
  const copy = Buffer.from(bytes);
  copy.fill(0, 0, 8);
  if (rds.classify(copy, 0).startsWith('probe')) copy.fill(0, rds.EXTHDR_OFFSET, rds.HEADER_BYTES);
  return copy.toString('hex');
}

function seqOf({ bytes }: WireMessage): number {
  return rds.seqHi(bytes, 0) * 2 ** 32 + rds.seqLo(bytes, 0);
}

/** Plays `peer`'s recorded events of one connection into the driver's current channel, in recorded time. */
function play(driver: RdsDriver, events: readonly StreamEvent[], peer: Side): void {
  let timeUs = events[0]?.timeUs ?? 0;
  for (const event of events) {
    driver.advance((event.timeUs - timeUs) / 1000);
    timeUs = event.timeUs;
    driver.ack();
    if (event.from !== peer || driver.channel === null) continue;
    if (event.kind === 'data') driver.receive(event.bytes);
    else if (event.kind === 'fin') driver.end();
    else if (event.kind === 'rst') driver.fail();
  }
}

/** A driver in the place of `other(peer)`, with the peer's side of one connection played. */
function replay(recorded: Connection, peer: Side): { driver: RdsDriver; channel: DriverChannel } {
  const driver = new RdsDriver({ dials: peer === 'server', genNum: GEN });
  if (peer === 'client') assert.notEqual(driver.accept(), null);
  else {
    // The kernel dialled because a program pinged; the ping itself is not part of the comparison.
    driver.send(new Uint8Array(), 40000, 0);
    assert.equal(driver.connection.state, 'dialing');
    driver.dialed();
  }
  const channel = driver.channel!;
  play(driver, recorded.events, peer);
  // A peer that does not answer the probe opens the gate by saying nothing.
  driver.advance(1500);
  return { driver, channel };
}

/** Our messages, less those of the test's own program. */
function answers(channel: DriverChannel): WireMessage[] {
  const { messages, rest } = channel.sent;
  assert.equal(rest.length, 0);
  return messages.filter(({ bytes }) => rds.sport(bytes, 0) !== 40000);
}

for (const name of names) {
  for (const peer of ['client', 'server'] as const) {
    describe(`${name}, the ${peer} as the peer`, () => {
      for (const recorded of captures.get(name)!) {
        const { directions, client } = recorded;
        if (directions[peer].bytes.length === 0) continue;
        test(`connection from ${client}`, () => checkReplay(recorded, peer));
      }
    });
  }
}

function checkReplay(recorded: Connection, peer: Side): void {
  const real = splitMessages(recorded.directions[other(peer)].bytes).messages;
  const peers = splitMessages(recorded.directions[peer].bytes).messages;
  const { driver, channel } = replay(recorded, peer);
  const ours = answers(channel);

  // Opening: the map, then our probe with the first number.
  const [map, probe, ...rest] = ours;
  assert.equal(map!.bytes.length, 8240);
  const realMap = real.find((message) => kindOf(message) === 'congestion');
  if (realMap !== undefined) assert.deepEqual(Buffer.from(map!.bytes), Buffer.from(realMap.bytes));
  assert.equal(kindOf(probe!), 'probe-ping');
  assert.equal(seqOf(probe!), 1);
  assert.deepEqual(parseExtensions(probe!.bytes, rds.EXTHDR_OFFSET), {
    npaths: 1,
    genNum: GEN,
    sportIdx: true,
    unknownTypes: [],
  });
  const realProbe = real.find((message) => kindOf(message) === 'probe-ping');
  if (realProbe !== undefined) assert.equal(comparable(probe!), comparable(realProbe));

  // Then exactly the pongs that the kernel sent, in its order. (One of its pings may have met a lost connection.)
  const isPong = (message: WireMessage): boolean => ['pong', 'probe-pong'].includes(kindOf(message));
  const pings = peers.filter((message) => ['ping', 'probe-ping'].includes(kindOf(message)));
  assert.equal(rest.length, pings.length);
  const realPongs = real.filter(isPong).map(comparable);
  const ourPongs = rest.map(comparable);
  if (recorded.sawSyn) {
    const answered = new Set(realPongs);
    assert.deepEqual(
      ourPongs.filter((pong) => answered.has(pong)),
      realPongs,
    );
  }
  for (const message of rest) assert.ok(isPong(message));
  for (const [i, message] of ours.slice(2).entries()) assert.ok(seqOf(message) > 1, `pong ${i}`);

  const maps = peers.filter((message) => kindOf(message) === 'congestion').length;
  assert.equal(driver.maps, maps);
  assert.equal(driver.counters.recv_ping, pings.length);
  assert.equal(driver.counters.recv_drop_old_seq, 0);
  assert.equal(driver.counters.recv_ignored, 0);
}

describe('what the answers are, byte for byte', () => {
  test('6.1 dials and we accept: map, ping, pong as the kernel sent them', () => {
    const { channel } = replay(connection(PING_61, 59649), 'client');
    const ours = answers(channel);
    const real = splitMessages(connection(PING_61, 59649).directions.server.bytes).messages;
    assert.deepEqual(ours.map(comparable), real.map(comparable));
    assert.deepEqual(ours.map(seqOf), real.map(seqOf));
  });

  test('we dial 6.1: map, ping, pong as the kernel sent them', () => {
    const { driver, channel } = replay(connection(PING_61, 59649), 'server');
    const ours = answers(channel);
    const real = splitMessages(connection(PING_61, 59649).directions.client.bytes).messages;
    assert.deepEqual(ours.map(comparable), real.map(comparable));
    assert.deepEqual(ours.map(seqOf), real.map(seqOf));
    assert.equal(driver.connection.settled, true);
    assert.equal(driver.handshake.peerGeneration, 0);
  });

  test('7.2 dials and we accept: its ping is answered first, then the program that pinged', () => {
    const { driver, channel } = replay(connection(STORM, 32776), 'client');
    const ours = answers(channel);
    const real = splitMessages(connection(STORM, 32776).directions.server.bytes).messages;
    assert.deepEqual(ours.map(comparable), real.map(comparable));
    assert.deepEqual(ours.map(seqOf), real.map(seqOf));
    assert.equal(driver.handshake.peerGeneration, 0xb5952c8e);
    assert.equal(driver.counters.peer_restarts, 0);
  });

  test('pongs to user pings differ from the kernel in the sequence number alone', () => {
    for (const [port, rdsPorts] of [
      [50633, [39970, 7649]],
      [48363, [47484]],
    ] as const) {
      const recorded = connection(PING_61, port);
      const ours = answers(replay(recorded, 'client').channel).slice(2);
      const real = splitMessages(recorded.directions.server.bytes).messages;
      assert.deepEqual(
        real.map(({ bytes }) => rds.dport(bytes, 0)),
        rdsPorts,
      );
      assert.equal(ours.length, real.length);
      for (const [i, { bytes }] of ours.entries()) {
        assert.deepEqual(Buffer.from(bytes.subarray(8)), Buffer.from(real[i]!.bytes.subarray(8)));
      }
    }
  });

  test('the stream may be cut anywhere: the answers are the same', () => {
    const recorded = connection(STORM, 32776);
    const whole = replay(recorded, 'client').channel.out;
    const driver = new RdsDriver({ dials: false, genNum: GEN });
    driver.accept();
    const channel = driver.channel!;
    const bytes = recorded.directions.client.bytes;
    for (let at = 0; at < bytes.length; at += 7) driver.receive(bytes.subarray(at, at + 7));
    driver.advance(1500);
    assert.deepEqual(channel.out, whole);
  });
});

describe('a message marked RETRANSMITTED', () => {
  const before = connection(REBOOT, 51663);
  const after = connection(REBOOT, 40971);

  test('is new to a peer that restarted: answered as the kernel did', () => {
    const { driver, channel } = replay(after, 'client');
    const pongs = answers(channel).slice(2);
    const real = splitMessages(after.directions.server.bytes).messages.at(-1)!;
    assert.equal(pongs.length, 1);
    assert.equal(comparable(pongs[0]!), comparable(real));
    assert.equal(driver.counters.recv_drop_old_seq, 0);
  });

  test('is dropped by one that had it: number 4737 is not answered twice', () => {
    const driver = new RdsDriver({ dials: false, genNum: GEN });
    driver.accept();
    play(driver, before.events, 'client');
    driver.fail();
    assert.equal(driver.counters.recv_ping, 1);
    driver.accept();
    play(driver, after.events, 'client');
    driver.advance(1500);
    assert.equal(driver.counters.recv_drop_old_seq, 1);
    assert.equal(driver.counters.recv_ping, 1);
  });

  test('is dropped only for its number: the next unmarked one is accepted and sets the expectation', () => {
    const driver = new RdsDriver({ dials: false, genNum: GEN });
    driver.accept();
    play(driver, before.events, 'client');
    // The other lane of the same capture goes on at number 5, unmarked: a lower number alone is no duplicate.
    driver.receive(splitMessages(connection(REBOOT, 57687).directions.client.bytes).messages[1]!.bytes);
    assert.equal(driver.counters.recv_drop_old_seq, 0);
    assert.deepEqual(driver.connection.receiver.rule.next, { hi: 0, lo: 6 });
  });
});

describe('the storm of reconnects in 08', () => {
  const storm = captures.get(STORM)!;
  const userPings = storm.flatMap(({ directions }) =>
    splitMessages(directions.client.bytes).messages.filter((message) => kindOf(message) === 'ping'),
  );

  /** All connections in recorded order of events, into one acceptor. A real peer answers our FIN with its own. */
  function accepting(answersFin: boolean): RdsDriver {
    const driver = new RdsDriver({ dials: false, genNum: GEN });
    const channels = new Map<Connection, DriverChannel | null>();
    const ended = new Set<DriverChannel>();
    const finish = (): void => {
      while (answersFin && driver.channel?.finSent && !ended.has(driver.channel)) {
        ended.add(driver.channel);
        driver.end();
      }
    };
    const all = storm.flatMap((recorded) => recorded.events.map((event) => ({ recorded, event })));
    all.sort((a, b) => a.event.timeUs - b.event.timeUs);
    let timeUs = all[0]!.event.timeUs;
    for (const { recorded, event } of all) {
      driver.advance((event.timeUs - timeUs) / 1000);
      timeUs = event.timeUs;
      driver.ack();
      if (event.from !== 'client') continue;
      if (event.kind === 'syn') channels.set(recorded, driver.accept());
      const channel = channels.get(recorded);
      if (event.kind === 'data' && channel === driver.channel && channel !== null)
        driver.receive(event.bytes);
      if (event.kind === 'fin' && channel === driver.channel) driver.end();
      finish();
    }
    return driver;
  }

  for (const answersFin of [true, false]) {
    test(`as the acceptor, the peer ${answersFin ? 'answers' : 'does not answer'} our FIN`, () => {
      const driver = accepting(answersFin);
      driver.advance(60_000);
      // With one lane, each new connection says that the one before is lost.
      assert.ok(driver.counters.accept_replaced > 0);
      assert.ok(driver.waiting.length <= 8);
      assert.notEqual(driver.connection.state, 'closed');
      const open = driver.channels.filter(({ closed }) => closed === null);
      assert.deepEqual(open, [...(driver.channel === null ? [] : [driver.channel]), ...driver.waiting]);
      // Whatever came of it, the next connection works.
      driver.waiting.length = 0;
      if (driver.channel !== null) driver.fail();
      const next = driver.accept()!;
      // A user's ping as the others, from a port that is not among them.
      const ping = Buffer.from(userPings[0]!.bytes);
      ping.writeUInt16BE(12345, 20);
      driver.receive(ping);
      driver.advance(1500);
      const toIt = answers(next).filter(({ bytes }) => rds.dport(bytes, 0) === 12345);
      assert.deepEqual(toIt.map(kindOf), ['pong']);
    });
  }

  test('as the dialler: every reset is followed by another attempt, and the last connection stays', () => {
    const driver = new RdsDriver({ dials: true, genNum: GEN });
    driver.send(Buffer.from('x'), 40000, 4000);
    const attempts = storm.filter(({ client }) => Number(client.split(':')[1]) >= 32777);
    let used = 0;
    for (const recorded of attempts) {
      if (driver.connection.state === 'up') break;
      driver.advance(1000);
      assert.equal(driver.connection.state, 'dialing');
      driver.dialed();
      used += 1;
      play(driver, recorded.events, 'server');
    }
    // Ports 32777 to 32782 met FIN or RST, 32783 got a map and stayed.
    assert.equal(used, 7);
    assert.equal(driver.counters.conn_reset, 6);
    assert.equal(driver.connection.confirmed, true);
    driver.advance(1500);
    // Six connections on which nothing was ever received carried no data; the seventh carries it once.
    for (const channel of driver.channels.slice(0, -1)) {
      assert.deepEqual(channel.sent.messages.map(kindOf), ['congestion', 'probe-ping']);
    }
    const data = driver.channel!.sent.messages.filter((message) => kindOf(message) === 'data');
    assert.equal(data.length, 1);
    assert.equal(rds.flags(data[0]!.bytes, 0), 0);
  });
});
