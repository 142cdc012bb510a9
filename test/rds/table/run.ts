/** Runs rows of the table over a factory's nodes, one after the other, and says what came of each. */
import { isDeepStrictEqual } from 'node:util';
import type { SocketOptions } from '../../../src/rds/options.ts';
import {
  codeOfError,
  type Deviation,
  type Factory,
  type Group,
  type Row,
  rowName,
  type Scene,
  type TableNode,
  type TableSocket,
} from './shape.ts';

export interface Result {
  readonly row: string;
  readonly outcome: unknown;
  readonly expected: unknown;
  readonly holds: boolean;
}

const DEADLINE_MS = 10_000;

export class Table {
  readonly #factory: Factory;
  readonly #nodes: readonly [TableNode, TableNode];
  readonly #deviations: ReadonlyMap<string, Deviation>;

  private constructor(factory: Factory, nodes: readonly [TableNode, TableNode], deviations: Deviation[]) {
    this.#factory = factory;
    this.#nodes = nodes;
    this.#deviations = new Map(deviations.map((deviation) => [deviation.row, deviation]));
  }

  static async open(factory: Factory, deviations: readonly Deviation[]): Promise<Table> {
    const [first, second] = factory.addresses;
    const nodes = [await factory.open(first), await factory.open(second)] as const;
    return new Table(
      factory,
      nodes,
      deviations.filter(({ transport }) => transport === factory.transport),
    );
  }

  async run(group: Group, row: Row): Promise<Result> {
    const sockets: TableSocket[] = [];
    const bind = (node: TableNode, options?: SocketOptions): TableSocket => {
      const socket = node.bind(0, options);
      sockets.push(socket);
      return socket;
    };
    const [a, b] = this.#nodes;
    const scene: Scene = {
      factory: this.#factory,
      a,
      b,
      socket: (options) => bind(a, options),
      peer: (options) => bind(b, options),
      absent: { address: this.#factory.absent, port: 4000 },
      until,
    };
    let outcome: unknown;
    try {
      outcome = await row.call(scene);
    } catch (error) {
      outcome = codeOfError(error);
    } finally {
      await Promise.all(sockets.map((socket) => socket.close()));
    }
    const name = rowName(group, row);
    const deviation = this.#deviations.get(name);
    const expected = deviation === undefined ? row.expected : deviation.instead;
    return { row: name, outcome, expected, holds: isDeepStrictEqual(outcome, expected) };
  }

  async close(): Promise<void> {
    await Promise.all(this.#nodes.map((node) => node.close({ timeoutMs: 1000 })));
  }
}

/** Looks in every turn of the event loop. */
async function until(condition: () => boolean): Promise<void> {
  const end = performance.now() + DEADLINE_MS;
  while (!condition()) {
    if (performance.now() > end) throw new Error(`not within ${DEADLINE_MS} ms: ${condition}`);
    await new Promise((resolve) => setImmediate(resolve));
  }
}
