/**
 * One-way RDS messages from eight sockets to eight sockets of another node, over as many lanes as the option `lanes` allows. Each
 * sending socket has a port of its own, and with it a lane.
 *
 * Messages are copied, and `depth` of each socket are on their way at most: its send buffer is as large. A slice ends at the
 * receiver, when all have come; its counter `lanes` is the number of lanes that are up.
 */
import { RdsNode, type RdsSocket, ZerotxError } from 'zerotx/rds';
import { type CellSide, type Counters, numberOption, type Options, type Slice, textOption } from './cell.ts';
import { receiveAll, untilDone } from './rds-kit.ts';

const SOCKETS = 8;
const FIRST_PORT = 4000;

interface Open {
  readonly node: RdsNode;
  readonly sockets: readonly RdsSocket[];
}

async function open(options: Options, side: 'sender' | 'receiver'): Promise<Open> {
  const node = await RdsNode.open({
    address: textOption(options, `${side}Address`),
    lanes: numberOption(options, 'lanes'),
  });
  const bufferBytes = numberOption(options, 'messageBytes') * numberOption(options, 'depth');
  const sockets = Array.from({ length: SOCKETS }, (_, i) =>
    node.bind(FIRST_PORT + i, { sendBufferBytes: bufferBytes, receiveBufferBytes: bufferBytes }),
  );
  return { node, sockets };
}

function upLanes(node: RdsNode): number {
  return node.info().connections.filter(({ connected }) => connected).length;
}

class Sender implements CellSide {
  #open!: Open;
  #message!: Buffer;
  #to = '';

  async open(options: Options): Promise<Options> {
    this.#open = await open(options, 'sender');
    this.#message = Buffer.alloc(numberOption(options, 'messageBytes'), 'z');
    this.#to = textOption(options, 'receiverAddress');
    return {};
  }

  async run({ count }: Slice): Promise<Counters> {
    const { node, sockets } = this.#open;
    await Promise.all(
      sockets.map((socket, i) => {
        const to = { address: this.#to, port: FIRST_PORT + i };
        let left = shareOf(count, i);
        return untilDone(socket, () => {
          while (left > 0 && this.#accepted(socket, to)) left -= 1;
          return left === 0;
        });
      }),
    );
    return { lanes: upLanes(node) };
  }

  close(): Promise<void> {
    return this.#open.node.close();
  }

  #accepted(socket: RdsSocket, to: { address: string; port: number }): boolean {
    try {
      socket.sendmsg(this.#message, to);
      return true;
    } catch (error) {
      if (error instanceof ZerotxError && error.next === 'retry') return false;
      throw error;
    }
  }
}

class Receiver implements CellSide {
  #open!: Open;
  #messageBytes = 0;
  readonly #received: number[] = new Array<number>(SOCKETS).fill(0);
  readonly #target: number[] = new Array<number>(SOCKETS).fill(0);

  async open(options: Options): Promise<Options> {
    this.#messageBytes = numberOption(options, 'messageBytes');
    this.#open = await open(options, 'receiver');
    return {};
  }

  async run({ count }: Slice): Promise<Counters> {
    const { node, sockets } = this.#open;
    await Promise.all(
      sockets.map((socket, i) => {
        this.#target[i]! += shareOf(count, i);
        return untilDone(socket, () => {
          receiveAll(
            socket,
            (message) => {
              if (message.length !== this.#messageBytes) throw new Error(`${message.length} bytes`);
              this.#received[i]! += 1;
            },
            () => {},
          );
          return this.#received[i]! >= this.#target[i]!;
        });
      }),
    );
    return { lanes: upLanes(node) };
  }

  close(): Promise<void> {
    return this.#open.node.close();
  }
}

/** Messages of socket `i` out of `count`. */
function shareOf(count: number, i: number): number {
  return Math.floor(count / SOCKETS) + (i < count % SOCKETS ? 1 : 0);
}

export const sides: Record<string, () => CellSide> = {
  sender: () => new Sender(),
  receiver: () => new Receiver(),
};
