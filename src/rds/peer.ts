/**
 * One remote address: what all its lanes share. Its congestion map, the handshake and what came of it, the bytes that wait to be
 * read, and the inbound connections that wait for their lane.
 *
 *   RdsSocket ──▶ Peer.laneFor(port) ──▶ Lane 0..7, a TCP connection each
 *
 * - A lane's number is the dialler's source port modulo the number of lanes; a socket keeps to one lane, by a hash of its
 *   port, but what comes may come on any (rds_tcp_accept_one, RDS_MPATH_HASH).
 * - Lane 0 is connected first, and carries the handshake (handshake.ts). Nothing new is sent before that has settled the number of lanes;
 *   what was queued until then is spread over them, so no socket ever changes its lane with something on the way. The other
 *   lanes are dialled, and taken, while lane 0 is settled: so they never belong to an earlier process than it does.
 * - A peer with another generation number has restarted. Its other connections are those of the dead process, and end; the
 *   number of lanes is settled anew.
 * - Inbound connections wait while their lane is busy or not known (stash.ts). While nothing is agreed all of them take the place of
 *   lane 0, one after the other (doubts.ts).
 *
 * Two bounds protect us from a peer and a program that do not read: bytes held for the peer, here, and in all, at the node. Over
 * either no lane of the peer is read any more, and TCP holds it back; congestion maps are meant to do so first.
 */
import { sport } from '../wire/rds.ts';
import { countRefusal, refusalTexts } from './admission.ts';
import { PeerMap } from './congestion.ts';
import { LanesDoubt, ProcessDoubt } from './doubts.ts';
import { Handshake, type ProbeNews } from './handshake.ts';
import { Lane, type LaneHost, type LaneNode } from './lane.ts';
import { ChunkShelf, type ReceiveBuffer } from './memory.ts';
import type { MessageSource } from './received.ts';
import type { Run, SendOwner } from './run.ts';
import { Expectation } from './sequence.ts';
import { Stash, type StashHost } from './stash.ts';
import type { Channel } from './transport.ts';
import type { TwoViews, ViewsHost } from './two-views.ts';

/** What a peer needs of its node. */
export interface PeerNode extends LaneNode {
  readonly limits: { readonly heldBytesPerPeer: number };
  readonly genNum: number;
  /** Lanes that are offered to peers. */
  readonly lanes: number;
  /** Drawn once: so that not every node puts the same ports on the same lane. */
  readonly laneSeed: number;
  deliver(
    peer: Peer,
    sport: number,
    dport: number,
    buffer: ReceiveBuffer,
    offset: number,
    length: number,
  ): void;
  /** Bytes held changed; how many one peer may hold now: Infinity until the node as a whole holds too many. */
  held(delta: number): number;
  /** The peer is not read any more; the node calls resumeIfRoom() when bytes were consumed. */
  paused(peer: Peer): void;
  congestionNews(): void;
  peerUp(peer: Peer): void;
  peerDown(peer: Peer, reason: string): void;
  peerClosed(peer: Peer): void;
}

export class Peer implements MessageSource, LaneHost, StashHost {
  readonly address: string;
  /** This side's address is the smaller one. */
  readonly dials: boolean;
  readonly map: PeerMap = new PeerMap();
  /** By lane number. */
  readonly lanes: Lane[] = [];
  mapVersion = 0;
  readonly shelf: ChunkShelf;
  readonly #node: PeerNode;
  readonly #handshake: Handshake;
  /** Lanes agreed with this generation of the peer; 0 until then. */
  #settledLanes = 0;
  /** Of lane 0, until a number is agreed. */
  #lanesDoubt: LanesDoubt | null = null;
  /** Lanes that sockets are spread over. */
  #spreadOver = 1;
  readonly #stash: Stash;
  #lanesUp = 0;
  /** Where changes of our map go: to one lane, so that they arrive in order. */
  #mapLane: Lane | null = null;
  /** Lane 0 was waited for in vain: the others are taken all the same. */
  #goesWithoutLane0 = false;
  /** In which order connections came, or were established. */
  readonly #ages = new WeakMap<Channel, number>();
  #connections = 0;
  #heldBytes = 0;
  #paused = false;
  #isClosing = false;
  #isAbandoning = false;

  constructor(node: PeerNode, address: string, dials: boolean) {
    this.#node = node;
    this.address = address;
    this.dials = dials;
    this.#handshake = new Handshake(node.genNum, node.lanes, dials);
    this.shelf = new ChunkShelf(node.pool, node.runtime.releases);
    this.lanes.push(new Lane(node, this, 0));
    this.#stash = new Stash(this, node.runtime);
    this.#forgetLanes();
  }

