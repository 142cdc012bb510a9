/**
 * Two destinations behind one ring, of which one keeps what it is lent: the device's side, and the driver's.
 *
 * Frames to the slow address are lent to a borrower that lets go after `holdMs`, those to the other to one that lets go when
 * the batch is over. What is not lent is copied. The ring has 256 entries, and the driver keeps it full.
 *
 *   without    there is no slow destination
 *   prompt     one frame in 16 goes to it, and it lets go like the other
 *   slow       one frame in 16 goes to it, and it keeps each for `holdMs`
 *
 * A slice lasts `count` milliseconds from the first frame on; the device counts the frames to the other destination in that time.
 * Each slice has new borrowers, so that the device knows of nobody that he is slow. It is over when all is back.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type { FrameTable } from 'zerotx/switch';
import { FRAME_WORDS, HEAD_AT } from 'zerotx/switch';
import { type FrameSet, VhostUserDevice, type VhostUserFrontend } from 'zerotx/vhost';
import { type CellSide, type Counters, numberOption, type Options, textOption } from './cell.ts';
import { connect, MACS, setBytes, writeFrame } from './vhost-kit.ts';

const SLOW_ONE_IN = 16;
const MAC_LAST_AT = 5;
const SETTLING_MS = 5;

/** What FrameOwner.lend() gives. */
type Loan = NonNullable<ReturnType<FrameTable['owner']['lend']>>;

class Destinations {
  readonly device: VhostUserDevice;
  readonly #holdMs: number;
  readonly #copy = new Uint8Array(1 << 16);
  #slow: object = {};
  #other: object = {};
  #isSlow = false;
  #sliceMs = 0;
  /** When the slice ends; 0: it has not begun. */
  #endMs = 0;
  #begun: () => void = () => {};
  others = 0;
  slows = 0;
  lentOthers = 0;
  lentSlows = 0;

  constructor(options: Options) {
    this.device = new VhostUserDevice({ path: textOption(options, 'path') });
    this.device.receiver = (table) => this.#take(table);
    this.#holdMs = numberOption(options, 'holdMs');
  }

  async slice(ms: number, isSlow: boolean): Promise<Counters> {
    const { details } = this.device.stats();
    this.#slow = {};
    this.#other = {};
    this.#isSlow = isSlow;
    this.#sliceMs = ms;
    this.#endMs = 0;
    this.others = 0;
    this.slows = 0;
    this.lentOthers = 0;
    this.lentSlows = 0;
    await new Promise<void>((resolve) => {
      this.#begun = resolve;
    });
    await delay(ms);
    while (performance.now() < this.#endMs || this.device.stats().lentNow > 0) await delay(SETTLING_MS);
    const { ledger } = this.device.stats().details;
    return {
      ...{ others: this.others, slows: this.slows, lentOthers: this.lentOthers, lentSlows: this.lentSlows },
      overtaken: ledger.overtaken - details.ledger.overtaken,
      overdue: ledger.overdue - details.ledger.overdue,
    };
  }

  #take(table: FrameTable): number {
    const { records, bytes, owner, count } = table;
    const nowMs = performance.now();
    if (this.#endMs === 0) {
      this.#endMs = nowMs + this.#sliceMs;
      this.#begun();
    }
    const counts = nowMs < this.#endMs;
    for (let frame = 0; frame < count; frame++) {
      const at = records[frame * FRAME_WORDS + HEAD_AT]!;
      const isSlow = bytes[at + MAC_LAST_AT] === MACS.slow[MAC_LAST_AT];
      const loan = owner.lend(frame, isSlow ? this.#slow : this.#other);
      if (loan === null) owner.gather(frame, this.#copy);
      else if (isSlow && this.#isSlow) this.#keep(loan);
      // It is given back behind the batch (Ubuf).
      else loan.unref();
      if (!counts) continue;
      if (isSlow) this.slows += 1;
      else this.others += 1;
      if (loan === null) continue;
      if (isSlow) this.lentSlows += 1;
      else this.lentOthers += 1;
    }
    return count;
  }

  #keep(loan: Loan): void {
    setTimeout(() => loan.unref(), this.#holdMs);
  }
}

function device(): CellSide {
  let destinations: Destinations;
  return {
    async open(options: Options): Promise<Options> {
      destinations = new Destinations(options);
      await destinations.device.open();
      return {};
    },
    run: ({ count, variant }) => destinations.slice(count, variant === 'slow'),
    close: () => destinations.device.close(),
  };
}

class Mixer {
  readonly #nic: VhostUserFrontend;
  readonly #pure: FrameSet;
  readonly #mixed: FrameSet;
  #set: FrameSet;
  #endMs = 0;
  #done: () => void = () => {};

  constructor(nic: VhostUserFrontend, frameBytes: number, workingSetBytes: number) {
    this.#nic = nic;
    const prepare = (slowOneIn: number): FrameSet =>
      nic.prepare({
        ...{ frameBytes, workingSetBytes },
        fill: (frame, i) => writeFrame(frame, i % slowOneIn === 0 ? MACS.slow : MACS.receiver),
      });
    this.#pure = prepare(Number.POSITIVE_INFINITY);
    this.#mixed = prepare(SLOW_ONE_IN);
    this.#set = this.#pure;
    nic.tx.onCompleted = () => this.#more();
  }

  async slice(ms: number, isMixed: boolean): Promise<Counters> {
    this.#set = isMixed ? this.#mixed : this.#pure;
    this.#set.next = 0;
    this.#endMs = performance.now() + ms;
    const before = this.#nic.tx.ring.counters.outOfOrder;
    await new Promise<void>((resolve) => {
      this.#done = resolve;
      this.#more();
    });
    return { outOfOrder: this.#nic.tx.ring.counters.outOfOrder - before };
  }

  #more(): void {
    const { tx } = this.#nic;
    if (performance.now() < this.#endMs) tx.sendBatch(this.#set, tx.room);
    else if (tx.outstanding === 0) this.#done();
  }
}

function driver(): CellSide {
  let nic: VhostUserFrontend;
  let mixer: Mixer;
  return {
    async open(options: Options): Promise<Options> {
      const workingSetBytes = numberOption(options, 'workingSetBytes');
      nic = await connect({ ...options, memoryBytes: 2 * setBytes(workingSetBytes) });
      mixer = new Mixer(nic, numberOption(options, 'frameBytes'), workingSetBytes);
      return {};
    },
    run: ({ count, variant }) => mixer.slice(count, variant !== 'without'),
    close: () => nic.close(),
  };
}

export const sides: Record<string, () => CellSide> = { device, driver };
