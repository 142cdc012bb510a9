/**
 * A one-way stream of writes of one size over `node:net` or `zerotx/net`, as a good program writes it: until write()
 * says that it is enough, then again at 'drain'.
 *
 * Messages come from a working set larger than the caches (`workingSetBytes`), in turn, and are used again when their
 * write has been called back. They are Buffers or, with `source` `leases`, leases of a pool. Variant `resent` sends what
 * is held and never touches it, as a cache of objects does. Variant `refilled` writes a number into each message before
 * it is sent: into a Buffer, or into `lease.buffer`, which is a new view each time, as sending a lease takes the
 * program's view of it away. A slice ends when all writes have been called back: with lent memory, when all completions
 * are in.
 *
 * Side `dialler` is alone: it sends to a wire peer. `sender` and `receiver` are a pair on loopback; the receiver reads by
 * 'data' events or, with `reader` `onread`, into one buffer.
 */
import { once } from 'node:events';
import type { Socket } from 'node:net';
import { type CellSide, type Counters, numberOption, type Options, type Slice, textOption } from './cell.ts';
import {
  dialAndListen,
  dialAndRead,
  listenForOne,
  type NetSender,
  netModule,
  Progress,
  socketOptions,
} from './net-kit.ts';
import { difference, zerocopyCounters } from './zerocopy-counters.ts';

const RECEIVE_BUFFER_BYTES = 64 << 10;
/** Small messages are cut from blocks of this size, as a program with thousands of small buffers does. */
const BLOCK_BYTES = 1 << 20;

/** A Buffer, or a lease, whose view is made when it is reached. */
interface Message {
  readonly buffer: Buffer;
  readonly sent: Uint8Array;
  /** `lent`: it must not be reached. A Buffer is only written again when all of the working set was. */
  readonly state: string;
}

class Stream {
  readonly #socket: Socket;
  readonly #messages: readonly Message[];
  #sent = 0;
  #left = 0;
  #outstanding = 0;
  #refill = false;
  /** The next message is still on its way: goes on with the next that is called back. */
  #starved = false;
  #done: () => void = () => {};
  #failed: (error: Error) => void = () => {};

  constructor(socket: Socket, messages: readonly Message[]) {
    this.#socket = socket;
    this.#messages = messages;
    socket.on('error', (error) => this.#failed(error));
    socket.on('drain', () => this.#pump());
  }

  async run({ count, variant }: Slice): Promise<Counters> {
    const before = zerocopyCounters(this.#socket);
    await new Promise<void>((resolve, reject) => {
      this.#done = resolve;
      this.#failed = reject;
      this.#left = count;
      this.#refill = variant === 'refilled';
      this.#pump();
    });
    return difference(zerocopyCounters(this.#socket), before);
  }

  #pump(): void {
    const socket = this.#socket;
    const messages = this.#messages;
    while (this.#left > 0) {
      const message = messages[this.#sent % messages.length]!;
      // Completions may come in another order than the calls did.
      this.#starved = this.#outstanding === messages.length || message.state === 'lent';
      if (this.#starved) return;
      if (this.#refill) message.buffer.writeUInt32LE(this.#sent >>> 0);
      this.#sent += 1;
      this.#left -= 1;
      this.#outstanding += 1;
      if (!socket.write(message.sent, this.#written)) return; // 'drain' follows
    }
  }

  /** One function for all writes: a closure for each would be the program's cost, not the socket's. */
  readonly #written = (error?: Error | null): void => {
    this.#outstanding -= 1;
    if (error) this.#failed(error);
    else if (this.#left === 0 && this.#outstanding === 0) this.#done();
    else if (this.#starved) this.#pump();
  };
}

/** Leases and Buffers of the option `messageBytes`, filled, so that they have pages of their own. */
async function messagesOf(options: Options): Promise<Message[]> {
  const messageBytes = numberOption(options, 'messageBytes');
  const count = numberOption(options, 'workingSetBytes') / messageBytes;
  if (textOption(options, 'source') === 'buffers') return buffers(count, messageBytes);
  const { Pool } = await import('zerotx/net');
  const pool = new Pool();
  return Promise.all(
    Array.from({ length: count }, async (_, i) => {
      const lease = await pool.acquire(messageBytes);
      lease.buffer.fill(i + 1);
      return {
        get buffer(): Buffer {
          return lease.buffer;
        },
        get state(): string {
          return lease.state;
        },
        sent: lease as unknown as Uint8Array,
      };
    }),
  );
}

function buffers(count: number, messageBytes: number): Message[] {
  const perBlock = Math.max(1, Math.floor(BLOCK_BYTES / messageBytes));
  let block = Buffer.alloc(0);
  return Array.from({ length: count }, (_, i) => {
    const at = (i % perBlock) * messageBytes;
    if (at === 0) block = Buffer.alloc(perBlock * messageBytes, i + 1);
    const buffer = perBlock === 1 ? block : block.subarray(at, at + messageBytes);
    return { buffer, sent: buffer, state: 'held' };
  });
}

function dialler(): CellSide {
  let socket: Socket;
  let stream: Stream;
  return {
    async open(options: Options): Promise<Options> {
      const net = await netModule(options);
      const address = { host: textOption(options, 'host'), port: numberOption(options, 'port') };
      socket = net.connect({ ...address, ...socketOptions(options) });
      await once(socket, 'connect');
      socket.write(Buffer.alloc(numberOption(options, 'firstBytes'), 'f'));
      for (let bytes = 0; bytes < numberOption(options, 'greetingBytes'); ) {
        const [chunk] = (await once(socket, 'data')) as [Buffer];
        bytes += chunk.length;
      }
      stream = new Stream(socket, await messagesOf(options));
      return {};
    },
    run: (slice) => stream.run(slice),
    async close() {
      socket.destroy();
    },
  };
}

function sender(): CellSide {
  let server: NetSender;
  let stream: Promise<Stream>;
  return {
    async open(options: Options): Promise<Options> {
      server = await listenForOne(await netModule(options), socketOptions(options));
      const messages = await messagesOf(options);
      stream = server.socket.then((socket) => new Stream(socket, messages));
      return { port: server.port };
    },
    run: async (slice) => (await stream).run(slice),
    async close() {
      server.close();
    },
  };
}

function receiver(): CellSide {
  const progress = new Progress();
  let socket: Socket;
  let messageBytes = 0;
  return {
    async open(options: Options): Promise<Options> {
      messageBytes = numberOption(options, 'messageBytes');
      const port = numberOption(options, 'port');
      const net = await netModule(options);
      const withOptions = socketOptions(options);
      const read = (_: Buffer, bytes: number): void => progress.add(bytes);
      const heard = (chunk: Buffer): void => progress.add(chunk.length);
      socket =
        textOption(options, 'reader') === 'onread'
          ? await dialAndRead(port, RECEIVE_BUFFER_BYTES, read, net, withOptions)
          : await dialAndListen(port, heard, net, withOptions);
      return {};
    },
    async run({ count }) {
      await progress.more(count * messageBytes);
      return {};
    },
    async close() {
      socket.destroy();
    },
  };
}

export const sides: Record<string, () => CellSide> = { dialler, sender, receiver };
