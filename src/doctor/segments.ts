/** UDP_SEGMENT and UDP_GRO, tried over loopback with datagrams that are counted where they arrive. */
import { errnoError, errnoOf } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import { EPOLLIN, SOL_UDP, UDP_GRO } from '../sys/constants.ts';
import { SOCKADDR_BYTES } from '../wire/sockaddr.ts';
import { type Pair, ready, udpPair, withSockets } from './loopback.ts';

const SEGMENT_BYTES = 1000;
const SEGMENTS = 4;
const EAGAIN = -errnoOf('EAGAIN');

/** The datagrams that arrived of one call; throws what the kernel refuses with. */
export function trySegment(signal: AbortSignal): Promise<number> {
  return withSockets(async (keep) => {
    const pair = await udpPair(keep, '127.0.0.1');
    sendSegments(pair);
    const lengths = await arrivals(pair.receiver, signal);
    return lengths.filter((length) => length === SEGMENT_BYTES).length;
  });
}

/** Bytes that arrived undivided of one such call; 0 if all came singly. */
export function tryGro(signal: AbortSignal): Promise<number> {
  return withSockets(async (keep) => {
    const pair = await udpPair(keep, '127.0.0.1');
    calls.setOption(pair.receiver, SOL_UDP, UDP_GRO, 1);
    sendSegments(pair);
    const lengths = await arrivals(pair.receiver, signal);
    return lengths.find((length) => length > SEGMENT_BYTES) ?? 0;
  });
}

function sendSegments({ sender }: Pair): void {
  const sent = native().sendGso(
    sender,
    [new Uint8Array(SEGMENTS * SEGMENT_BYTES)],
    1,
    0,
    SEGMENT_BYTES,
    null,
  );
  if (sent < 0) throw errnoError(sent, 'sendmsg');
}

/** Words of recvBatch() for each message. */
const INFO_WORDS = 4;
const SLOT_BYTES = SEGMENTS * SEGMENT_BYTES;

/** Lengths of the messages as they came, until all bytes are there. */
async function arrivals(fd: number, signal: AbortSignal): Promise<number[]> {
  const lengths: number[] = [];
  const buffer = new Uint8Array(SEGMENTS * SLOT_BYTES);
  const info = new Uint32Array(SEGMENTS * INFO_WORDS);
  const names = new Uint8Array(SEGMENTS * SOCKADDR_BYTES);
  let left = SEGMENTS * SEGMENT_BYTES;
  await ready(fd, EPOLLIN, signal, () => {
    for (;;) {
      const count = native().recvBatch(fd, buffer, SLOT_BYTES, 0, info, names);
      if (count === EAGAIN) return left <= 0;
      if (count < 0) throw errnoError(count, 'recvmmsg');
      for (let i = 0; i < count; i++) {
        const length = info[i * INFO_WORDS]!;
        lengths.push(length);
        left -= length;
      }
      if (left <= 0) return true;
    }
  });
  return lengths;
}
