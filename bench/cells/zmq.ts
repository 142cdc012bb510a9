/**
 * Baseline: ZeroMQ PUSH to PULL over TCP, with the `zeromq` package.
 *
 * `await send()` is the pattern its documentation recommends; only one send may wait at a time. The high-water marks
 * keep large messages from piling up (`depth` messages on each side) and leave small ones the library's default.
 * Large messages are handed over by reference and stay readable until sent, so the sender cycles through more buffers
 * than the queues can hold. Received messages are new Buffers: the package has no other way.
 */
import { Pull, Push } from 'zeromq';
import { type CellSide, numberOption, type Options } from './cell.ts';

function sender(): CellSide {
  const socket = new Push({ linger: 0, immediate: true });
  let messages: Buffer[] = [];
  return {
    async open(options: Options): Promise<Options> {
      const depth = numberOption(options, 'depth');
      socket.sendHighWaterMark = depth;
      messages = Array.from({ length: 2 * Math.min(depth, 8) }, (_, i) =>
        Buffer.alloc(numberOption(options, 'messageBytes'), i + 1),
      );
      socket.connect(`tcp://127.0.0.1:${numberOption(options, 'port')}`);
      return {};
    },
    async run({ count }) {
      for (let i = 0; i < count; i++) await socket.send(messages[i % messages.length]!);
      return {};
    },
    async close() {
      socket.close();
    },
  };
}

function receiver(): CellSide {
  const socket = new Pull({ linger: 0 });
  let messageBytes = 0;
  return {
    async open(options: Options): Promise<Options> {
      messageBytes = numberOption(options, 'messageBytes');
      socket.receiveHighWaterMark = numberOption(options, 'depth');
      await socket.bind('tcp://127.0.0.1:*');
      return { port: Number(socket.lastEndpoint!.split(':').at(-1)) };
    },
    async run({ count }) {
      for (let i = 0; i < count; i++) {
        const [message] = await socket.receive();
        if (message?.length !== messageBytes) throw new Error(`a message of ${message?.length} bytes`);
      }
      return {};
    },
    async close() {
      socket.close();
    },
  };
}

export const sides: Record<string, () => CellSide> = { sender, receiver };
