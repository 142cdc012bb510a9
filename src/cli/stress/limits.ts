/**
 * What a run may ask for. Both sides check: the active one its command line, the passive one what a stranger sent it
 * over TCP, before anything is allocated for it.
 *
 * Sizes and depth are bounded by the formats (a header of 63 bytes, RDS messages of at most 1 MiB, a 16-bit slot
 * number). The number of sockets is bounded by us: each of n sockets keeps state for the n on the other side with
 * `depth` slots each, so a run has n * n * depth slots of some tens of bytes, held under 100 MB.
 */
import { STRESS_HEADER_BYTES } from '../../wire/rds-stress.ts';
import type { StressOptions } from '../../wire/rds-stress-options.ts';

const messageBytesMax = 1_048_576;
const tasksMax = 512;
const depthMax = 65_535;
const slotsMax = 2 ** 21;

/** Why these options cannot be run, or undefined. */
export function refusal(options: StressOptions): string | undefined {
  return rdmaRefusal(options) ?? sizeRefusal(options) ?? shapeRefusal(options);
}

function rdmaRefusal(options: StressOptions): string | undefined {
  if (options.rdmaSize !== 0) return 'RDMA is not possible over TCP';
  // A peer's type of service means nothing over TCP, and asynchronous sends change nothing for who receives them.
  return undefined;
}

function sizeRefusal(options: StressOptions): string | undefined {
  for (const [name, size] of [
    ['request', options.reqSize],
    ['ack', options.ackSize],
  ] as const) {
    if (size < STRESS_HEADER_BYTES) return `${name} size must be at least ${STRESS_HEADER_BYTES} bytes`;
    if (size > messageBytesMax) return `${name} size must be at most ${messageBytesMax} bytes (1M)`;
  }
  return undefined;
}

function shapeRefusal(options: StressOptions): string | undefined {
  const { nrTasks, reqDepth, startingPort } = options;
  if (nrTasks < 1 || nrTasks > tasksMax) return `number of tasks must be 1 to ${tasksMax}`;
  if (reqDepth < 1 || reqDepth > depthMax) return `depth must be 1 to ${depthMax}`;
  if (nrTasks * nrTasks * reqDepth > slotsMax)
    return `tasks * tasks * depth is ${nrTasks * nrTasks * reqDepth}, at most ${slotsMax} is supported`;
  // RDS port 1 is reserved, so the first one used must be 2 or more.
  if (startingPort < 1 || startingPort + nrTasks > 65_535)
    return `start port ${startingPort} leaves no room for ${nrTasks} RDS ports above it`;
  return undefined;
}

/** What Linux makes of a smaller SO_SNDBUF (SOCK_MIN_SNDBUF), and what an option of type int can hold. */
const bufferBytesMin = 2304;
const bufferBytesMax = 2 ** 31 - 1;

/** SO_SNDBUF and SO_RCVBUF of every socket: all messages that may be under way, twice. */
export function bufferBytes(options: StressOptions): number {
  const bytes = options.nrTasks * options.reqDepth * (options.reqSize + options.ackSize) * 2;
  return Math.min(Math.max(bytes, bufferBytesMin), bufferBytesMax);
}
