/**
 * A peer's connections in orders that are rare: what is unread on one when another tells of a restart, connections that are lost before the
 * answer, and messages that are repeated before it is known whose numbers they have. The peer is driven by hand (hand-channels.ts).
 *
 * What must hold in all of them: what was acknowledged, as all is that has arrived, is delivered, and what is repeated is so once.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { RETRANSMITTED } from '../../src/wire/rds.ts';
import { testPort } from '../../src/wire/rds-congestion.ts';
import { type HandChannel, HandScene } from '../support/hand-channels.ts';
import { mapMessage, message, probeMessage } from '../support/raw-peer.ts';

const [SMALLER, LARGER] = ['10.0.0.1', '10.0.0.2'] as const;
const PORT = 7;
/** What the peer says in its probes: with several lanes, after a restart, and as a 6.x kernel. */
const KNOWN = { npaths: 8, genNum: 7, sportIdx: true };
const RESTARTED = { npaths: 8, genNum: 8, sportIdx: true };
const LEGACY = { npaths: 8 };
/** Longer than time is given for an answer, LANE_0_TIMEOUT_MS and UNCLEAR_TIMEOUT_MS. */
const [UNANSWERED_MS, LANE_0_MS, UNCLEAR_MS] = [1500, 5500, 6000] as const;

const map = mapMessage();
const ping = probeMessage.bind(null, 'ping');
const pong = probeMessage.bind(null, 'pong');
const said = (seq: number, text: string): Buffer => message(seq, 9, PORT, text);
const again = (seq: number, text: string): Buffer => message(seq, 9, PORT, text, RETRANSMITTED);

function accepting(receiveBufferBytes?: number): HandScene {
  return new HandScene(LARGER, SMALLER, PORT, receiveBufferBytes);
}

/** The peer comes with lane 0, and lanes are agreed. */
function settled(scene: HandScene): HandChannel {
  const first = scene.accept(8);
  first.say(map, ping(1, KNOWN), pong(2, KNOWN));
  scene.run(10);
  assert.equal(scene.peer.npaths, 8);
  return first;
}

/** A connection, and what it says first. */
function comes(scene: HandScene, port: number, ...messages: readonly Buffer[]): HandChannel {
  const channel = scene.accept(port);
  channel.say(...messages);
  scene.run(10);
  return channel;
}

function lost(scene: HandScene, ...channels: readonly HandChannel[]): void {
  for (const channel of channels) channel.lose();
  scene.run(10);
}

/** A socket of the node whose messages go on lane 0. */
function onLane0({ node, peer }: HandScene): RdsSocket {
  for (let port = 6000; port < 6200; port++) if (peer.laneFor(port) === peer.lanes[0]) return node.bind(port);
  throw new Error('no port goes on lane 0');
}

/** This side dials, and all lanes are up. */
function dialled(): { scene: HandScene; first: HandChannel; others: readonly HandChannel[] } {
  const scene = new HandScene(SMALLER, LARGER, PORT);
  const first = told(scene);
  first.say(pong(3, KNOWN));
  scene.run(5);
  assert.equal(scene.peer.npaths, 8);
  const others = scene.dialled.slice(1);
  assert.equal(others.length, 7);
  for (const channel of others) {
    scene.connect(channel);
    channel.say(map, pong(1, KNOWN));
    scene.run(1);
  }
  return { scene, first, others };
}

/** This side has dialled lane 0, and is to say how many lanes it has. */
function told(scene: HandScene): HandChannel {
  scene.socket.sendmsg(Buffer.from('a'), { address: LARGER, port: 5 });
  scene.run(5);
  const [first] = scene.dialled as [HandChannel];
  scene.connect(first);
  first.say(map, ping(1, KNOWN), pong(2, KNOWN));
  scene.run(5);
  return first;
}

