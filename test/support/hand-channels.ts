/**
 * A node whose peer is the test, byte by byte and event by event: channels in memory, on virtual time. What arrives, and when the node is
 * told of it, are two things here, which they never are for long over a link (sim.ts): so what a test is about can lie unread on one
 * connection while another one is read.
 *
 *   test ─ put(), say(), lose() ─▶ HandChannel ─▶ RdsNode ─▶ channel.kinds, channel.ended
 */
import { errnoOf } from '../../src/core/errors.ts';
import type { Ubuf } from '../../src/core/ubuf.ts';
import { RdsNode } from '../../src/rds/node.ts';
import type { Peer } from '../../src/rds/peer.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import type { Channel, ChannelHandler, Transport } from '../../src/rds/transport.ts';
import { classify } from '../../src/wire/rds.ts';
import { Random } from './random.ts';
import { splitMessages, type WireMessage } from './rds-messages.ts';
import { newProcess, readMessages } from './scene.ts';
import { World } from './sim.ts';

const EAGAIN = -errnoOf('EAGAIN');
const ECONNRESET = -errnoOf('ECONNRESET');
const TCP_PORT = 16_385;

/** What is sent is acknowledged at once, and there is always room. */
export class HandChannel implements Channel {
  readonly remoteAddress: string;
  readonly remotePort: number;
  readonly localPort: number;
  readable = false;
  readonly writable = true;
  handler: ChannelHandler = { readable() {}, writable() {}, released() {} };
  /** How the node ended it, if it did. */
  ended: 'close' | 'reset' | null = null;
  #unread: Buffer = Buffer.alloc(0);
  #isLost = false;
  readonly #sent: Buffer[] = [];
  #sentBytes = 0;

  constructor(remoteAddress: string, remotePort: number, localPort: number) {
    this.remoteAddress = remoteAddress;
    this.remotePort = remotePort;
    this.localPort = localPort;
  }

  /** What the node has sent. */
  get sent(): readonly WireMessage[] {
    return splitMessages(Buffer.concat(this.#sent)).messages;
  }

  get kinds(): string[] {
    return this.sent.map(({ bytes }) => classify(bytes, 0));
  }

  /** This arrives, and nobody is told. */
  put(...messages: readonly Buffer[]): void {
    this.#unread = Buffer.concat([this.#unread, ...messages]);
    this.readable = true;
  }

  /** This arrives, and the node is told. */
  say(...messages: readonly Buffer[]): void {
    this.put(...messages);
    this.#tell();
  }

  /** It is reset behind what has arrived, and the node is told. */
  lose(): void {
    this.#isLost = true;
    this.readable = true;
    this.#tell();
  }

  #tell(): void {
    if (this.ended === null) this.handler.readable();
  }

  lends(): boolean {
    return false;
  }

  send(views: readonly Uint8Array[], count: number): number {
    const taken = Buffer.concat(views.slice(0, count));
    this.#sent.push(taken);
    this.#sentBytes += taken.byteLength;
    return taken.byteLength;
  }

  sendLent(_ubuf: Ubuf, views: readonly Uint8Array[], count: number): number {
    return this.send(views, count);
  }

  copied(): void {}

  readv(views: readonly Uint8Array[], count: number): number {
    if (this.#unread.byteLength === 0) {
      this.readable = false;
      return this.#isLost ? ECONNRESET : EAGAIN;
    }
    let bytes = 0;
    for (const view of views.slice(0, count)) bytes += this.#unread.copy(view, 0, bytes);
    this.#unread = this.#unread.subarray(bytes);
    return bytes;
  }

  unreadBytes(): number {
    return this.#unread.byteLength;
  }

  ackedBytes(): number {
    return this.#sentBytes;
  }

  shutdownWrite(): void {}

  close(): void {
    this.ended = 'close';
  }

  reset(): void {
    this.ended = 'reset';
  }
}

export class HandScene {
  readonly node: RdsNode;
  readonly socket: RdsSocket;
  /** Connections that the node has dialled, oldest first. */
  readonly dialled: HandChannel[] = [];
  readonly #world = new World(new Random(7));
  readonly #remoteAddress: string;
  #accepted: (channel: Channel) => void = () => {};

  /** A node at `address`, with a socket at RDS port `port`, and a peer at `remoteAddress`: the smaller one dials. */
  constructor(address: string, remoteAddress: string, port: number, receiveBufferBytes: number = 1 << 20) {
    const transport: Transport = {
      listen: (_address, accepted) => {
        this.#accepted = accepted;
        return { close: () => {} };
      },
      dial: (_local, remote, lane, handler) => {
        const channel = new HandChannel(remote, TCP_PORT, this.#world.nextPort(lane));
        channel.handler = handler;
        this.dialled.push(channel);
        return channel;
      },
    };
    this.#remoteAddress = remoteAddress;
    this.node = new RdsNode(address, { ...newProcess(this.#world).environment, transport });
    this.socket = this.node.bind(port, { receiveBufferBytes });
  }

  get peer(): Peer {
    return this.node.peers[0] as Peer;
  }

  /** The peer opens a connection from source port `remotePort`. */
  accept(remotePort: number): HandChannel {
    const channel = new HandChannel(this.#remoteAddress, remotePort, TCP_PORT);
    this.#accepted(channel);
    return channel;
  }

  /** The connection that the node dials is established. */
  connect(channel: HandChannel): void {
    channel.handler.connected?.();
    this.run(1);
  }

  run(ms: number): void {
    this.#world.run(this.#world.now + ms);
  }

  /** What the socket has received since. */
  texts(): string[] {
    return readMessages(this.socket).map(({ data }) => String(data));
  }
}
