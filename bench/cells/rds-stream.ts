/**
 * One-way RDS messages.
 *
 * Large ones go out of `depth` buffers in turn, each used again when it is free, so at most `depth` are on their way.
 * Small ones (`batch` given) are copied from one buffer, `batch` sendmsg() calls in a row, as the framed baseline
 * batches; the library gathers what was queued in one turn. The receiver takes every message, checks its length and its
 * sender's port, and recycles it.
 *
 * The slice of a sender of large messages ends when the last has left the send queue (acknowledged by the peer's TCP)
 * and every lent buffer is back; of small ones, when the last is queued. The `zerocopy...` and `fallback...` counters are those of the node, over the slice.
 */
import { once } from 'node:events';
import { setTimeout as delay } from 'node:timers/promises';
import { ZerotxError } from 'zerotx/rds';
import { type CellSide, type Counters, numberOption, type Options, type Slice } from './cell.ts';
import { type Endpoint, openEndpoint, receiveAll, Sources, untilDone } from './rds-kit.ts';

class Sender implements CellSide {
  #endpoint!: Endpoint;
  #sources!: Sources;
  #batch = 0;
  #small!: Buffer;

  async open(options: Options): Promise<Options> {
    this.#endpoint = await openEndpoint(options, 'sender', 'receiver');
    const messageBytes = numberOption(options, 'messageBytes');
    this.#sources = new Sources(this.#endpoint, numberOption(options, 'depth'), messageBytes);
    this.#batch = 'batch' in options ? numberOption(options, 'batch') : 0;
    this.#small = Buffer.alloc(messageBytes, 'z');
    return {};
  }

  async run(slice: Slice): Promise<Counters> {
    const { node } = this.#endpoint;
    const before = node.stats().zerocopy;
    this.#sources.callUs = 0;
    this.#sources.calls = 0;
    await (this.#batch > 0 ? this.#sendSmall(slice.count) : this.#sendLarge(slice));
    const after = node.stats().zerocopy;
    return {
      callUs: this.#sources.callUs / this.#sources.calls,
      zerocopyCalls: after.lentCalls - before.lentCalls,
      copiedCalls: after.kernelCopiedCalls - before.kernelCopiedCalls,
      fallbackBytes: after.fallbackBytes - before.fallbackBytes,
    };
  }

  close(): Promise<void> {
    return this.#endpoint.close();
  }

  async #sendLarge({ count, variant }: Slice): Promise<void> {
    const { socket } = this.#endpoint;
    let sent = 0;
    await untilDone(socket, () => {
      receiveAll(
        socket,
        () => {},
        (cookies) => this.#sources.giveBack(cookies),
      );
      while (sent < count && this.#sources.trySend(variant)) sent++;
      return sent === count && this.#sources.lent === 0;
    });
    // No event tells that the send queue is empty.
    while (socket.queuedBytes > 0) await delay(1);
  }

  /** Yields after each batch, which lets the library write it; waits for room when a message is refused. */
  async #sendSmall(count: number): Promise<void> {
    const { socket } = this.#endpoint;
    for (let sent = 0; sent < count; ) {
      const batch = Math.min(this.#batch, count - sent);
      const accepted = this.#sendBatch(batch);
      sent += accepted;
      await (accepted < batch ? once(socket, 'writable') : undefined);
    }
  }

  /** Messages accepted. */
  #sendBatch(messages: number): number {
    const { socket, peer } = this.#endpoint;
    for (let i = 0; i < messages; i++) {
      try {
        socket.sendmsg(this.#small, peer);
      } catch (error) {
        if (error instanceof ZerotxError && error.next === 'retry') return i;
        throw error;
      }
    }
    return messages;
  }
}

class Receiver implements CellSide {
  #endpoint!: Endpoint;
  #messageBytes = 0;
  #received = 0;
  #target = 0;

  async open(options: Options): Promise<Options> {
    this.#messageBytes = numberOption(options, 'messageBytes');
    this.#endpoint = await openEndpoint(options, 'receiver', 'sender');
    return {};
  }

  async run({ count }: Slice): Promise<Counters> {
    const { socket, peer } = this.#endpoint;
    this.#target += count;
    await untilDone(socket, () => {
      receiveAll(
        socket,
        (message) => {
          if (message.length !== this.#messageBytes || message.port !== peer.port) {
            throw new Error(`${message.length} bytes from port ${message.port}`);
          }
          this.#received++;
        },
        () => {},
      );
      return this.#received >= this.#target;
    });
    return {};
  }

  close(): Promise<void> {
    return this.#endpoint.close();
  }
}

export const sides: Record<string, () => CellSide> = {
  sender: () => new Sender(),
  receiver: () => new Receiver(),
};