describe('connections of lane 0, each lost before the next', () => {
  interface Connection {
    readonly port: number;
    /** Messages arrive together up to a number: then they are read, and so many milliseconds pass. */
    readonly says: readonly (Buffer | number)[];
  }

  const before = {
    port: 8,
    says: [map, ping(1, KNOWN), pong(2, KNOWN), 10, said(10, 'p10'), said(11, 'p11')],
  };
  const cases: [what: string, history: readonly Connection[], expected: readonly string[]][] = [
    [
      'what a 6.x kernel repeats where a 7.x one was is new, though it says nothing of generations',
      [
        before,
        { port: 16, says: [map, again(3, 'n3'), again(4, 'n4'), ping(5, LEGACY), 5, pong(6, LEGACY)] },
      ],
      ['p10', 'p11', 'n3', 'n4'],
    ],
    [
      'what came between the ping and the pong of such a kernel has come',
      [
        before,
        { port: 16, says: [map, ping(1, LEGACY), said(2, 'n2'), pong(3, LEGACY)] },
        { port: 24, says: [map, again(2, 'n2'), ping(3, LEGACY), 5, pong(4, LEGACY)] },
      ],
      ['p10', 'p11', 'n2'],
    ],
    [
      'what came before a probe that tells of a restart has come, before a number of lanes is agreed, too',
      [
        { port: 8, says: [map, ping(1, KNOWN)] },
        { port: 16, says: [map, said(1, 'n1'), ping(2, RESTARTED)] },
        { port: 24, says: [map, again(1, 'n1'), ping(3, RESTARTED), 5, pong(4, RESTARTED)] },
      ],
      ['n1'],
    ],
    [
      'a process that was never settled is followed by another, which repeats what was not read',
      [
        { port: 8, says: [map, said(10, 'p10'), ping(11, KNOWN)] },
        { port: 16, says: [map, again(1, 'n1'), ping(2, RESTARTED), 5, pong(4, RESTARTED)] },
      ],
      ['p10', 'n1'],
    ],
    [
      'a doubt that time has decided is not that of the next connection',
      [
        before,
        { port: 16, says: [map, again(10, 'p10'), UNCLEAR_MS] },
        { port: 24, says: [map, again(3, 'n3'), again(4, 'n4'), ping(5, RESTARTED), pong(6, RESTARTED)] },
      ],
      ['p10', 'p11', 'n3', 'n4'],
    ],
    [
      'nor is one that ended because a probe was not answered',
      [
        { port: 8, says: [map, ping(1, KNOWN)] },
        { port: 16, says: [map, said(10, 'p10'), UNANSWERED_MS] },
        { port: 24, says: [map, again(1, 'n1'), ping(2, RESTARTED), pong(3, RESTARTED)] },
      ],
      ['p10', 'n1'],
    ],
    [
      'lanes are still told apart when a probe was not answered in time',
      [
        { port: 11, says: [map, again(5, 'three 5'), said(6, 'three 6'), UNANSWERED_MS] },
        { port: 12, says: [map, again(2, 'four 2'), UNANSWERED_MS] },
        { port: 19, says: [map, again(6, 'three 6'), ping(7, KNOWN), pong(8, KNOWN)] },
      ],
      ['three 5', 'three 6', 'four 2'],
    ],
    [
      'one lane is not taken for several while its answer may be behind what it repeats',
      [
        { port: 8, says: [map, said(1, 'n1')] },
        { port: 17, says: [map, again(1, 'n1'), UNANSWERED_MS, ping(2, LEGACY), pong(3, LEGACY)] },
      ],
      ['n1'],
    ],
  ];

  for (const [what, history, expected] of cases) {
    it(what, () => {
      const scene = accepting();
      for (const [i, { port, says }] of history.entries()) {
        const channel = scene.accept(port);
        for (const one of says) {
          if (typeof one !== 'number') channel.put(one);
          else {
            channel.say();
            scene.run(one);
          }
        }
        channel.say();
        scene.run(10);
        if (i < history.length - 1) lost(scene, channel);
      }
      scene.run(UNCLEAR_MS);
      assert.deepEqual(scene.texts(), expected);
      assert.equal(scene.node.heldBytes, 0);
    });
  }

  it('nothing new is sent while what the peer repeats is in doubt', () => {
    const scene = accepting();
    const first = settled(scene);
    first.say(said(10, 'p10'));
    lost(scene, first);
    const next = comes(scene, 16, map, again(3, 'n3'));
    onLane0(scene).sendmsg(Buffer.from('new'), { address: SMALLER, port: 5 });
    scene.run(UNANSWERED_MS);
    assert.deepEqual([next.kinds.includes('data'), scene.texts()], [false, ['p10']]);
    next.say(ping(4, RESTARTED), pong(5, RESTARTED));
    scene.run(10);
    assert.deepEqual([next.kinds.includes('data'), scene.texts()], [true, ['n3']]);
  });
});

describe('lane 0 is read before the first message of another lane', () => {
  it('which counts as heard: its connection is not given up as silent', () => {
    const scene = accepting();
    const first = settled(scene);
    const third = comes(scene, 11, map);
    lost(scene, first);
    const next = scene.accept(16);
    next.put(map, ping(3, KNOWN), pong(4, KNOWN));
    third.say(said(1, 'x'));
    scene.run(40_000);
    assert.deepEqual([scene.node.counters.conn_silent, next.ended, scene.texts()], [0, null, ['x']]);
  });

  it('which confirms a connection that this side dialled', () => {
    const { scene, first, others } = dialled();
    const count = scene.dialled.length;
    first.lose();
    scene.run(50);
    const next = scene.dialled[count] as HandChannel;
    scene.connect(next);
    next.put(map, ping(4, KNOWN), pong(5, KNOWN));
    others[2]?.say(said(9, 'x'));
    scene.run(10);
    const { connection } = scene.peer.lanes[0] ?? assert.fail('no lane 0');
    assert.deepEqual([connection.confirmed, connection.settled], [true, true]);
    scene.run(40_000);
    assert.deepEqual([scene.node.counters.conn_silent, scene.texts()], [0, ['x']]);
  });

  it('but not while it is being dialled', () => {
    const { scene, first, others } = dialled();
    const count = scene.dialled.length;
    first.lose();
    scene.run(50);
    const next = scene.dialled[count] as HandChannel;
    next.put(map, ping(4, RESTARTED));
    others[2]?.say(said(9, 'x'));
    assert.notEqual(next.unreadBytes(), 0);
    assert.deepEqual([scene.texts(), scene.node.counters.peer_restarts], [['x'], 0]);
  });
});

