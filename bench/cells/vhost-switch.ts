/**
 * From one driver side to another, through two devices and a switch: the switch in a process of its own, the two drivers in
 * another, which polls them both.
 *
 *   stream    `count` frames of 64 bytes, at most WINDOW of them under way, so that the switch has no reason to drop any
 *   pings     `count` times one frame, and the next when it has arrived: microseconds from giving it to finding it
 *   rests     the same with a pause before each, in which the device goes to sleep: its kick has to wake it
 */
import { Switch, systemClock } from 'zerotx/switch';
import type { FrameSet } from 'zerotx/vhost';
import { VhostUserDevice, type VhostUserFrontend } from 'zerotx/vhost';
import { type CellSide, type Counters, numberOption, type Options, textOption } from './cell.ts';
import { connect, MACS, writeFrame } from './vhost-kit.ts';

const WINDOW = 512;
/** Longer than a device looks again after it found nothing. */
const REST_MS = 0.5;
/** A busy machine may keep a process waiting for seconds. */
const LOST_MS = 20_000;

function lan(): CellSide {
  let devices: VhostUserDevice[];
  let joined: Switch;
  return {
    async open(options: Options): Promise<Options> {
      const path = textOption(options, 'path');
      joined = new Switch({ clock: systemClock });
      devices = ['a', 'b'].map((name) => new VhostUserDevice({ name, path: `${path}-${name}` }));
      for (const device of devices) {
        joined.add(device);
        await device.open();
      }
      return {};
    },
    async run(): Promise<Counters> {
      return {};
    },
    async close() {
      joined.close();
      for (const device of devices) await device.close();
    },
  };
}

class Drivers {
  readonly #from: VhostUserFrontend;
  readonly #to: VhostUserFrontend;
  readonly #set: FrameSet;
  readonly #hello: FrameSet;

  constructor(from: VhostUserFrontend, to: VhostUserFrontend, frameBytes: number) {
    this.#from = from;
    this.#to = to;
    this.#set = from.prepare({ frameBytes, count: 1024, fill: (frame) => writeFrame(frame) });
    this.#hello = to.prepare({
      ...{ frameBytes, count: 1 },
      fill(frame) {
        writeFrame(frame, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        frame.set(MACS.receiver, MACS.sender.length);
      },
    });
  }

  /** Tells the switch where the receiver is. */
  async hello(): Promise<void> {
    const before = this.#from.rx.counters.frames;
    this.#to.tx.sendBatch(this.#hello, 1);
    await this.#until(() => this.#from.rx.counters.frames > before);
  }

  async stream(count: number): Promise<Counters> {
    const from = this.#from;
    const { counters } = this.#to.rx;
    const begin = counters.frames;
    let sent = 0;
    await this.#until(() => {
      const came = counters.frames - begin;
      const room = Math.min(count - sent, WINDOW - (sent - came));
      if (room > 0) sent += from.tx.sendBatch(this.#set, room);
      return came === count;
    });
    return {};
  }

  async pings(count: number, restMs: number): Promise<Counters> {
    const { counters } = this.#to.rx;
    const us = new Float64Array(count);
    for (let i = 0; i < count; i++) {
      const restUntilMs = performance.now() + restMs;
      while (performance.now() < restUntilMs) this.#poll();
      const wanted = counters.frames + 1;
      const startMs = performance.now();
      this.#from.tx.sendBatch(this.#set, 1);
      while (counters.frames < wanted) {
        this.#poll();
        if (performance.now() - startMs > LOST_MS) throw new Error('a frame got lost');
      }
      us[i] = (performance.now() - startMs) * 1000;
    }
    us.sort();
    const at = (share: number): number => us[Math.min(count - 1, Math.floor(count * share))]!;
    return { p50: at(0.5), p99: at(0.99) };
  }

  #poll(): void {
    this.#from.poll();
    this.#to.poll();
  }

  /** Polls until `isDone`; between rounds the event loop has its turn, which the connections need, too. */
  async #until(isDone: () => boolean): Promise<void> {
    let untilMs = performance.now() + LOST_MS;
    let seen = -1;
    for (;;) {
      for (let round = 0; round < 256; round++) {
        this.#poll();
        if (isDone()) return;
      }
      const { frames } = this.#to.rx.counters;
      if (frames !== seen) untilMs = performance.now() + LOST_MS;
      else if (performance.now() > untilMs) throw new Error(`frames got lost: ${frames} came`);
      seen = frames;
      await new Promise<void>((resolve) => setImmediate(resolve));
    }
  }
}

function drivers(): CellSide {
  const nics: VhostUserFrontend[] = [];
  let both: Drivers;
  return {
    async open(options: Options): Promise<Options> {
      const path = textOption(options, 'path');
      for (const name of ['a', 'b']) {
        nics.push(await connect({ ...options, path: `${path}-${name}`, polled: true, memoryBytes: 1 << 20 }));
      }
      both = new Drivers(nics[0]!, nics[1]!, numberOption(options, 'frameBytes'));
      await both.hello();
      return {};
    },
    run: ({ count, variant }) =>
      variant === 'stream' ? both.stream(count) : both.pings(count, variant === 'rests' ? REST_MS : 0),
    async close() {
      for (const nic of nics) await nic.close();
    },
  };
}

export const sides: Record<string, () => CellSide> = { switch: lan, drivers };
