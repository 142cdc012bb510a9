/**
 * A scripted RDS peer over real TCP (node:net on loopback addresses): it sends what a test tells it to, true or false,
 * and records what comes back. On request it behaves like a kernel: opens with a map, answers probes, answers FIN with
 * FIN, and keeps the kernel's receive rule over all its connections.
 */
import { connect, createServer, type Server, type Socket } from 'node:net';
import {
  CONG_BITMAP,
  classify,
  EXTHDR_OFFSET,
  encodeHeader,
  HEADER_BYTES,
  RDS_TCP_PORT,
  RETRANSMITTED,
} from '../../src/wire/rds.ts';
import { CONG_MAP_BYTES } from '../../src/wire/rds-congestion.ts';
import { encodeExtensions, type ProbeExtensions } from '../../src/wire/rds-exthdr.ts';
import { decodeHeader } from './rds-headers.ts';
import { splitMessages, type WireMessage } from './rds-messages.ts';

const DEADLINE_MS = 20_000;
const LOOK_EVERY_MS = 2;

/** Resolves when `condition` holds; rejects, saying what was waited for, when it does not in time. */
export async function until(
  what: string,
  condition: () => boolean,
  deadlineMs: number = DEADLINE_MS,
): Promise<void> {
  const end = performance.now() + deadlineMs;
  while (!condition()) {
    if (performance.now() > end) throw new Error(`did not happen within ${deadlineMs} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
  }
}

export function message(
  seq: number,
  sport: number,
  dport: number,
  payload: Uint8Array | string = '',
  flags = 0,
): Buffer {
  const body = Buffer.from(payload as string);
  const out = Buffer.alloc(HEADER_BYTES + body.length);
  encodeHeader(out, 0, 0, seq, body.length, sport, dport, flags);
  out.set(body, HEADER_BYTES);
  return out;
}

/** An empty congestion map. */
export function mapMessage(): Buffer {
  return message(0, 0, 0, Buffer.alloc(CONG_MAP_BYTES), CONG_BITMAP);
}

/** What a peer of one lane says in its probes. */
const ONE_LANE: ProbeExtensions = { npaths: 1, genNum: 0x51ab, sportIdx: true };

export function probeMessage(
  kind: 'ping' | 'pong',
  seq: number,
  extensions: ProbeExtensions = ONE_LANE,
): Buffer {
  const out = kind === 'ping' ? message(seq, 1, 0) : message(seq, 0, 1);
  encodeExtensions(out, EXTHDR_OFFSET, extensions);
  return out;
}

/** The peer's RDS layer: what it remembers from connection to connection. */
export class KernelRule {
  readonly delivered: { sport: number; dport: number; payload: Buffer }[] = [];
  duplicates = 0;
  nextSeq = 0n;

  /** rds_recv_incoming: an old number is a duplicate only if it is marked; any other sets the expectation. */
  take({ bytes, payload }: WireMessage): void {
    const { flags, seqHi, seqLo, sport, dport } = decodeHeader(bytes, 0);
    if (flags === CONG_BITMAP) return;
    const seq = (BigInt(seqHi) << 32n) | BigInt(seqLo);
    if (seq < this.nextSeq && (flags & RETRANSMITTED) !== 0) {
      this.duplicates += 1;
      return;
    }
    this.nextSeq = seq + 1n;
    if (classify(bytes, 0) === 'data') this.delivered.push({ sport, dport, payload: Buffer.from(payload) });
  }
}

export class RawConnection {
  readonly socket: Socket;
  /** How the other side ended it, if it did. */
  ended: 'fin' | 'reset' | null = null;
  closed = false;
  /** Whole messages received. */
  readonly messages: WireMessage[] = [];
  receivedBytes = 0;
  /** Number of the next message: a kernel goes on with that of the connection before. */
  nextSeq = 1;
  #partial = Buffer.alloc(0);
  #rule: KernelRule | null = null;
  #probe: ProbeExtensions = ONE_LANE;

  constructor(socket: Socket) {
    this.socket = socket;
    socket.on('data', (data) => this.#received(data));
    socket.on('end', () => {
      this.ended ??= 'fin';
      if (this.#rule !== null) socket.end();
    });
    socket.on('error', () => {
      this.ended = 'reset';
    });
    socket.on('close', () => {
      this.closed = true;
    });
  }

  /**
   * Resolves when established, or when that is in vain (`localPort`, 0 for any, may be taken). The other side may end it at any time; that
   * is no error.
   */
  static async dial(from: string, to: string, localPort = 0): Promise<RawConnection> {
    const socket = connect({
      host: to,
      port: RDS_TCP_PORT,
      localAddress: from,
      localPort,
      allowHalfOpen: true,
    });
    socket.setNoDelay(true);
    const connection = new RawConnection(socket);
    await new Promise<void>((resolve) => {
      socket.once('connect', resolve);
      socket.once('close', () => resolve());
    });
    return connection;
  }

  /** Bytes of a message that is not whole yet. */
  get partialBytes(): number {
    return this.#partial.length;
  }

  get kinds(): string[] {
    return this.messages.map(({ bytes }) => classify(bytes, 0));
  }

  write(...parts: readonly Uint8Array[]): void {
    for (const part of parts) this.socket.write(part);
  }

  /** Behaves as a kernel from now on, which says `probe` in its answers; messages that came already count. */
  speak(rule: KernelRule = new KernelRule(), probe: ProbeExtensions = ONE_LANE): KernelRule {
    this.#rule = rule;
    this.#probe = probe;
    this.write(mapMessage());
    for (const one of this.messages) this.#kernel(one);
    return rule;
  }

  /** A message with the next number of this connection. */
  say(sport: number, dport: number, payload: Uint8Array | string = ''): void {
    this.write(message(this.nextSeq++, sport, dport, payload));
  }

  fin(): void {
    this.socket.end();
  }

  /**
   * Ends at once, by a reset unless a FIN waits behind what is to be written: libuv refuses that (uv_tcp_close_reset gives EINVAL while a
   * shutdown is pending), Node takes no notice, and the handle is never closed, not even when the process ends.
   */
  reset(): void {
    if (this.socket.writableEnded && !this.socket.writableFinished) this.socket.destroy();
    else this.socket.resetAndDestroy();
  }

  async gone(): Promise<'fin' | 'reset'> {
    await until('the end of a raw connection', () => this.ended !== null);
    return this.ended as 'fin' | 'reset';
  }

  #received(data: Buffer): void {
    this.receivedBytes += data.length;
    const { messages, rest } = splitMessages(Buffer.concat([this.#partial, data]));
    this.#partial = Buffer.from(rest);
    for (const one of messages) {
      this.messages.push(one);
      if (this.#rule !== null) this.#kernel(one);
    }
  }

  #kernel(one: WireMessage): void {
    this.#rule?.take(one);
    if (classify(one.bytes, 0) === 'probe-ping')
      this.write(probeMessage('pong', this.nextSeq++, this.#probe));
  }
}

/** A peer that listens. */
export class RawListener {
  readonly address: string;
  readonly accepted: RawConnection[] = [];
  /** What to do with each new connection. */
  onConnection: (connection: RawConnection) => void = () => {};
  readonly #server: Server;
  #taken = 0;

  private constructor(address: string, server: Server) {
    this.address = address;
    this.#server = server;
    server.on('connection', (socket) => {
      socket.setNoDelay(true);
      const connection = new RawConnection(socket);
      this.accepted.push(connection);
      this.onConnection(connection);
    });
  }

  static open(address: string): Promise<RawListener> {
    const server = createServer({ allowHalfOpen: true });
    const listener = new RawListener(address, server);
    return new Promise((resolve, reject) => {
      server.once('error', reject);
      server.listen({ host: address, port: RDS_TCP_PORT }, () => resolve(listener));
    });
  }

  /** The next connection, in order. */
  async next(): Promise<RawConnection> {
    const index = this.#taken++;
    await until(`connection ${index + 1} to ${this.address}`, () => this.accepted.length > index);
    return this.accepted[index]!;
  }

  /** Stops listening and resets what is open. */
  close(): void {
    this.#server.close();
    for (const connection of this.accepted) if (!connection.closed) connection.reset();
  }
}
