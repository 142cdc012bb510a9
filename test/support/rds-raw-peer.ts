/**
 * An RDS peer made of a plain TCP socket, for what a well-behaved node does not do: read a part and reset, not read at
 * all, say that ports are congested. It keeps every message it reads, and does its part of the handshake unless told
 * otherwise.
 *
 *   const peer = new RawPeer('127.0.0.9', { receiveBytes: 4096 });   // the larger address: it is dialled
 *   const connection = await peer.accept();
 *   connection.allow(100_000);                                       // read this much, then stop
 */
import { errnoName, errnoOf } from '../../src/core/errors.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import {
  EPOLLIN,
  EPOLLOUT,
  EPOLLRDHUP,
  SO_RCVBUF,
  SO_REUSEADDR,
  SOCK_STREAM,
  SOL_SOCKET,
} from '../../src/sys/constants.ts';
import { type Registration, reactor } from '../../src/sys/reactor.ts';
import {
  CONG_BITMAP,
  classify,
  EXTHDR_OFFSET,
  encodeHeader,
  HEADER_BYTES,
  type MessageKind,
  payloadLength,
  RDS_TCP_PORT,
} from '../../src/wire/rds.ts';
import { createMap, setPort } from '../../src/wire/rds-congestion.ts';
import { encodeExtensions } from '../../src/wire/rds-exthdr.ts';
import { decodeHeader, type RdsHeader } from './rds-headers.ts';
import { closeWithReset } from './sockets.ts';

const DEADLINE_MS = 20_000;
const EAGAIN = -errnoOf('EAGAIN');
const READ_BYTES = 64 * 1024;

export interface RawMessage {
  readonly kind: MessageKind;
  readonly header: RdsHeader;
  readonly payload: Buffer;
}

export interface RawOptions {
  /** Receive buffer: small, so that what is not read is not acknowledged either. */
  readonly receiveBytes?: number;
  /** Bytes a connection reads to begin with; all if left out. */
  readonly readBytes?: number;
  /** Begin with a congestion map and answer handshake probes; yes if left out. */
  readonly answers?: boolean;
}

export class RawPeer {
  readonly address: string;
  readonly #fd: number;
  readonly #registration: Registration;
  readonly #options: RawOptions;
  readonly #accepted: RawConnection[] = [];
  readonly #all: RawConnection[] = [];
  #wanted: ((connection: RawConnection) => void)[] = [];

