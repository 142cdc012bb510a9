/**
 * A scripted RDS peer in a simulated world: it dials from the source ports it is told, or listens, writes what a test tells it to, and
 * keeps what comes back. It answers probes from when it is told to, and does not read when it is told not to.
 */
import type { Channel, ChannelHandler } from '../../src/rds/transport.ts';
import { classify, HEADER_BYTES, payloadLength } from '../../src/wire/rds.ts';
import type { ProbeExtensions } from '../../src/wire/rds-exthdr.ts';
import { mapMessage, message, probeMessage } from './raw-peer.ts';
import { splitMessages, type WireMessage } from './rds-messages.ts';
import { Process, type World } from './sim.ts';

export class SimPeer {
  readonly address: string;
  readonly process: Process;
  /** In the order in which they came. */
  readonly accepted: SimConnection[] = [];

  constructor(world: World, address: string) {
    this.address = address;
    this.process = new Process(world, { lendable: true, budgetPages: -1, bootMs: 1_000_000 });
  }

  /** A connection from a port of `lane`. */
  dial(to: string, lane: number): SimConnection {
    const connection = new SimConnection();
    connection.opened(this.process.environment.transport.dial(this.address, to, lane, connection), false);
    return connection;
  }

  listen(onConnection: (connection: SimConnection) => void): void {
    this.process.environment.transport.listen(
      this.address,
      (channel) => {
        const connection = new SimConnection();
        this.accepted.push(connection);
        channel.handler = connection;
        connection.opened(channel, true);
        onConnection(connection);
        connection.readable();
      },
      () => true,
      () => {},
    );
  }
}

export class SimConnection implements ChannelHandler {
  /** Whole messages that came. */
  readonly messages: WireMessage[] = [];
  /** The other side has ended it. */
  hasEnded = false;
  nextSeq = 1;
  #channel!: Channel;
  #isUp = false;
  #reads = true;
  #answer: ProbeExtensions | null = null;
  #out: Buffer = Buffer.alloc(0);
  #in: Buffer = Buffer.alloc(0);
  #saysFin = false;

  get kinds(): string[] {
    return this.messages.map(({ bytes }) => classify(bytes, 0));
  }

  /** Payloads of programs' messages. */
  get texts(): string[] {
    return this.messages
      .filter(({ bytes }) => classify(bytes, 0) === 'data')
      .map(({ payload }) => Buffer.from(payload).toString());
  }

  /** Bytes of a message that is not whole yet; of one that has announced any. */
  get partial(): { readonly bytes: number; readonly announced: number } {
    const announced = this.#in.length < HEADER_BYTES ? 0 : payloadLength(this.#in, 0);
    return { bytes: this.#in.length, announced };
  }

  write(...parts: readonly Uint8Array[]): void {
    this.#out = Buffer.concat([this.#out, ...parts]);
    this.#push();
  }

  /** A map, and answers to probes from now on; those that came are answered, too. */
  speak(probe: ProbeExtensions): void {
    this.write(mapMessage());
    this.answer(probe);
  }

  answer(probe: ProbeExtensions): void {
    this.#answer = probe;
    for (const kind of this.kinds) if (kind === 'probe-ping') this.#pong();
  }

  ping(probe: ProbeExtensions): void {
    this.write(probeMessage('ping', this.nextSeq++, probe));
  }

  /** A message with the next number of this connection. */
  say(dport: number, payload: Uint8Array | string, flags = 0): void {
    this.write(message(this.nextSeq++, 9, dport, payload, flags));
  }

  fin(): void {
    this.#saysFin = true;
    this.#push();
  }

  reset(): void {
    this.#channel.reset();
  }

  /** Nothing more is read. */
  rest(): void {
    this.#reads = false;
  }

  // --- for its channel ---

  opened(channel: Channel, isUp: boolean): void {
    this.#channel = channel;
    this.#isUp = isUp;
  }

  connected(): void {
    this.#isUp = true;
    this.#push();
  }

  failed(): void {
    this.hasEnded = true;
  }

  writable(): void {
    this.#push();
  }

  released(): void {}

  readable(): void {
    if (!this.#reads) return;
    const into = Buffer.alloc(65_536);
    for (;;) {
      const n = this.#channel.readv([into], 1);
      if (n <= 0) {
        if (n === 0 || this.#channel.readable) this.hasEnded = true;
        return;
      }
      const { messages, rest } = splitMessages(Buffer.concat([this.#in, into.subarray(0, n)]));
      this.#in = Buffer.from(rest);
      for (const one of messages) {
        this.messages.push(one);
        if (classify(one.bytes, 0) === 'probe-ping' && this.#answer !== null) this.#pong();
      }
    }
  }

  #pong(): void {
    this.write(probeMessage('pong', this.nextSeq++, this.#answer as ProbeExtensions));
  }

  #push(): void {
    if (!this.#isUp) return;
    while (this.#out.length > 0) {
      const n = this.#channel.send([this.#out], 1, false);
      if (n <= 0) return;
      this.#out = this.#out.subarray(n);
    }
    if (this.#saysFin) this.#channel.shutdownWrite();
  }
}
