/**
 * Datagrams of one size, 64 KiB of them at a time, to a peer that drops them all: UdpSocket.sendSegments() makes them of
 * a payload in one call (UDP_SEGMENT).
 *
 * Variants are a mode and what is sent, e.g. `force resent`. `force` and `off` are two sockets of which one lends and
 * one copies; both send the same leases, which go through a working set larger than the caches. `resent` sends what is
 * held and never touches it, as a cache of objects does; `refilled` writes a number into `lease.buffer` before each
 * send. A dozen payloads are on their way at once, each followed by another when its promise resolves, so that
 * completions are read in batches.
 */
import { once } from 'node:events';
import { type Lease, Pool, UdpSocket } from 'zerotx/net';
import { type CellSide, numberOption, type Options, textOption } from './cell.ts';
import { difference, zerocopyCounters } from './zerocopy-counters.ts';

const CONCURRENT = 12;
const MODES = ['force', 'off'] as const;

function sender(): CellSide {
  const sockets: Record<string, UdpSocket> = {};
  let leases: Lease[] = [];
  let segmentBytes = 0;
  let next = 0;
  return {
    async open(options: Options): Promise<Options> {
      segmentBytes = numberOption(options, 'segmentBytes');
      const payloadBytes = numberOption(options, 'payloadBytes');
      for (const mode of MODES) {
        const zerocopy = { mode, thresholdBytes: numberOption(options, 'thresholdBytes') };
        const socket = new UdpSocket({ type: 'udp4', zerocopy });
        socket.connect(numberOption(options, 'port'), textOption(options, 'host'));
        await once(socket, 'connect');
        sockets[mode] = socket;
      }
      const pool = new Pool();
      const count = Math.floor(numberOption(options, 'workingSetBytes') / payloadBytes);
      for (let i = 0; i < count; i++) {
        const lease = await pool.acquire(payloadBytes);
        lease.buffer.fill(i + 1);
        leases.push(lease);
      }
      return {};
    },
    async run({ count, variant }) {
      const [mode, source] = variant.split(' ');
      const socket = sockets[mode!]!;
      const refill = source === 'refilled';
      const before = zerocopyCounters(socket);
      let left = count;
      const sender = async (): Promise<void> => {
        while (left > 0) {
          left -= 1;
          const lease = leases[next++ % leases.length]!;
          if (refill) lease.buffer.writeUInt32LE(next >>> 0);
          await socket.sendSegments(lease, segmentBytes);
        }
      };
      await Promise.all(Array.from({ length: CONCURRENT }, sender));
      return difference(zerocopyCounters(socket), before);
    },
    async close() {
      for (const mode of MODES) sockets[mode]!.close();
      for (const lease of leases) lease.release();
      leases = [];
    },
  };
}

export const sides: Record<string, () => CellSide> = { sender };
