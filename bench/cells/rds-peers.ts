/**
 * One node with many peers that are idle.
 *
 * Side `many` owns `peers` addresses, each a node with a socket that answers; side `one` owns an address in their middle, so that it dials
 * half of them and is dialled by the others. Its variants: `connect` sends a message to each of the next `count`, waits for the answers, and for all
 * lanes that were agreed; `rss` collects garbage and tells its resident memory; `idle` does nothing for `count` milliseconds.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { RdsNode, type RdsSocket } from 'zerotx/rds';
import { type CellSide, type Counters, numberOption, type Options, type Slice, textOption } from './cell.ts';
import { receiveAll, untilDone } from './rds-kit.ts';

const PORT = 4000;
const LANES_MS = 20;
const LANES_ROUNDS = 1500;
const COLLECTIONS = 4;
const FINALIZERS_MS = 100;

/** The addresses of `many`, around that of `one`: `prefix` is a.b, which is taken for this alone. */
function addressesOf(options: Options): { one: string; many: string[] } {
  const prefix = textOption(options, 'prefix');
  const peers = numberOption(options, 'peers');
  const address = (i: number): string => `${prefix}.${1 + Math.floor(i / 250)}.${1 + (i % 250)}`;
  const middle = peers >> 1;
  const many = Array.from({ length: peers }, (_, i) => address(i < middle ? i : i + 1));
  return { one: address(middle), many };
}

class Many implements CellSide {
  #nodes: RdsNode[] = [];

  async open(options: Options): Promise<Options> {
    this.#nodes = await Promise.all(addressesOf(options).many.map((address) => RdsNode.open({ address })));
    for (const node of this.#nodes) {
      const socket = node.bind(PORT);
      socket.on('readable', () => answer(socket));
    }
    return {};
  }

  async run(): Promise<Counters> {
    return {};
  }

  async close(): Promise<void> {
    await Promise.all(this.#nodes.map((node) => node.close()));
  }
}

function answer(socket: RdsSocket): void {
  receiveAll(
    socket,
    ({ address, port }) => {
      socket.sendmsg(Buffer.alloc(1), { address, port });
    },
    () => {},
  );
}

class One implements CellSide {
  #node!: RdsNode;
  #socket!: RdsSocket;
  /** Those that are not connected. */
  #peers: string[] = [];

  async open(options: Options): Promise<Options> {
    const { one, many } = addressesOf(options);
    // From both ends, so that each part has both roles.
    this.#peers = many.map((_, i) => many[i % 2 === 0 ? i >> 1 : many.length - 1 - (i >> 1)] as string);
    this.#node = await RdsNode.open({ address: one, limits: { peers: 2 * many.length } });
    this.#socket = this.#node.bind(PORT);
    return {};
  }

  async run({ count, variant }: Slice): Promise<Counters> {
    if (variant === 'connect') return this.#connect(count);
    if (variant === 'idle') await delay(count);
    else await collectGarbage();
    return { rssBytes: process.memoryUsage.rss() };
  }

  close(): Promise<void> {
    return this.#node.close();
  }

  async #connect(count: number): Promise<Counters> {
    const message = Buffer.alloc(1);
    const peers = this.#peers.splice(0, count);
    for (const address of peers) this.#socket.sendmsg(message, { address, port: PORT });
    let answers = 0;
    await untilDone(this.#socket, () => {
      receiveAll(
        this.#socket,
        () => {
          answers += 1;
        },
        () => {},
      );
      return answers === peers.length;
    });
    // No event tells that the last lane of a peer is up.
    for (let round = 0; round < LANES_ROUNDS; round++) {
      const { connections } = this.#node.info();
      const agreed = connections
        .filter(({ lane }) => lane === 0)
        .reduce((sum, { npaths }) => sum + (npaths ?? 1), 0);
      const up = connections.filter(({ connected }) => connected).length;
      if (up === agreed) return { lanes: up };
      await delay(LANES_MS);
    }
    throw new Error('not all lanes came up');
  }
}

async function collectGarbage(): Promise<void> {
  setFlagsFromString('--expose-gc');
  const gc = runInNewContext('gc') as () => void;
  for (let i = 0; i < COLLECTIONS; i++) {
    gc();
    await delay(FINALIZERS_MS);
  }
}

export const sides: Record<string, () => CellSide> = { many: () => new Many(), one: () => new One() };