  /** Lanes agreed with the peer; 0 while unknown. */
  get npaths(): number {
    return this.#settledLanes;
  }

  /** The peer's generation number; 0 while unknown. */
  get generation(): number {
    return this.#handshake.peerGeneration;
  }

  /** Bytes of received messages that wait to be read. */
  get heldBytes(): number {
    return this.#heldBytes;
  }

  get isPaused(): boolean {
    return this.#paused;
  }

  /** The lane for what the local RDS port `port` sends. */
  laneFor(port: number): Lane {
    const lanes = this.#spreadOver;
    if (lanes === 1) return this.lanes[0] as Lane;
    return this.lanes[(Math.imul(port ^ this.#node.laneSeed, 0x9e3779b1) >>> 24) & (lanes - 1)] as Lane;
  }

  /** Nothing is queued, and there has been no connection for `forMs`: the peer's place may be given to another. */
  isForgotten(now: number, forMs: number): boolean {
    return this.#stash.isEmpty && this.lanes.every(({ connection }) => connection.isForgotten(now, forMs));
  }

  /** A send was refused because the peer's port is congested: only a connection can bring news of it. */
  wanted(): void {
    this.#first.wanted();
  }

  /** Our own map changed. */
  queueMap(): void {
    this.mapVersion += 1;
    if (this.#mapLane?.connection.state !== 'up')
      this.#mapLane = this.lanes.find(({ connection }) => connection.state === 'up') ?? null;
    this.#mapLane?.queueMap();
  }

  /** Looks at what was acknowledged; returns the number of messages. */
  checkAcks(): number {
    let messages = 0;
    for (const lane of this.lanes) messages += lane.checkAcks();
    return messages;
  }

  /** Withdraws what `owner` has queued for RDS port `port` of this peer; null: for any. */
  cancel(owner: SendOwner, port: number | null = null): void {
    for (const { connection } of this.lanes) connection.sender.cancel(owner, port);
  }

  /** Withdraws a run that was not begun; false if it was. */
  cancelRun(run: Run): boolean {
    return this.lanes.some(({ connection }) => connection.sender.cancelRun(run));
  }

  /** Takes an inbound connection from this peer. */
  accepted(channel: Channel): void {
    if (this.dials || this.#isClosing) {
      // A poke, or too late.
      this.#first.connection.accepted(this.#node.runtime.now());
      channel.reset();
      this.#first.arm();
      return;
    }
    this.#note(channel);
    const excess = this.#stash.add(channel, this.#handshake.offered);
    if (excess === null) return;
    countRefusal(this.#node.counters, 'waiting');
    this.#node.warn('connection refused', this.address, refusalTexts.waiting);
    excess.reset();
  }

  /** Memory of messages that wait to be read changed. */
  held(deltaBytes: number): void {
    this.#heldBytes += deltaBytes;
    const shareBytes = this.#node.held(deltaBytes);
    if (deltaBytes < 0 || this.#paused) return;
    if (this.#heldBytes > Math.min(shareBytes, this.#node.limits.heldBytesPerPeer)) this.pause();
  }

  isFull(): boolean {
    return this.#heldBytes > Math.min(this.#node.held(0), this.#node.limits.heldBytesPerPeer);
  }

  pause(): void {
    if (this.#paused) return;
    this.#paused = true;
    this.#node.paused(this);
    // Else no probe would be read either, ever.
    this.#guess();
  }

  /** Reads again, and returns true, if neither bound holds it back any more. */
  resumeIfRoom(shareBytes: number): boolean {
    const boundBytes = Math.min(shareBytes, this.#node.limits.heldBytesPerPeer);
    if (this.#paused && this.#heldBytes * 2 > boundBytes) return false;
    this.#paused = false;
    for (const lane of this.lanes) lane.resumed();
    return true;
  }

  /** Ends every lane: drains the connections, then closed. */
  shutdown(): void {
    this.#isClosing = true;
    this.#stash.close();
    this.#guess();
    this.#paused = false;
    for (const lane of this.lanes) lane.shutdown();
  }

  // --- for its lanes ---

  deliver(
    lane: Lane,
    sport: number,
    dport: number,
    buffer: ReceiveBuffer,
    offset: number,
    length: number,
  ): void {
    const views = this.#viewsOf(lane);
    if (views?.isHolding) views.hold({ sport, dport, payload: { buffer, offset, length } });
    else this.#node.deliver(this, sport, dport, buffer, offset, length);
  }

  /**
   * A kernel sends on lane 0 until it knows of others, and then on these as soon as TCP has acknowledged all of that
   * (mprds_catchup_tx0_retries counts how often). So it has arrived, and is read first: else a socket that changes its lane would lose its order.
   */
  readLane0(): void {
    this.#first.catchUp();
  }

  pinged(lane: Lane, sport: number): void {
    const views = this.#viewsOf(lane);
    if (views?.isHolding) views.hold({ sport, dport: 0, payload: null });
    else lane.connection.ping(sport, this.map.congested(sport));
  }

  congestion(map: Uint8Array): void {
    this.#node.counters.cong_update_received += 1;
    this.map.replace(map);
    this.#first.connection.mapCame();
    this.#node.congestionNews();
  }

  takeWaiting(lane: Lane): { channel: Channel; more: boolean } | null {
    // It may have something to say, which lane 0 must see to: nobody else dials, or pokes. Later, as this one is still ending.
    if (lane.index > 0) this.#node.runtime.defer(() => this.#first.look());
    return this.#stash.take(lane);
  }

  mayDial(lane: Lane): boolean {
    if (lane.index === 0) return true;
    return this.dials && lane.index < this.#settledLanes && this.#first.connection.settled;
  }

  /** Lane 0 is how all others come up. */
  needed(lane: Lane): boolean {
    return lane.index === 0 && this.lanes.some(({ connection }) => connection.waits);
  }

  waits(lane: Lane): void {
    if (lane.index > 0) this.#first.look();
  }

  /**
   * Not on a connection that is another lane's by its port, and stands in for lane 0 until the peer has said how many it has. Nor is it asked there, while
   * something is to be sent again: that is before the probe, which must not move the other lane's numbers.
   */
  mayResend(lane: Lane): boolean {
    return lane.index > 0 || this.#lanesDoubt?.isOneOfSeveral !== true;
  }

  /** As long as there is nothing to be said, once for all lanes is enough. */
  opensWithMap(lane: Lane): boolean {
    return lane.index === 0 || this.mapVersion > 0 || !this.#node.localMap.isEmpty;
  }

  /** A connection of the lane begins. */
  begins(lane: Lane): void {
    if (this.dials) this.#note(lane.channel as Channel);
    // Another lane is not there before lane 0 has told, but where it goes without that.
    const isFirstToTell = lane.index === 0 || !this.#first.connection.settled;
    if (!isFirstToTell || this.generation === 0) return;
    // One that time has decided holds nothing any more.
    if (lane.doubt?.views.decided) this.#endDoubt(lane);
    lane.doubt ??= new ProcessDoubt(this.#viewsHost(lane), lane.connection.receiver);
  }

  opening(lane: Lane): Uint8Array {
    return this.#handshake.opening(lane.index === 0);
  }

  patienceMs(): number {
    return this.#handshake.patienceMs;
  }

  probe(lane: Lane, isPing: boolean, bytes: Uint8Array, offset: number): void {
    // Said on a connection that is read for the last time, while another lane is in the middle of a message of the new process.
    if (this.#isAbandoning) return;
    const { connection } = lane;
    const news = this.#handshake.read(bytes, offset, this.#ageOf(lane));
    const { doubt } = lane;
    doubt?.told(news.hasRestarted);
    lane.doubt = null;
    if (lane.index === 0) this.#lanesDoubt?.told(this.#handshake.hasSeveralLanes === true);
    if (news.isLate) {
      connection.endLate(this.#node.runtime.now());
      return;
    }
    // What was held, and is new, has come already: its numbers count.
    if (news.hasRestarted) this.#restarted(lane, doubt?.other ?? new Expectation());
    if (isPing) connection.answer(this.#handshake.pong(news, lane.index === 0));
    else if (connection.answered()) this.#answered(lane, news);
  }

  unanswered(lane: Lane): void {
    // The answer is behind what the peer has to repeat.
    if (this.#viewsOf(lane)?.isHolding) return;
    // It had the time to tell. One that was mute before is not waited for.
    if (this.#handshake.patienceMs > 0) this.#endDoubt(lane);
    this.#handshake.unanswered();
    // While it is not known how many lanes there are that stays so: it may answer yet. But for one that has several, on a connection of another.
    const doubt = this.#lanesDoubt;
    const isLeftOpen = doubt !== null && (doubt.views.decided === null || !doubt.isOneOfSeveral);
    if (lane.index > 0 || isLeftOpen) this.#open(lane);
    else this.#settle(this.#settledLanes === 0 ? this.#spreadOver : this.#settledLanes);
  }

  laneUp(): void {
    this.#lanesUp += 1;
    if (this.#lanesUp === 1) this.#node.peerUp(this);
  }

  laneDown(reason: string): void {
    this.#lanesUp -= 1;
    if (this.#lanesUp === 0) this.#node.peerDown(this, reason);
  }

  laneClosed(): void {
    if (this.lanes.some(({ connection }) => connection.state !== 'closed')) return;
    this.shelf.close();
    this.#node.peerClosed(this);
  }

  /** Our probe was answered: `news` is what the peer offers. */
  #answered(lane: Lane, news: ProbeNews): void {
    const isLane0 = lane.index === 0;
    this.#handshake.answered(news, isLane0);
    const { connection } = lane;
    if (connection.settled) {
      // It came late, and says something else: agree on that, behind what was sent meanwhile.
      if (isLane0 && news.lanes !== this.#settledLanes) connection.unsettle(this.#node.runtime.now());
    } else if (isLane0) {
      const { tell, isAgreed } = this.#handshake.next(news, this.#settledLanes > 0 && this.#spreadOver === 1);
      if (tell !== null) connection.sendProbe(tell);
      if (isAgreed) this.#settle(news.lanes);
    } else this.#open(lane);
  }

  #note(channel: Channel): void {
    this.#connections += 1;
    this.#ages.set(channel, this.#connections);
  }

  #ageOf({ channel }: Lane): number {
    return (channel === null ? undefined : this.#ages.get(channel)) ?? 0;
  }

  /** So many lanes it is, with this generation of the peer. */
  #settle(lanes: number): void {
    const first = this.#first;
    // Fewer, and no new generation number: it cannot be the process that took messages on the others.
    if (this.#spreadOver > lanes && this.#settledLanes !== 0) this.#restarted(first, new Expectation());
    if (this.#spreadOver !== lanes) this.#spread(lanes);
    this.#settledLanes = lanes;
    this.#goesWithoutLane0 = false;
    this.#open(first);
    this.#place(first, this.dials ? 0 : (first.channel?.remotePort ?? 0) % lanes);
    for (const lane of this.lanes) {
      lane.followsLane0 = lane.index > 0;
      if (lane.index > 0 && lane.index < lanes && this.dials)
        lane.connection.keepUp(this.#node.runtime.now());
      lane.look();
    }
    this.#stash.route();
  }

  /**
   * Lanes are agreed, and the connection that came first is that of lane `index`: if not 0, lane 0 is to come
   * (rds_tcp_conn_slots_available). While the others are new the two lanes change places; else the connection ends, and comes again.
   */
  #place(first: Lane, index: number): void {
    const other = this.lanes[index] as Lane;
    const isNew = this.lanes.every(({ connection: { state, sender, receiver } }, i) => {
      if (i === 0) return true;
      const { hi, lo } = receiver.rule.next;
      return state === 'down' && !sender.hasUnacked && hi === 0 && lo === 0;
    });
    const { receiver } = first.connection;
    if (this.#lanesDoubt !== null || index > 0) this.#endDoubt(first);
    const rules = this.#lanesDoubt?.end(this.#settledLanes, index) ?? new Map([[index, receiver.rule]]);
    this.#lanesDoubt = null;
    if (index > 0 && isNew) {
      this.lanes[0] = other;
      this.lanes[index] = first;
      other.index = 0;
      first.index = index;
      this.#spread(this.#settledLanes);
    }
    for (const [i, rule] of rules) (this.lanes[i] as Lane).connection.receiver.rule = rule;
    if (index === 0 || isNew) return;
    receiver.rule = other.connection.receiver.rule;
    first.connection.endMisplaced(this.#node.runtime.now(), rules.get(0) ?? new Expectation());
  }

  #open(lane: Lane): void {
    lane.connection.settle();
    // The map of this connection has been taken in by now: if ours has changed since, it may have come after a newer one.
    if (lane.mapVersion >= 0 && lane.mapVersion !== this.mapVersion) lane.queueMap();
  }

  /** What waits to be sent goes to the lanes it has from now on. */
  #spread(lanes: number): void {
    const runs = this.lanes.flatMap(({ connection }) => connection.sender.takeQueued());
    this.#spreadOver = lanes;
    while (this.lanes.length < lanes) this.lanes.push(new Lane(this.#node, this, this.lanes.length));
    for (const run of runs) this.laneFor(sport(run.bytes, run.start)).connection.sender.adopt(run);
  }

  /** The peer has a new generation number, as `lane` tells, which follows `rule` from now on. */
  #restarted(lane: Lane, rule: Expectation): void {
    const now = this.#node.runtime.now();
    this.#node.counters.peer_restarts += 1;
    // Before connections end: those that wait take their places at once.
    this.#settledLanes = 0;
    this.#goesWithoutLane0 = false;
    this.#handshake.restarted();
    this.#isAbandoning = true;
    const age = this.#ageOf(lane);
    for (const other of this.lanes) {
      const { connection } = other;
      const isOfNew = this.#ageOf(other) > age;
      connection.sender.generationChanged();
      // First read what the dead one had said: its numbers must not be expected of the new one.
      if (other !== lane) connection.abandon(now, 'the peer restarted');
      // Before the rule is exchanged for good.
      this.#endDoubt(other, isOfNew);
      connection.numberAfresh(other === lane ? rule : new Expectation());
      other.arm();
    }
    this.#isAbandoning = false;
    this.#forgetLanes();
    if (lane.index > 0 && lane.channel !== null) this.#lanesDoubt?.follow(lane.channel.remotePort, rule);
    if (lane.index > 0) lane.connection.drop(now, 'the peer restarted');
    else lane.connection.unsettle(now);
  }

  /** No number of lanes is agreed any more. */
  #forgetLanes(): void {
    const { offered, hasSeveralLanes } = this.#handshake;
    this.#lanesDoubt?.views.decide();
    this.#lanesDoubt = null;
    // A peer that is dialled, or was never offered several, has one at a time.
    if (this.dials || offered === 1) return;
    const first = this.#first;
    const port = first.channel?.remotePort ?? 0;
    const peer = { count: offered, hasSeveral: hasSeveralLanes, port };
    this.#lanesDoubt = new LanesDoubt(this.#viewsHost(first), first.connection.receiver, peer);
  }

  /** Decides for want of a probe. */
  #guess(): void {
    this.#lanesDoubt?.views.decide();
    for (const { doubt } of this.lanes) doubt?.views.decide();
  }

  #endDoubt(lane: Lane, hasRestarted = false): void {
    lane.doubt?.told(hasRestarted);
    lane.doubt = null;
  }

  /** Behind the first probe, with which processes begin to be told apart, a number of lanes is known: so only one of the two holds. */
  #viewsOf(lane: Lane): TwoViews | undefined {
    return lane.doubt?.views ?? (lane.index === 0 ? this.#lanesDoubt?.views : undefined);
  }

  #viewsHost(lane: Lane): ViewsHost {
    const { counters, runtime } = this.#node;
    return {
      source: this,
      counters,
      timer: runtime.timer,
      pass: ({ sport, dport, payload }) => {
        if (payload === null) lane.connection.ping(sport, this.map.congested(sport));
        else this.#node.deliver(this, sport, dport, payload.buffer, payload.offset, payload.length);
      },
    };
  }

  // --- for its stash ---

  laneOf({ remotePort }: Channel): Lane | null {
    const first = this.#first;
    const lanes = this.#settledLanes;
    if (lanes === 0) {
      // While nothing is read that cannot be told: then it waits as the successor of the first.
      const { offered, hasSeveralLanes } = this.#handshake;
      const isOpen = first.connection.state === 'up' && offered > 1 && !this.#paused;
      // Those of a peer that has several lanes wait for lane 0, if there is something of them here: what lane 0 says has its own numbers.
      const isOther = hasSeveralLanes === true && this.lanes.length > 1 && remotePort % offered !== 0;
      return (isOpen || isOther) && !this.#goesWithoutLane0 ? null : first;
    }
    const index = remotePort % lanes;
    if (index === 0) return first;
    return first.connection.settled || this.#goesWithoutLane0 ? (this.lanes[index] as Lane) : null;
  }

  comes({ remotePort }: Channel): void {
    if (this.#settledLanes === 0) this.#goesWithoutLane0 = false;
    this.#lanesDoubt?.comesFrom(remotePort);
  }

  waitedForLane0(): void {
    // Where nothing is agreed because the peer does not answer, another connection replaces the first in the end.
    const isMute = this.#settledLanes === 0 && this.#first.connection.settled;
    if (isMute || this.lanes.every(({ connection }) => connection.isAway)) this.#goesWithoutLane0 = true;
  }

  get #first(): Lane {
    return this.lanes[0] as Lane;
  }
}
