/**
 * All queues of a front-end together: made once, set up for each back-end, polled by turns, and woken by what it signals.
 */
import { LatencyHistogram } from '../core/histogram.ts';
import { native } from '../sys/binding.ts';
import { EPOLLIN } from '../sys/constants.ts';
import { type Registration, reactor } from '../sys/reactor.ts';
import { has, VIRTIO_NET_F_MRG_RXBUF } from '../wire/virtio.ts';
import { ringFeatures } from './features.ts';
import { FrontendBuffers } from './frontend-buffers.ts';
import type { FrontendMemory } from './frontend-memory.ts';
import type { FrontendSettings } from './frontend-options.ts';
import type { Agreement, RingPlan } from './frontend-protocol.ts';
import { ReceiveQueue } from './frontend-receive.ts';
import { FrontendRing } from './frontend-ring.ts';
import { TransmitQueue } from './frontend-transmit.ts';
import { type Polled, poller } from './poller.ts';

export interface QueuesOptions {
  readonly settings: FrontendSettings;
  readonly memory: FrontendMemory;
  readonly now: () => number;
  /** The back-end wrote nonsense, or says that we did. */
  readonly onBroken: (reason: string) => void;
  /** Chains came back: there is room. */
  readonly onCompleted: () => void;
}

export class FrontendQueues implements Polled {
  readonly device: object = this;
  /** One of each for a queue pair. */
  readonly transmit: readonly TransmitQueue[];
  readonly receive: readonly ReceiveQueue[];
  readonly buffers: readonly FrontendBuffers[];
  readonly #options: QueuesOptions;
  readonly #rings: readonly FrontendRing[];
  readonly #watches: Registration[] = [];
  /** Rings of pairs in use: the first so many. */
  #used = 0;

  /** Throws EMFILE. */
  constructor(options: QueuesOptions) {
    const { settings, memory } = options;
    this.#options = options;
    const rings: FrontendRing[] = [];
    this.#rings = rings;
    try {
      for (let index = 0; index < 2 * settings.queuePairs; index++) {
        rings.push(new FrontendRing(memory, index, settings.queueSize, wanted(settings)));
      }
      for (const ring of rings) this.#watch(ring);
    } catch (error) {
      this.close();
      throw error;
    }
    const buffers = rings.map(({ index }) => {
      const at = (memory.layout.rings[index] as { buffers: number }).buffers;
      return new FrontendBuffers(memory, at, settings.buffers, settings.bufferBytes);
    });
    const pairs = Array.from({ length: settings.queuePairs }, (_, pair) => pair);
    this.receive = pairs.map((pair) => this.#makeReceive(2 * pair, buffers));
    this.transmit = pairs.map((pair) => this.#makeTransmit(2 * pair + 1, buffers));
    this.buffers = pairs.map((pair) => buffers[2 * pair + 1] as FrontendBuffers);
  }

  /** Rings in use. */
  get indexes(): number[] {
    return this.#rings.slice(0, this.#used).map(({ index }) => index);
  }

  /** Makes the rings ready for a back-end: new, or as they stand. */
  setUp({ features, queuePairs }: Agreement, isNew: boolean): RingPlan[] {
    const ring = ringFeatures(features);
    this.#used = 2 * queuePairs;
    for (let pair = 0; pair < queuePairs; pair++) {
      const receive = this.receive[pair] as ReceiveQueue;
      const transmit = this.transmit[pair] as TransmitQueue;
      if (isNew) {
        receive.begin(ring, has(features, VIRTIO_NET_F_MRG_RXBUF));
        transmit.begin(ring);
      } else {
        receive.resume(ring);
        transmit.resume(ring);
      }
    }
    const plans = this.#inUse().map((one) => one.plan());
    if (this.#options.settings.polled) this.#quiet();
    else this.rest();
    return plans;
  }

  /** The back-end runs the rings. */
  start(): void {
    for (let pair = 0; pair < this.#used / 2; pair++) {
      this.receive[pair]?.start();
      this.transmit[pair]?.start();
    }
    if (!this.#options.settings.polled) poller.wake(this);
  }

  /** The back-end is gone, or stopped the rings. */
  interrupt(): void {
    poller.remove(this);
    for (const queue of this.transmit) queue.interrupt();
    for (const queue of this.receive) queue.interrupt();
  }

  /** Takes what is there; frames that came, and frames that are done. */
  poll(): number {
    let completed = 0;
    let received = 0;
    for (let pair = 0; pair < this.#used / 2; pair++) {
      completed += this.transmit[pair]?.poll() ?? 0;
      received += this.receive[pair]?.poll() ?? 0;
    }
    if (completed > 0) this.#options.onCompleted();
    return completed + received;
  }

  turn(): boolean {
    return this.poll() > 0;
  }

  rest(): boolean {
    let more = false;
    for (const { queue } of this.#inUse()) more = queue.enableInterrupts() || more;
    return more;
  }

  /** Whoever waits hears `error`; the memory is not touched any more. */
  end(error: Error): void {
    for (const queue of this.transmit) queue.end(error);
    for (const queue of this.receive) queue.end();
    this.#used = 0;
    this.close();
  }

  close(): void {
    poller.remove(this);
    for (const watch of this.#watches) watch.remove();
    for (const ring of this.#rings) ring.close();
  }

  #inUse(): readonly FrontendRing[] {
    return this.#rings.slice(0, this.#used);
  }

  #quiet(): void {
    for (const { queue } of this.#inUse()) queue.disableInterrupts();
  }

  #watch(ring: FrontendRing): void {
    const { call, err } = ring.ends;
    if (call >= 0) {
      const woken = (): void => {
        ring.counters.signals += 1;
        ring.queue.disableInterrupts();
        poller.wake(this);
      };
      this.#watches.push(reactor().add(call, EPOLLIN, woken));
    }
    const broken = (): void => this.#options.onBroken(`the back-end says that ring ${ring.index} is broken`);
    this.#watches.push(reactor().add(err, EPOLLIN, broken));
  }

  #makeReceive(index: number, buffers: readonly FrontendBuffers[]): ReceiveQueue {
    const { memory, onBroken } = this.#options;
    return new ReceiveQueue({
      sys: native(),
      ring: this.#rings[index] as FrontendRing,
      buffers: buffers[index] as FrontendBuffers,
      memory: memory.u8,
      space: memory.space.id,
      onBroken: (reason) => onBroken(`receive ring ${index}: ${reason}`),
      onWork: () => poller.wake(this),
    });
  }

  #makeTransmit(index: number, buffers: readonly FrontendBuffers[]): TransmitQueue {
    const { memory, now, settings, onBroken } = this.#options;
    return new TransmitQueue({
      ring: this.#rings[index] as FrontendRing,
      buffers: buffers[index] as FrontendBuffers,
      memory: memory.u8,
      tableEntries: settings.tableEntries,
      latency: settings.latency ? new LatencyHistogram() : null,
      now,
      onBroken: (reason) => onBroken(`transmit ring ${index}: ${reason}`),
    });
  }
}

function wanted({ polled, devicePolls }: FrontendSettings): { kick: boolean; call: boolean } {
  return { kick: !devicePolls, call: !polled };
}
