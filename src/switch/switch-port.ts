/** A port as its switch knows it: options, counters, and the frames of the batch in hand that leave by it. */
import { checkOptionalInteger } from '../core/arguments.ts';
import type { Clock } from '../core/clock.ts';
import type { FrameTable } from '../core/frames.ts';
import type { Port } from '../core/port.ts';
import { Egress, type EgressCounters } from './egress.ts';
import { MacFilter } from './spoof.ts';
import { StormControl, type StormLimits } from './storm.ts';
import { type VlanOptions, VlanPort } from './vlan.ts';

export interface SwitchPortOptions {
  /** Without it the port is not VLAN-aware, and meets only ports that are not. */
  readonly vlan?: VlanOptions;
  /** Source addresses that may come in here, and nowhere else. Any, unless told. */
  readonly macs?: readonly string[];
  /** Instead of the switch's. */
  readonly storm?: StormLimits;
  /** Addresses that are remembered for this port; instead of the switch's. */
  readonly macLimit?: number;
}

/** Frames that came in by a port. Each is forwarded, flooded or dropped. */
export interface IngressCounters {
  frames: number;
  bytes: number;
  /** To the one port that the address is known for. */
  forwarded: number;
  /** To every other port of the VLAN. */
  flooded: number;
  dropped: {
    /** Shorter than an Ethernet header, or unreadable. */
    malformed: number;
    /** The vnet header contradicts the frame. */
    badOffload: number;
    /** The source is a group, or zero. */
    badSource: number;
    /** The source is not one of the port's `macs`, or is another port's. */
    spoofed: number;
    /** A tag that the port does not take, or none where one is needed. */
    vlan: number;
    /** To 01:80:c2:00:00:0x, which bridges do not forward (IEEE 802.1Q, section 8.6.3). */
    linkLocal: number;
    /** Over the limits on flooding. */
    storm: number;
    /** The destination is behind the port it came from. */
    hairpin: number;
    /** No other port of the VLAN is up. */
    alone: number;
  };
}

export interface SwitchPortCounters {
  readonly ingress: IngressCounters;
  readonly egress: EgressCounters;
  /** Source addresses there was no room for, and that came from another port before. */
  readonly learning: { full: number; moved: number };
}

export const MAC_LIMIT_MAX = 1_048_576;

export class SwitchPort {
  readonly port: Port;
  /** In the switch; what the database has. */
  readonly index: number;
  readonly egress: Egress;
  readonly vlan: VlanPort | null;
  readonly macs: MacFilter | null;
  readonly storm: StormControl;
  readonly macLimit: number | undefined;
  readonly counters: SwitchPortCounters;
  isUp: boolean;
  isRemoved = false;
  /** Frames of the batch in hand that leave here. */
  which: Uint32Array = new Uint32Array(64);
  count = 0;
  #saved = new Uint32Array(0);

  constructor(port: Port, index: number, options: SwitchPortOptions, clock: Clock) {
    checkOptionalInteger('macLimit', options.macLimit, 1, MAC_LIMIT_MAX);
    this.port = port;
    this.index = index;
    this.vlan = options.vlan === undefined ? null : new VlanPort(options.vlan);
    this.macs = options.macs === undefined ? null : new MacFilter(options.macs);
    this.storm = new StormControl(options.storm ?? {}, clock.now());
    this.macLimit = options.macLimit;
    this.egress = new Egress(port);
    this.isUp = port.isUp;
    this.counters = {
      ingress: ingressCounters(),
      egress: this.egress.counters,
      learning: { full: 0, moved: 0 },
    };
  }

  /** Whether frames of this VLAN leave here. */
  isMember(vlan: number): boolean {
    return this.vlan === null ? vlan === 0 : this.vlan.has(vlan);
  }

  /** Room for a batch of `frames`. */
  reserve(frames: number): void {
    if (this.which.length < frames) this.which = new Uint32Array(frames);
  }

  /** Sends what was gathered in `which`, and drops what the port does not take. */
  deliver(table: FrameTable): void {
    const given = this.count;
    this.count = 0;
    const { egress, vlan, which } = this;
    const { dropped } = egress.counters;
    if (vlan !== null && this.#saved.length < given) this.#saved = new Uint32Array(which.length);
    const kept = vlan === null ? given : vlan.leave(table, which, given, this.#saved);
    dropped.vlan += given - kept;
    const stop = egress.send(table, which, 0, kept);
    vlan?.restore(table, which, kept, this.#saved);
    dropped.full += kept - stop;
    egress.discard();
  }
}

function ingressCounters(): IngressCounters {
  return {
    frames: 0,
    bytes: 0,
    forwarded: 0,
    flooded: 0,
    dropped: {
      malformed: 0,
      badOffload: 0,
      badSource: 0,
      spoofed: 0,
      vlan: 0,
      linkLocal: 0,
      storm: 0,
      hairpin: 0,
      alone: 0,
    },
  };
}
