/**
 * Baseline: a one-way stream of large messages over `node:net`, as a careful program writes it.
 *
 * The sender keeps `depth` writes outstanding out of `depth` buffers that it owns and reuses; node writes straight from
 * them. The receiver reads into one reused 1 MiB buffer, so nothing is allocated for the data on either side. There is
 * no framing and the receiver only counts bytes, which is less work than any message transport does.
 */
import type { Socket } from 'node:net';
import { type CellSide, numberOption, type Options } from './cell.ts';
import { dialAndRead, listenForOne, type NetSender, Progress } from './net-kit.ts';

const RECEIVE_BUFFER_BYTES = 1 << 20;

function sender(): CellSide {
  let server: NetSender;
  let buffers: Buffer[] = [];
  return {
    async open(options: Options): Promise<Options> {
      const messageBytes = numberOption(options, 'messageBytes');
      buffers = Array.from({ length: numberOption(options, 'depth') }, (_, i) =>
        Buffer.alloc(messageBytes, i + 1),
      );
      server = await listenForOne();
      return { port: server.port };
    },
    async run({ count }) {
      const socket = await server.socket;
      await new Promise<void>((resolve, reject) => {
        let started = 0;
        let finished = 0;
        const next = (error?: Error | null): void => {
          if (error) reject(error);
          else if (++finished === count) resolve();
          else if (started < count) write();
        };
        const write = (): void => {
          socket.write(buffers[started++ % buffers.length]!, next);
        };
        while (started < Math.min(count, buffers.length)) write();
      });
      return {};
    },
    async close() {
      server.close();
    },
  };
}

function receiver(): CellSide {
  const progress = new Progress();
  let socket: Socket;
  let messageBytes = 0;
  return {
    async open(options: Options): Promise<Options> {
      messageBytes = numberOption(options, 'messageBytes');
      socket = await dialAndRead(numberOption(options, 'port'), RECEIVE_BUFFER_BYTES, (_, bytes) =>
        progress.add(bytes),
      );
      return {};
    },
    async run({ count }) {
      await progress.more(count * messageBytes);
      return {};
    },
    async close() {
      socket.destroy();
    },
  };
}

export const sides: Record<string, () => CellSide> = { sender, receiver };
