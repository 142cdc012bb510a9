/**
 * A device and its uplink, joined by a link; and several of them, as they run in one thread.
 *
 *   front-end ══ VhostUserDevice ── capture ── Link ── uplink
 */
import { type Port, parsePort } from '../../ports/index.ts';
import { Link, type LinkCounters, systemClock, withCapture } from '../../switch/index.ts';
import { VhostUserDevice } from '../../vhost/index.ts';
import { CaptureFile } from '../lab/capture-file.ts';
import type { Losses, PortRow } from '../lab/counters.ts';
import type { Tell } from '../lab/events.ts';
import type { Running } from '../lab/life.ts';
import { openPort, PortWatch } from '../lab/watch.ts';
import type { PairSettings } from './settings.ts';

/** Kinds that need root, as a rule. */
const PRIVILEGED = /^(?:macv)?tap:/;

class Pair {
  readonly #settings: PairSettings;
  readonly #device: VhostUserDevice;
  readonly #uplink: Port;
  readonly #capture: CaptureFile | null;
  readonly #link: Link;
  readonly #watch: PortWatch;

  constructor(settings: PairSettings, tell: Tell) {
    const { name, socket, role, frontend, queues, mtu, mac, zerocopy, completion, holdMs, pcap } = settings;
    this.#settings = settings;
    this.#device = new VhostUserDevice({
      ...{ name, path: socket, role, frontend, queues, mtu, mac, zerocopy, completion },
      ...(holdMs === undefined ? {} : { holdMs }),
    });
    this.#uplink = parsePort(settings.uplink);
    this.#capture = pcap === undefined ? null : new CaptureFile(pcap);
    const side =
      this.#capture === null
        ? this.#device
        : withCapture(this.#device, { clock: systemClock, write: this.#capture.write });
    this.#link = new Link(side, this.#uplink, { clock: systemClock });
    this.#watch = new PortWatch(tell);
    this.#watch.device(this.#device);
    this.#watch.port(this.#uplink, PRIVILEGED.test(settings.uplink));
    if (this.#capture !== null) this.#watch.file(name, this.#capture);
  }

  async prepare(): Promise<void> {
    if (PRIVILEGED.test(this.#settings.uplink)) await openPort(this.#uplink);
  }

  async open(): Promise<void> {
    this.#capture?.open();
    if (!PRIVILEGED.test(this.#settings.uplink)) await openPort(this.#uplink);
    this.#watch.opened(this.#uplink);
    await openPort(this.#device);
  }

  rows(): PortRow[] {
    const [out, back] = this.#link.counters;
    const { state, lentNow, details } = this.#device.stats();
    const { uplink } = this.#settings;
    return [
      {
        port: this.#device.name,
        kind: 'vhost',
        up: this.#device.isUp,
        counters: this.#device.counters,
        rxLost: inLosses(out),
        txLost: outLosses(back),
        more: { state, lentNow, device: details, captureOmittedBytes: this.#capture?.omittedBytes ?? 0 },
      },
      {
        port: this.#uplink.name,
        kind: uplink.slice(0, uplink.indexOf(':')),
        up: this.#uplink.isUp,
        counters: this.#uplink.counters,
        rxLost: inLosses(back),
        txLost: outLosses(out),
      },
    ];
  }

  check(): void {
    this.#watch.check();
  }

  async close(): Promise<void> {
    this.#watch.end();
    await this.#device.close();
    await this.#uplink.close();
    this.#link.close();
    await this.#capture?.close();
  }
}

function inLosses({ dropped }: LinkCounters): Losses {
  return { ...dropped };
}

function outLosses({ egress }: LinkCounters): Losses {
  return { ...egress.dropped, reworked: egress.reworkedDropped };
}

export class LocalPairs implements Running {
  readonly #pairs: readonly Pair[];

  constructor(settings: readonly PairSettings[], tell: Tell) {
    this.#pairs = settings.map((one) => new Pair(one, tell));
  }

  async prepare(): Promise<void> {
    for (const pair of this.#pairs) await pair.prepare();
  }

  async open(): Promise<void> {
    for (const pair of this.#pairs) await pair.open();
  }

  async rows(): Promise<readonly PortRow[]> {
    return this.#pairs.flatMap((pair) => pair.rows());
  }

  check(): void {
    for (const pair of this.#pairs) pair.check();
  }

  survives(lost: number): boolean {
    return lost < this.#pairs.length;
  }

  async close(): Promise<void> {
    for (const pair of this.#pairs) await pair.close();
  }
}
