/**
 * A learning switch (IEEE 802.1D, 802.1Q) between ports of any kind.
 *
 * A batch of frames is gone through once. Each frame is admitted, loses its tag, teaches where its source is, and is put on the lists of
 * the ports it leaves by: an index, never a copy, for one port or for all. Then each port gets its list in one send(), so that a
 * port makes one system call of it, and frames that leave by one port keep their order.
 *
 *   receiver(table) ─▶ admit ─▶ VLAN ─▶ source: macs, learn ─▶ destination ─┬▶ port's list ─▶ Egress.send()
 *                                                                           └▶ storm limit ─▶ every list of the VLAN
 *
 * A switch has no back-pressure, since one slow port must not hold up the others: what a port does not take is dropped and
 * counted. What comes in while a batch is in hand, from within a port's send(), is the exception: it is not taken, and the port is
 * told to go on when the batch is done.
 *
 * It neither opens nor closes ports. Spanning tree, link aggregation and multicast snooping are not supported: loops are the
 * operator's to avoid, and the storm limits are what bounds one.
 */
import { checkInteger, checkObject, checkOptionalInteger, wrongRange } from '../core/arguments.ts';
import type { Clock } from '../core/clock.ts';
import { ZerotxError } from '../core/errors.ts';
import { FRAME_BYTES, FRAME_VLAN, FRAME_WORDS, type FrameTable, HEAD_AT } from '../core/frames.ts';
import type { Port } from '../core/port.ts';
import { readU16, readU32 } from '../wire/bytes.ts';
import { Fdb, LEARN_FULL, LEARN_MOVED, LEARN_REFUSED } from './fdb.ts';
import { ADMITTED, admit, MALFORMED } from './ingress.ts';
import { macText } from './spoof.ts';
import { checkStorm, type StormLimits, type TokenBucket } from './storm.ts';
import { MAC_LIMIT_MAX, SwitchPort, type SwitchPortCounters, type SwitchPortOptions } from './switch-port.ts';
import { VLAN_MALFORMED } from './vlan.ts';

export interface SwitchOptions {
  readonly clock: Clock;
  /** An address that was not seen for so long is forgotten (IEEE 802.1Q, table 8-6: 300 s). */
  readonly macAgeMs?: number;
  /** Addresses that are remembered in all: 4096. */
  readonly macLimit?: number;
  /** And per port: a quarter of these, so that a guest that makes up addresses leaves room for others. */
  readonly portMacLimit?: number;
  /** Limits of ports that name none: no limits. */
  readonly storm?: StormLimits;
  /** Of the database's hash, for tests: random. */
  readonly hashSeed?: number;
}

export interface FdbListing {
  readonly mac: string;
  /** 0: of ports that are not VLAN-aware. */
  readonly vlan: number;
  /** Its name. */
  readonly port: string;
  /** Since it was seen; null: it was configured. */
  readonly ageMs: number | null;
}

export interface SwitchStats {
  /** By name. */
  readonly ports: Readonly<Record<string, SwitchPortCounters>>;
  /** Addresses that are remembered, that came from another port than before, and that were forgotten for their age. */
  readonly fdb: {
    readonly entries: number;
    readonly moves: number;
    readonly aged: number;
  };
}

/**
 * The frame before, in the same batch: neighbours often are of one conversation, and what was found for one is then right for the
 * next, as nothing was learned in between. `to` is null when it was not forwarded to one port.
 */
interface Conversation {
  to: SwitchPort | null;
  vlan: number;
  toUpper: number;
  toLower: number;
  fromUpper: number;
  fromLower: number;
}

/** As many as the database's port numbers are meant for. */
const PORTS_MAX = 1024;

/** Of an address's upper 16 bits: it means several stations. */
const GROUP = 0x0100;
/** 01:80:c2:00:00:00 to 0f. */
const LINK_LOCAL_UPPER = 0x0180;
const LINK_LOCAL_LOWER = 0xc200_0000 | 0;

