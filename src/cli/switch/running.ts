/**
 * A switch as a lab file describes it.
 *
 *   guest, tap, ... ── capture ── faults ── Switch
 *
 * The capture is at the port's end of a bad line: it has what a guest sent before anything was lost, and what it gets.
 */
import {
  createDgram,
  createMacvtap,
  createPcap,
  createStream,
  createTap,
  createVxlan,
  type Port,
} from '../../ports/index.ts';
import {
  FaultPort,
  Switch,
  type SwitchPortCounters,
  systemClock,
  withCapture,
  withFaults,
} from '../../switch/index.ts';
import { VhostUserDevice } from '../../vhost/index.ts';
import { CaptureFile } from '../lab/capture-file.ts';
import type { Losses, PortRow } from '../lab/counters.ts';
import type { Tell } from '../lab/events.ts';
import type { Running } from '../lab/life.ts';
import { openPort, PortWatch } from '../lab/watch.ts';
import type { Kind, Lab, LabPort, PortSpec } from './lab.ts';

interface Member {
  readonly kind: Kind;
  /** The port itself, and as the switch has it. */
  readonly inner: Port;
  readonly outer: Port;
  readonly capture: CaptureFile | null;
}

export class LabSwitch implements Running {
  readonly #switch: Switch;
  readonly #members: readonly Member[];
  readonly #watch: PortWatch;

  constructor(lab: Lab, tell: Tell) {
    this.#switch = new Switch({ ...lab.options, clock: systemClock });
    this.#watch = new PortWatch(tell);
    this.#members = lab.ports.map((port) => this.#join(port));
  }

  async prepare(): Promise<void> {
    for (const { kind, inner } of this.#members) if (isPrivileged(kind)) await openPort(inner);
  }

  async open(): Promise<void> {
    for (const { kind, inner, capture } of this.#members) {
      capture?.open();
      if (!isPrivileged(kind)) await openPort(inner);
      this.#watch.opened(inner);
    }
  }

  async rows(): Promise<readonly PortRow[]> {
    const { ports } = this.#switch.stats();
    return this.#members.map((member) => rowOf(member, ports[member.outer.name]));
  }

  check(): void {
    this.#watch.check();
  }

  /** The other ports of a lab go on. */
  survives(): boolean {
    return true;
  }

  async close(): Promise<void> {
    this.#watch.end();
    for (const { outer } of this.#members) await outer.close();
    this.#switch.close();
    for (const { capture } of this.#members) await capture?.close();
  }

  #join({ name, port, join, faults, capture }: LabPort): Member {
    const inner = create(port);
    const file = capture === null ? null : new CaptureFile(capture.file);
    let outer = inner;
    if (file !== null && capture !== null) {
      const snap = capture.snapBytes === undefined ? {} : { snapBytes: capture.snapBytes };
      outer = withCapture(outer, { clock: systemClock, write: file.write, ...snap });
      this.#watch.file(name, file);
    }
    if (faults !== null) outer = withFaults(outer, { clock: systemClock, ...faults });
    this.#switch.add(outer, join);
    if (inner instanceof VhostUserDevice) this.#watch.device(inner);
    else this.#watch.port(inner, isPrivileged(port.kind));
    return { kind: port.kind, inner, outer, capture: file };
  }
}

/** Kinds that need root, as a rule; and whose ports, once down, do not come up again. */
function isPrivileged(kind: Kind): boolean {
  return kind === 'tap' || kind === 'macvtap';
}

function create({ kind, options }: PortSpec): Port {
  switch (kind) {
    case 'vhost':
      return new VhostUserDevice(options);
    case 'tap':
      return createTap(options);
    case 'macvtap':
      return createMacvtap(options);
    case 'stream':
      return createStream(options);
    case 'dgram':
      return createDgram(options);
    case 'vxlan':
      return createVxlan(options);
    case 'pcap':
      return createPcap(options);
  }
}

function rowOf({ kind, inner, outer, capture }: Member, counters: SwitchPortCounters | undefined): PortRow {
  const faults = outer instanceof FaultPort ? outer.faults : null;
  const rxFaults = faults?.rx ?? null;
  const txFaults = faults?.tx ?? null;
  return {
    port: inner.name,
    kind,
    up: inner.isUp,
    counters: inner.counters,
    rxLost: { ...counters?.ingress.dropped, ...faultLosses(rxFaults) },
    txLost: {
      ...counters?.egress.dropped,
      reworked: counters?.egress.reworkedDropped ?? 0,
      ...faultLosses(txFaults),
    },
    more: {
      switch: counters ?? null,
      faults,
      captureOmittedBytes: capture?.omittedBytes ?? 0,
      ...(inner instanceof VhostUserDevice ? { device: inner.stats() } : {}),
    },
  };
}

function faultLosses(faults: NonNullable<FaultPort['faults']['rx']> | null): Losses {
  if (faults === null) return {};
  const { lost, overflowed, unreadable, discarded } = faults;
  return {
    'by the faults': lost,
    'by the queue of the faults': overflowed,
    'by the faults, unreadable': unreadable,
    'held when it closed': discarded,
  };
}