  constructor(address: string, options: RawOptions = {}) {
    this.address = address;
    this.#options = options;
    this.#fd = calls.socketFor(address, SOCK_STREAM);
    calls.setOption(this.#fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (options.receiveBytes !== undefined)
      calls.setOption(this.#fd, SOL_SOCKET, SO_RCVBUF, options.receiveBytes);
    calls.bind(this.#fd, address, RDS_TCP_PORT);
    calls.listen(this.#fd, 16);
    this.#registration = reactor().add(this.#fd, EPOLLIN, () => this.#acceptAll());
  }

  /** The next connection that the other side opened. */
  accept(): Promise<RawConnection> {
    const connection = this.#accepted.shift();
    if (connection !== undefined) return Promise.resolve(connection);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`nobody dialled ${this.address}`)), DEADLINE_MS);
      this.#wanted.push((accepted) => {
        clearTimeout(timer);
        resolve(accepted);
      });
    });
  }

  close(): void {
    this.#registration.remove();
    calls.close(this.#fd);
    for (const connection of this.#all) connection.reset();
  }

  #acceptAll(): void {
    for (let next = calls.accept(this.#fd); next !== undefined; next = calls.accept(this.#fd)) {
      const connection = new RawConnection(next.fd, this.#options);
      this.#all.push(connection);
      const wanted = this.#wanted.shift();
      if (wanted === undefined) this.#accepted.push(connection);
      else wanted(connection);
    }
  }
}

export class RawConnection {
  /** Everything read, in order. */
  readonly messages: RawMessage[] = [];
  bytesRead = 0;
  /** Why reading ended: 'EOF' or the name of an error. */
  ended: string | null = null;
  readonly #fd: number;
  readonly #answers: boolean;
  readonly #registration: Registration;
  #allowed: number;
  #partial: Buffer = Buffer.alloc(0);
  #out: Uint8Array[] = [];
  #seq = 1;
  #closed = false;
  #watchers: (() => void)[] = [];

  constructor(fd: number, options: RawOptions) {
    this.#fd = fd;
    this.#answers = options.answers ?? true;
    this.#allowed = options.readBytes ?? Number.POSITIVE_INFINITY;
    this.#registration = reactor().add(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, (events) => {
      if ((events & EPOLLOUT) !== 0) this.#write();
      this.#read();
    });
    // As every kernel does: the map shows that the connection was adopted.
    if (this.#answers) this.sendMap();
  }

  /** Messages with a payload for a program, without pings, probes and maps. */
  get data(): RawMessage[] {
    return this.messages.filter(({ kind }) => kind === 'data');
  }

  /** Reads `bytes` more, then stops. */
  allow(bytes: number): void {
    this.#allowed += bytes;
    this.#read();
  }

  /** Resolves when `condition` holds, asked after each read. */
  until(condition: () => boolean): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        const state = `${this.bytesRead} bytes, ${this.messages.length} messages, ${this.ended ?? 'open'}`;
        reject(new Error(`not within ${DEADLINE_MS} ms: ${condition} (${state})`));
      }, DEADLINE_MS);
      const watcher = (): void => {
        if (!condition()) return;
        clearTimeout(timer);
        this.#watchers = this.#watchers.filter((other) => other !== watcher);
        resolve();
      };
      this.#watchers.push(watcher);
      watcher();
    });
  }

  send(
    sport: number,
    dport: number,
    payload: Uint8Array,
    options: { flags?: number; probe?: boolean } = {},
  ): void {
    const bytes = Buffer.alloc(HEADER_BYTES + payload.byteLength);
    const { flags = 0, probe = false } = options;
    const seq = (flags & CONG_BITMAP) === 0 ? this.#seq++ : 0;
    encodeHeader(bytes, 0, 0, seq, payload.byteLength, sport, dport, flags);
    if (probe) encodeExtensions(bytes, EXTHDR_OFFSET, { npaths: 1, genNum: 77, sportIdx: true });
    bytes.set(payload, HEADER_BYTES);
    this.#out.push(bytes);
    this.#write();
  }

  /** The congestion map with these ports set. */
  sendMap(...ports: readonly number[]): void {
    const map = createMap();
    for (const port of ports) setPort(map, port);
    this.send(0, 0, map, { flags: CONG_BITMAP });
  }

  /** Ends with a reset. */
  reset(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#registration.remove();
    closeWithReset(this.#fd);
  }

  #read(): void {
    const into = Buffer.allocUnsafe(READ_BYTES);
    while (!this.#closed && this.ended === null && this.#allowed > 0) {
      const view = into.subarray(0, Math.min(READ_BYTES, this.#allowed));
      const n = native().readv(this.#fd, [view], 1);
      if (n === EAGAIN) break;
      if (n <= 0) {
        this.ended = n === 0 ? 'EOF' : errnoName(n);
        break;
      }
      this.#allowed -= n;
      this.bytesRead += n;
      this.#partial = Buffer.concat([this.#partial, view.subarray(0, n)]);
      this.#parse();
    }
    for (const watcher of this.#watchers) watcher();
  }

  #parse(): void {
    const bytes = this.#partial;
    let at = 0;
    while (bytes.length - at >= HEADER_BYTES) {
      const end = at + HEADER_BYTES + payloadLength(bytes, at);
      if (end > bytes.length) break;
      const kind = classify(bytes, at);
      this.messages.push({
        kind,
        header: decodeHeader(bytes, at),
        payload: Buffer.from(bytes.subarray(at + HEADER_BYTES, end)),
      });
      if (kind === 'probe-ping' && this.#answers) this.send(0, 1, Buffer.alloc(0), { probe: true });
      at = end;
    }
    this.#partial = bytes.subarray(at);
  }

  #write(): void {
    while (!this.#closed && this.#out.length > 0) {
      const n = native().sendv(this.#fd, this.#out, Math.min(16, this.#out.length), 0);
      if (n <= 0) return;
      let left = n;
      while (left > 0) {
        const first = this.#out[0] as Uint8Array;
        const take = Math.min(left, first.byteLength);
        left -= take;
        if (take === first.byteLength) this.#out.shift();
        else this.#out[0] = first.subarray(take);
      }
    }
  }
}
