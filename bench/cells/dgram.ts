/**
 * Baseline: the datagrams of `udp-segments` by node:dgram, one call each, on a connected socket and out of views that
 * were made before. The last datagram of each payload has a callback, which is where node says that it may go on.
 */
import { createSocket, type Socket } from 'node:dgram';
import { once } from 'node:events';
import { type CellSide, numberOption, type Options, textOption } from './cell.ts';

function sender(): CellSide {
  let socket: Socket;
  const payloads: Buffer[][] = [];
  let next = 0;
  return {
    async open(options: Options): Promise<Options> {
      const segmentBytes = numberOption(options, 'segmentBytes');
      const payloadBytes = numberOption(options, 'payloadBytes');
      socket = createSocket('udp4');
      socket.connect(numberOption(options, 'port'), textOption(options, 'host'));
      await once(socket, 'connect');
      const count = Math.floor(numberOption(options, 'workingSetBytes') / payloadBytes);
      for (let i = 0; i < count; i++)
        payloads.push(datagrams(Buffer.alloc(payloadBytes, i + 1), segmentBytes));
      return {};
    },
    async run({ count }) {
      await new Promise<void>((resolve, reject) => {
        let left = count;
        const sendPayload = (): void => {
          if (left-- === 0) {
            resolve();
            return;
          }
          const payload = payloads[next++ % payloads.length]!;
          payload[0]!.writeUInt32LE(next >>> 0);
          for (let i = 0; i < payload.length - 1; i++) socket.send(payload[i]!);
          socket.send(payload[payload.length - 1]!, sent);
        };
        const sent = (error: Error | null): void => {
          if (error) reject(error);
          else sendPayload();
        };
        sendPayload();
      });
      return {};
    },
    async close() {
      socket.close();
    },
  };
}

function datagrams(payload: Buffer, segmentBytes: number): Buffer[] {
  const count = Math.ceil(payload.length / segmentBytes);
  return Array.from({ length: count }, (_, i) => payload.subarray(i * segmentBytes, (i + 1) * segmentBytes));
}

export const sides: Record<string, () => CellSide> = { sender };
