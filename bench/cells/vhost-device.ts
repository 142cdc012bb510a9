/**
 * A device and its uplink, joined by a link, as `zerotx vhost` runs them. Options: `path` of the socket, `uplink` as on the
 * command line, `mtu`.
 *
 * Side `device` takes part in slices of a driver of ours: it is done when it has had `count` frames and none is lent any more,
 * and tells what became of them. Variant `idle`: `count` milliseconds go by. Side `bridge` only runs: whoever sends through it
 * knows when that is done.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { type Port, parsePort } from 'zerotx/ports';
import { Link, systemClock } from 'zerotx/switch';
import { VhostUserDevice } from 'zerotx/vhost';
import { type CellSide, type Counters, numberOption, type Options, textOption } from './cell.ts';
import { difference } from './zerocopy-counters.ts';

/** How often lent frames are looked for after the last one has come; they are back sooner, as a rule. */
const SETTLING_MS = 5;
/** Connecting to an uplink. */
const UP_MS = 10_000;

class Pair {
  readonly device: VhostUserDevice;
  readonly uplink: Port;
  readonly #link: Link;
  #frames = 0;
  #target = Number.POSITIVE_INFINITY;
  #reached: () => void = () => {};

  constructor(options: Options) {
    const mtu = numberOption(options, 'mtu');
    this.device = new VhostUserDevice({ path: textOption(options, 'path'), mtu });
    this.uplink = parsePort(textOption(options, 'uplink'));
    this.#link = new Link(this.device, this.uplink, { clock: systemClock });
    const forward = this.device.receiver;
    if (forward === null) throw new Error('a link without a receiver');
    this.device.receiver = (table, from) => {
      const taken = forward(table, from);
      this.#frames += taken;
      if (this.#frames >= this.#target) this.#reached();
      return taken;
    };
  }

  async open(): Promise<void> {
    await this.uplink.open();
    for (let waitedMs = 0; !this.uplink.isUp && waitedMs < UP_MS; waitedMs += SETTLING_MS)
      await delay(SETTLING_MS);
    if (!this.uplink.isUp) throw new Error(`${this.uplink.name} does not come up`);
    await this.device.open();
  }

  /** Resolves when `count` more frames have come, and none is lent. */
  async had(count: number): Promise<void> {
    this.#target = this.#frames + count;
    await new Promise<void>((resolve) => {
      this.#reached = resolve;
    });
    this.#target = Number.POSITIVE_INFINITY;
    while (this.device.stats().lentNow > 0) await delay(SETTLING_MS);
  }

  counters(): Counters {
    const { rxFrames, rxDropped, rxErrors, details } = this.device.stats();
    const { txFrames, txBytes, txDropped, txErrors, txLentBytes, txKernelCopiedBytes } = this.uplink.counters;
    const { overdue, refusedLimit, refusedCopies, refusedOverdue } = details.ledger;
    return {
      ...{ rxFrames, lost: rxDropped + rxErrors + txDropped + txErrors, txFrames, txBytes },
      ...{ txLentBytes, txKernelCopiedBytes, signals: details.signals, kicks: details.kicks },
      ...{ overdue, refusedLimit, refusedCopies, refusedOverdue },
    };
  }

  async close(): Promise<void> {
    await this.device.close();
    await this.uplink.close();
    this.#link.close();
  }
}

function device(): CellSide {
  let pair: Pair;
  return {
    async open(options: Options): Promise<Options> {
      pair = new Pair(options);
      await pair.open();
      return {};
    },
    async run({ count, variant }) {
      const before = pair.counters();
      if (variant === 'idle') await delay(count);
      else await pair.had(count);
      return difference(pair.counters(), before);
    },
    close: () => pair.close(),
  };
}

function bridge(): CellSide {
  let pair: Pair;
  return {
    async open(options: Options): Promise<Options> {
      pair = new Pair(options);
      await pair.open();
      return {};
    },
    async run() {
      return {};
    },
    close: () => pair.close(),
  };
}

export const sides: Record<string, () => CellSide> = { device, bridge };
