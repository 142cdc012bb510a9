/**
 * Connections that live and end, both ends in this process, over `node:net` or `zerotx/net`.
 *
 * Side `idle` opens its connections once, sends on each of them until the sends are completed, and does nothing in a
 * slice but wait: `count` is milliseconds. Side `churn` opens and closes `count` connections in a slice, a hundred at a
 * time, each with a send; it then collects garbage and tells its resident memory and the bytes the kernel still holds.
 */
import { once } from 'node:events';
import type { AddressInfo, Server, Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { type CellSide, type Counters, numberOption, type Options } from './cell.ts';
import { type Net, netModule, type SocketOptions, socketOptions } from './net-kit.ts';
import { processCounters } from './zerocopy-counters.ts';

/** Large enough to be lent. */
const MESSAGE_BYTES = 64 << 10;
const TOGETHER = 100;

/** A listener whose connections read all there is and end when their peers do. */
class Pairs {
  readonly #net: Net;
  readonly #options: SocketOptions;
  readonly #message = Buffer.alloc(MESSAGE_BYTES, 'z');
  #server!: Server;

  constructor(net: Net, options: SocketOptions) {
    this.#net = net;
    this.#options = options;
  }

  async listen(): Promise<void> {
    this.#server = this.#net.createServer(this.#options, (socket) => {
      socket.resume();
    });
    this.#server.listen(0, '127.0.0.1', 1024);
    await once(this.#server, 'listening');
  }

  /** A connection over which a message has been sent; the callback says that it is back. */
  async open(): Promise<Socket> {
    const { port } = this.#server.address() as AddressInfo;
    const socket = this.#net.connect({ port, host: '127.0.0.1', ...this.#options });
    await once(socket, 'connect');
    await new Promise<void>((resolve, reject) => {
      socket.write(this.#message, (error) => (error ? reject(error) : resolve()));
    });
    return socket;
  }

  async openAndClose(): Promise<void> {
    const socket = await this.open();
    const closed = once(socket, 'close');
    socket.resume();
    socket.end();
    await closed;
  }

  /** `count` times `step`, a hundred at a time. */
  async times<T>(count: number, step: () => Promise<T>): Promise<T[]> {
    const results: T[] = [];
    while (results.length < count) {
      const together = Math.min(TOGETHER, count - results.length);
      results.push(...(await Promise.all(Array.from({ length: together }, step))));
    }
    return results;
  }

  close(): void {
    this.#server.close();
  }
}

async function pairsOf(options: Options): Promise<Pairs> {
  const pairs = new Pairs(await netModule(options), socketOptions(options));
  await pairs.listen();
  return pairs;
}

function idle(): CellSide {
  let pairs: Pairs;
  let sockets: Socket[] = [];
  let counted: Counters;
  return {
    async open(options: Options): Promise<Options> {
      pairs = await pairsOf(options);
      const counters = await processCounters(options);
      sockets = await pairs.times(numberOption(options, 'connections'), () => pairs.open());
      // Now, as asking all sockets is work.
      counted = counters();
      return {};
    },
    async run({ count }) {
      await delay(count);
      return counted;
    },
    async close() {
      for (const socket of sockets) socket.destroy();
      pairs.close();
    },
  };
}

function churn(): CellSide {
  let pairs: Pairs;
  let counters: () => Counters;
  return {
    async open(options: Options): Promise<Options> {
      pairs = await pairsOf(options);
      counters = await processCounters(options);
      return {};
    },
    async run({ count }): Promise<Counters> {
      await pairs.times(count, () => pairs.openAndClose());
      await collectGarbage();
      return { ...counters(), rssBytes: process.memoryUsage.rss() };
    },
    async close() {
      pairs.close();
    },
  };
}

const COLLECTIONS = 4;
const FINALIZERS_MS = 100;

/**
 * Several times, as what is finalized in a later turn holds other things. Node offers it only to processes started with the
 * flag; a context that is made after setting it has it, too.
 */
async function collectGarbage(): Promise<void> {
  setFlagsFromString('--expose-gc');
  const gc = runInNewContext('gc') as () => void;
  for (let i = 0; i < COLLECTIONS; i++) {
    gc();
    await delay(FINALIZERS_MS);
  }
}

export const sides: Record<string, () => CellSide> = { idle, churn };
