/** A `zerotx switch` between the two guests of a test, and in each a card that was plugged in for it. */
import { after, before } from 'node:test';
import { LabProcess } from './lab-process.ts';
import type { Vm } from './vm.ts';
import type { Nic, NicPeer } from './vm-nics.ts';

export interface Pair {
  readonly left: Vm;
  readonly right: Vm;
}

export interface EndOptions {
  /** Of the port in the lab file, besides the socket: `{ mtu: 9000 }`. */
  readonly device?: Readonly<Record<string, unknown>>;
  /** The whole port; of another kind than vhost, if `peer` says so. */
  readonly port?: Readonly<Record<string, unknown>>;
  /** QEMU listens, and zerotx connects. */
  readonly server?: boolean;
  /** What QEMU has at the card's other end, if not our device. */
  readonly peer?: NicPeer;
  readonly queuePairs?: number;
  readonly properties?: Nic['properties'];
}

export interface CablingOptions {
  /** Unique: names sockets and the lab file. */
  readonly name: string;
  /** The guests are 10.<net>.0.1 and .2, and fd<net>::1 and ::2. */
  readonly net: number;
  readonly path: (name: string) => string;
  readonly left?: EndOptions | null;
  /** Null: this guest is not connected. */
  readonly right?: EndOptions | null;
  /** More ports of the lab. */
  readonly ports?: Readonly<Record<string, object>>;
}

export type Side = 'left' | 'right';
const SIDES = ['left', 'right'] as const;

export class Cabling {
  lab: LabProcess;
  /** The cards' names in the guests. */
  readonly names: Record<Side, string> = { left: '', right: '' };
  readonly #pair: Pair;
  readonly #options: CablingOptions;
  readonly #cards: Side[] = [];

  static async make(pair: Pair, options: CablingOptions): Promise<Cabling> {
    const cabling = new Cabling(pair, options, await startLab(options));
    try {
      await Promise.all(SIDES.map((side) => cabling.#plug(side)));
      return cabling;
    } catch (error) {
      await cabling.lab.kill();
      throw error;
    }
  }

  private constructor(pair: Pair, options: CablingOptions, lab: LabProcess) {
    this.#pair = pair;
    this.#options = options;
    this.lab = lab;
  }

  address(side: Side): string {
    return addressOf(this.#options, side);
  }

  address6(side: Side): string {
    return `fd${this.#options.net}::${side === 'left' ? 1 : 2}`;
  }

  /** The card of that guest, for another one. */
  nic(side: Side): Nic {
    return nicOf(this.#options, side, endOf(this.#options, side) ?? {});
  }

  /** A new process for the same lab file, after the old one has ended. */
  async restart(): Promise<void> {
    this.lab = await startLab(this.#options);
  }

  async end(): Promise<void> {
    for (const side of this.#cards)
      if (this.#pair[side].running) await this.#pair[side].removeNic(this.#options.name);
    await this.lab.stop();
  }

  /** Both ways in turn: from, to. */
  static readonly ways: readonly (readonly [Side, Side])[] = [
    ['left', 'right'],
    ['right', 'left'],
  ];

  /** Of a guest's card. */
  static mac(net: number, side: Side): string {
    return `52:54:00:02:${net.toString(16).padStart(2, '0')}:0${side === 'left' ? 1 : 2}`;
  }

  async #plug(side: Side): Promise<void> {
    const end = endOf(this.#options, side);
    if (end === null) return;
    const vm = this.#pair[side];
    const name = await vm.addNic(this.#options.name, nicOf(this.#options, side, end));
    this.names[side] = name;
    this.#cards.push(side);
    await vm.run(`/sbin/ip address add ${this.address6(side)}/64 dev ${name} nodad`);
    if (end.peer === undefined) await this.lab.up(side);
  }
}

/** Cables the guests for the tests of a describe(). */
export function cabled(pair: Pair, options: CablingOptions): { readonly cabling: Cabling } {
  let made: Cabling | null = null;
  before(
    async () => {
      made = await Cabling.make(pair, options);
    },
    { timeout: 60_000 },
  );
  after(() => made?.end());
  return {
    get cabling(): Cabling {
      if (made === null) throw new Error(`${options.name}: not cabled`);
      return made;
    },
  };
}

function endOf(options: CablingOptions, side: Side): EndOptions | null {
  const end = options[side];
  return end === undefined ? {} : end;
}

function addressOf({ net }: CablingOptions, side: Side): string {
  return `10.${net}.0.${side === 'left' ? 1 : 2}`;
}

function startLab(options: CablingOptions): Promise<LabProcess> {
  const ports: Record<string, object> = { ...options.ports };
  for (const side of SIDES) {
    const end = endOf(options, side);
    if (end === null) continue;
    const vhost = {
      socket: socketName(options, side),
      ...(end.server === true ? { mode: 'connect' } : {}),
      ...(end.queuePairs === undefined ? {} : { queues: end.queuePairs }),
      ...end.device,
    };
    ports[side] = { ...(end.peer === undefined ? { vhost } : {}), ...end.port };
  }
  return LabProcess.start(options.path(`${options.name}.yaml`), ports);
}

function socketName({ name }: CablingOptions, side: Side): string {
  return `${name}-${side}.sock`;
}

function nicOf(options: CablingOptions, side: Side, end: EndOptions): Nic {
  const path = options.path(socketName(options, side));
  const { server = false, queuePairs, properties } = end;
  const vhost: NicPeer = { kind: 'vhost-user', path, ...(server ? { server } : { reconnectSeconds: 1 }) };
  return {
    peer: end.peer ?? vhost,
    mac: Cabling.mac(options.net, side),
    address: `${addressOf(options, side)}/24`,
    ...(queuePairs === undefined ? {} : { queuePairs }),
    ...(properties === undefined ? {} : { properties }),
  };
}