export class Switch {
  readonly #clock: Clock;
  readonly #fdb: Fdb;
  readonly #portMacLimit: number;
  readonly #storm: StormLimits;
  /** By index; null: free. */
  readonly #ports: (SwitchPort | null)[] = [];
  /** Ports that the batch in hand leaves by. */
  readonly #leaving: SwitchPort[] = [];
  readonly #last: Conversation = {
    to: null,
    vlan: 0,
    toUpper: 0,
    toLower: 0,
    fromUpper: 0,
    fromLower: 0,
  };
  #isBusy = false;
  /** Ports whose frames came at a bad moment. */
  readonly #waiting = new Set<SwitchPort>();
  #cancelWake: (() => void) | null = null;

  constructor(options: SwitchOptions) {
    checkObject('options', options);
    const { clock, macAgeMs = 300_000, macLimit = 4096, storm = {} } = options;
    checkObject('clock', clock);
    checkInteger('macAgeMs', macAgeMs, 1, Number.MAX_SAFE_INTEGER);
    checkInteger('macLimit', macLimit, 1, MAC_LIMIT_MAX);
    const { portMacLimit = Math.ceil(macLimit / 4) } = options;
    checkInteger('portMacLimit', portMacLimit, 1, MAC_LIMIT_MAX);
    checkStorm(storm);
    checkOptionalInteger('hashSeed', options.hashSeed, -0x8000_0000, 0xffff_ffff);
    this.#clock = clock;
    this.#portMacLimit = portMacLimit;
    this.#storm = storm;
    const seed = options.hashSeed === undefined ? {} : { seed: options.hashSeed };
    this.#fdb = new Fdb({ limit: macLimit, ageMs: macAgeMs, ports: PORTS_MAX, ...seed });
  }

  /**
   * Joins a port, which nobody else may have. Throws `ZTX_PORT_TAKEN`; `ZTX_MAC_TAKEN` when one of its `macs` is another port's; and
   * ERR_INVALID_ARG_TYPE or ERR_OUT_OF_RANGE for options that make no sense.
   */
  add(port: Port, options: SwitchPortOptions = {}): void {
    if (port.receiver !== null || this.#find(port.name) !== undefined) {
      throw new ZerotxError('ZTX_PORT_TAKEN', `port ${port.name}: it is joined already, or its name is`);
    }
    const free = this.#ports.indexOf(null);
    const index = free < 0 ? this.#ports.length : free;
    if (index === PORTS_MAX) throw wrongRange('ports', `at most ${PORTS_MAX}`, index + 1);
    const joined = new SwitchPort(port, index, { storm: this.#storm, ...options }, this.#clock);
    this.#fdb.setPortLimit(index, joined.macLimit ?? this.#portMacLimit);
    this.#pinMacs(joined);
    this.#ports[index] = joined;
    port.receiver = (table) => this.#receive(joined, table);
    port.onWritable = null;
    port.onChange = () => this.#refresh(joined);
  }

  /** Lets a port go, and forgets what was behind it. Its counters go with it. */
  remove(port: Port): void {
    const joined = this.#find(port.name);
    if (joined === undefined || joined.port !== port) return;
    joined.isRemoved = true;
    joined.egress.discard();
    this.#ports[joined.index] = null;
    this.#fdb.flush(joined.index, true);
    this.#waiting.delete(joined);
    port.receiver = null;
    port.onChange = null;
  }

  /** Lets all ports go. */
  close(): void {
    for (const joined of this.#ports) if (joined !== null) this.remove(joined.port);
    this.#cancelWake?.();
    this.#cancelWake = null;
  }

  /** Counters as they are now: the same objects each time. */
  stats(): SwitchStats {
    const { size, moves, aged } = this.#fdb;
    const joined = this.#ports.filter((one) => one !== null);
    return {
      ports: Object.fromEntries(joined.map(({ port, counters }) => [port.name, counters])),
      fdb: { entries: size, moves, aged },
    };
  }

  /** What is known about addresses. */
  fdb(): FdbListing[] {
    const nowMs = this.#clock.now();
    this.#fdb.nowMs = nowMs;
    return Array.from(this.#fdb.entries(), ({ macUpper, macLower, vlan, port, seenMs }) => ({
      mac: macText(macUpper, macLower),
      vlan,
      port: this.#ports[port]?.port.name ?? '',
      ageMs: Number.isFinite(seenMs) ? nowMs - seenMs : null,
    }));
  }

  #find(name: string): SwitchPort | undefined {
    return this.#ports.find((joined) => joined?.port.name === name) ?? undefined;
  }

  /** Addresses that a port is held to are its own: they are known from the beginning, and refused elsewhere. */
  #pinMacs({ macs, vlan, index, port }: SwitchPort): void {
    if (macs === null) return;
    for (const one of vlan === null ? [0] : vlan.vlans()) {
      for (let i = 0; i < macs.lower.length; i++) {
        if (this.#fdb.pin(one, macs.upper[i]!, macs.lower[i]!, index)) continue;
        this.#fdb.flush(index, true);
        const mac = macText(macs.upper[i]!, macs.lower[i]!);
        throw new ZerotxError(
          'ZTX_MAC_TAKEN',
          `port ${port.name}: ${mac} is another port's, or macLimit is reached`,
        );
      }
    }
  }

  #refresh(joined: SwitchPort): void {
    joined.egress.refresh();
    const { isUp } = joined.port;
    if (joined.isUp && !isUp) this.#fdb.flush(joined.index, false);
    joined.isUp = isUp;
  }

  #receive(from: SwitchPort, table: FrameTable): number {
    if (this.#isBusy) {
      this.#waiting.add(from);
      return 0;
    }
    this.#isBusy = true;
    try {
      this.#sort(from, table);
      for (const to of this.#leaving) if (!to.isRemoved) to.deliver(table);
    } finally {
      for (const to of this.#leaving) to.count = 0;
      this.#leaving.length = 0;
      this.#isBusy = false;
    }
    if (this.#waiting.size > 0) this.#cancelWake ??= this.#clock.after(0, () => this.#wake());
    return table.count;
  }

  #wake(): void {
    this.#cancelWake = null;
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const { port, isRemoved } of waiting) if (!isRemoved) port.resume();
  }

  /** Puts the frames of a batch on the lists of the ports they leave by. */
  #sort(from: SwitchPort, table: FrameTable): void {
    const { records, count } = table;
    const { ingress } = from.counters;
    this.#fdb.nowMs = this.#clock.now();
    this.#last.to = null;
    for (const joined of this.#ports) joined?.reserve(count);
    let bytes = 0;
    for (let frame = 0; frame < count; frame++) {
      bytes += records[frame * FRAME_WORDS + FRAME_BYTES]!;
      this.#sortOne(from, table, frame);
    }
    ingress.frames += count;
    ingress.bytes += bytes;
  }

  #sortOne(from: SwitchPort, table: FrameTable, frame: number): void {
    const { dropped } = from.counters.ingress;
    const verdict = admit(table, frame);
    if (verdict !== ADMITTED) {
      dropped[verdict === MALFORMED ? 'malformed' : 'badOffload'] += 1;
      return;
    }
    const { bytes, records } = table;
    const vlan = from.vlan === null ? 0 : from.vlan.enter(table, frame);
    if (vlan === 0) records[frame * FRAME_WORDS + FRAME_VLAN] = 0;
    else if (vlan < 0) {
      dropped[vlan === VLAN_MALFORMED ? 'malformed' : 'vlan'] += 1;
      return;
    }
    // Behind the tag that has just gone.
    const at = records[frame * FRAME_WORDS + HEAD_AT]!;
    const last = this.#last;
    const toUpper = readU16(bytes, at);
    const toLower = readU32(bytes, at + 2) | 0;
    const fromUpper = readU16(bytes, at + 6);
    const fromLower = readU32(bytes, at + 8) | 0;
    if (
      last.to !== null &&
      last.toLower === toLower &&
      last.fromLower === fromLower &&
      last.toUpper === toUpper &&
      last.fromUpper === fromUpper &&
      last.vlan === vlan
    ) {
      from.counters.ingress.forwarded += 1;
      this.#leave(last.to, frame);
      return;
    }
    last.to = null;
    const fault = this.#learn(from, vlan, fromUpper, fromLower);
    if (fault !== null) {
      dropped[fault] += 1;
      return;
    }
    this.#route(from, vlan, toUpper, toLower, frame);
    last.vlan = vlan;
    last.toUpper = toUpper;
    last.toLower = toLower;
    last.fromUpper = fromUpper;
    last.fromLower = fromLower;
  }

  /** Where a frame came from is where frames to its source go. Why it is dropped, or null. */
  #learn(from: SwitchPort, vlan: number, upper: number, lower: number): 'badSource' | 'spoofed' | null {
    if ((upper & GROUP) !== 0 || (upper | lower) === 0) return 'badSource';
    if (from.macs !== null && !from.macs.allows(upper, lower)) return 'spoofed';
    const learned = this.#fdb.learn(vlan, upper, lower, from.index);
    if (learned === LEARN_REFUSED) return 'spoofed';
    if (learned === LEARN_MOVED) from.counters.learning.moved += 1;
    else if (learned === LEARN_FULL) from.counters.learning.full += 1;
    return null;
  }

  #route(from: SwitchPort, vlan: number, upper: number, lower: number, frame: number): void {
    const { ingress } = from.counters;
    const { storm } = from;
    if ((upper & GROUP) !== 0) {
      if (upper === LINK_LOCAL_UPPER && (lower & ~0x0f) === LINK_LOCAL_LOWER) ingress.dropped.linkLocal += 1;
      else
        this.#flood(from, vlan, frame, upper === 0xffff && lower === -1 ? storm.broadcast : storm.multicast);
      return;
    }
    const index = this.#fdb.find(vlan, upper, lower);
    if (index < 0) this.#flood(from, vlan, frame, storm.unknown);
    else if (index === from.index) ingress.dropped.hairpin += 1;
    else {
      ingress.forwarded += 1;
      this.#last.to = this.#ports[index]!;
      this.#leave(this.#last.to, frame);
    }
  }

  #flood(from: SwitchPort, vlan: number, frame: number, limit: TokenBucket | null): void {
    const { ingress } = from.counters;
    if (limit !== null && !limit.take(this.#fdb.nowMs)) {
      ingress.dropped.storm += 1;
      return;
    }
    let copies = 0;
    for (const to of this.#ports) {
      if (to === null || to === from || !to.isUp || !to.isMember(vlan)) continue;
      this.#leave(to, frame);
      copies += 1;
    }
    if (copies === 0) ingress.dropped.alone += 1;
    else ingress.flooded += 1;
  }

  #leave(to: SwitchPort, frame: number): void {
    if (to.count === 0) this.#leaving.push(to);
    to.which[to.count] = frame;
    to.count += 1;
  }
}