describe('a restart', () => {
  for (const [order, first] of [
    ['read first', 'lane 0'],
    ['read for the sake of another lane', 'lane 3'],
  ] as const) {
    it(`that lane 0 tells, ${order}, loses nothing that another lane has brought`, () => {
      const scene = accepting();
      const old = settled(scene);
      const third = comes(scene, 11, map);
      lost(scene, old);
      const next = scene.accept(16);
      next.put(map, ping(1, RESTARTED));
      third.put(said(1, 'acknowledged'));
      (first === 'lane 0' ? next : third).say();
      scene.run(10);
      assert.deepEqual([scene.texts(), scene.node.counters.peer_restarts], [['acknowledged'], 1]);
    });
  }

  /** Lanes 0, 3 and 5 were there, the latter two with messages up to 10, and all are lost. */
  function withoutLanes(): HandScene {
    const scene = accepting();
    const first = settled(scene);
    const [third, fifth] = [11, 13].map((port) => comes(scene, port, map, ping(1, KNOWN), said(10, 'p')));
    assert.deepEqual(scene.texts(), ['p', 'p']);
    lost(scene, first, third as HandChannel, fifth as HandChannel);
    return scene;
  }

  it('that another lane tells, where lane 0 does not come, makes what was repeated before it new', () => {
    const scene = withoutLanes();
    scene.accept(21).put(map, again(1, 'n1'), ping(2, RESTARTED));
    scene.run(LANE_0_MS);
    assert.deepEqual([scene.texts(), scene.node.counters.peer_restarts], [['n1'], 1]);
  });

  it('that one lane tells makes what is unread on a later connection of another new', () => {
    const scene = withoutLanes();
    scene.accept(19).put(map, ping(1, RESTARTED));
    const later = scene.accept(21);
    later.put(map, again(1, 'n1'), ping(2, RESTARTED), again(3, 'n2'));
    scene.run(LANE_0_MS);
    assert.notEqual(later.ended, null);
    assert.deepEqual([scene.texts(), scene.node.counters.peer_restarts], [['n1', 'n2'], 1]);
  });

  it('is followed on a lane by a late connection of the process before, whose numbers do not count', () => {
    const scene = accepting();
    const first = settled(scene);
    const third = comes(scene, 11, map);
    const late = scene.accept(19);
    lost(scene, first);
    comes(scene, 16, map, ping(1, RESTARTED), pong(2, RESTARTED));
    lost(scene, third);
    late.say(map, said(1000, 'late'), ping(1001, KNOWN));
    scene.run(10);
    lost(scene, late);
    comes(scene, 27, map, again(1, 'n1'), ping(2, RESTARTED));
    assert.deepEqual([scene.texts(), scene.node.counters.peer_restarts], [['late', 'n1'], 1]);
  });

  it('is followed by a connection of another lane in the place of lane 0, whose numbers are not those of lane 0', () => {
    const scene = withoutLanes();
    const third = scene.accept(19);
    third.put(map, said(1, 'n1'), ping(2, RESTARTED));
    scene.run(LANE_0_MS);
    lost(scene, third);
    const fifth = scene.accept(21);
    fifth.put(map, said(7, 'n7'), ping(8, RESTARTED), pong(9, RESTARTED));
    scene.run(LANE_0_MS);
    assert.equal(scene.peer.npaths, 8);
    lost(scene, fifth);
    comes(scene, 24, map, again(2, 'n2'), ping(3, RESTARTED));
    assert.deepEqual(scene.texts(), ['n1', 'n7', 'n2']);
  });
});

describe('at the end of the handshake', () => {
  it('a poke does not have the probe that names lanes sent again', () => {
    const scene = new HandScene(SMALLER, LARGER, PORT);
    const first = told(scene);
    const { length } = first.kinds;
    scene.accept(5000);
    scene.run(1);
    assert.equal(first.kinds.length, length);
    first.say(pong(3, KNOWN));
    scene.run(5);
    assert.equal(scene.peer.npaths, 8);
  });

  it('a lane that began with a map which is old by now sends another', () => {
    const scene = accepting(4096);
    const first = settled(scene);
    first.say(said(10, 'x'.repeat(5000)));
    scene.run(10);
    const third = comes(scene, 11, map, ping(1, KNOWN));
    assert.equal(scene.texts().length, 1);
    scene.run(10);
    const maps = (): boolean[] =>
      third.sent.flatMap(({ payload }, i) =>
        third.kinds[i] === 'congestion' ? testPort(payload, PORT) : [],
      );
    assert.deepEqual(maps(), [true]);
    third.say(pong(2, KNOWN));
    scene.run(10);
    assert.deepEqual(maps(), [true, false]);
  });
});
