/** Options of a front-end: what they mean, their defaults, and what is refused. */
import {
  checkInteger,
  checkObject,
  checkOptionalBoolean,
  checkOptionalInteger,
  checkSignal,
  checkString,
  wrongRange,
} from '../core/arguments.ts';
import { type Features, isRingSize, VIRTQUEUE_SIZE_MAX } from '../wire/virtio.ts';
import { FRONTEND_FEATURES, FRONTEND_PROTOCOL_FEATURES } from './frontend-features.ts';
import { MEMORY_BYTES_MAX } from './frontend-memory.ts';
import { macOption } from './mac.ts';

export interface VhostUserFrontendOptions {
  /** The Unix socket: of the back-end, or to listen at. */
  readonly path: string;
  /** Listens, and the back-end connects. */
  readonly listen?: boolean;
  /** Access rights of the socket file when listening: 0600. */
  readonly socketMode?: number;
  /** As a port of a switch; the path if left out. */
  readonly name?: string;
  /** 1. Fewer if the back-end has fewer. */
  readonly queuePairs?: number;
  /** Entries of each ring, a power of two: 256. */
  readonly queueSize?: number;
  /** Buffers of each ring, and bytes of each, header included: as many as queueSize, and 2048. */
  readonly buffers?: number;
  readonly bufferBytes?: number;
  /** Shared memory for prepared frames: 0. */
  readonly memoryBytes?: number;
  /** What may be accepted of what the back-end offers: FRONTEND_FEATURES and FRONTEND_PROTOCOL_FEATURES. */
  readonly features?: Features;
  readonly protocolFeatures?: Features;
  /** Longest packet, told to the back-end where that is possible; what the back-end says, or 1500. */
  readonly mtu?: number;
  /** Our address, unless the back-end has one for us: `02:00:00:00:00:01`, or a random one. */
  readonly mac?: string;
  /** The program calls poll() in a loop: the back-end never signals. */
  readonly polled?: boolean;
  /** The back-end polls: it is never kicked. */
  readonly devicePolls?: boolean;
  /** Measures how long each frame is out. */
  readonly latency?: boolean;
  /** Tries again, at the beginning and when the connection is lost. */
  readonly reconnect?: boolean;
  /** Delays between attempts, doubling: 100 and 3000. */
  readonly retryMinMs?: number;
  readonly retryMaxMs?: number;
  /** For the greeting, and each request later: 5000. */
  readonly timeoutMs?: number;
  /** Closes the front-end. */
  readonly signal?: AbortSignal;
}

export type FrontendSettings = Required<Omit<VhostUserFrontendOptions, 'mac' | 'mtu' | 'signal'>> & {
  readonly mac: Uint8Array;
  readonly mtu: number | null;
  readonly signal: AbortSignal | null;
  /** Entries of an indirect table: for the longest frame in buffers of that size. */
  readonly tableEntries: number;
};

const PAIRS_MAX = 128;
const BUFFER_BYTES_MIN = 64;
const BUFFER_BYTES_MAX = 1 << 20;
const LONGEST_BYTES = 65_536;
/** Back-ends take no longer ones (UIO_MAXIOV). */
const TABLE_ENTRIES_MAX = 1024;
const TIME_MAX_MS = 2 ** 31 - 1;

/** Throws ERR_INVALID_ARG_TYPE and ERR_OUT_OF_RANGE. */
export function frontendSettings(options: VhostUserFrontendOptions): FrontendSettings {
  checkObject('options', options);
  check(options);
  const { path, queueSize = 256, bufferBytes = 2048, retryMinMs = 100 } = options;
  return {
    path,
    listen: options.listen ?? false,
    socketMode: options.socketMode ?? 0o600,
    name: options.name ?? path,
    queuePairs: options.queuePairs ?? 1,
    queueSize,
    buffers: options.buffers ?? queueSize,
    bufferBytes,
    memoryBytes: options.memoryBytes ?? 0,
    features: options.features ?? FRONTEND_FEATURES,
    protocolFeatures: options.protocolFeatures ?? FRONTEND_PROTOCOL_FEATURES,
    mtu: options.mtu ?? null,
    mac: macOption(options.mac),
    polled: options.polled ?? false,
    devicePolls: options.devicePolls ?? false,
    latency: options.latency ?? false,
    reconnect: options.reconnect ?? false,
    retryMinMs,
    retryMaxMs: Math.max(retryMinMs, options.retryMaxMs ?? 3000),
    timeoutMs: options.timeoutMs ?? 5000,
    signal: options.signal ?? null,
    tableEntries: Math.min(Math.ceil(LONGEST_BYTES / bufferBytes) + 2, TABLE_ENTRIES_MAX),
  };
}

function check(options: VhostUserFrontendOptions): void {
  checkString('options.path', options.path);
  if (options.name !== undefined) checkString('options.name', options.name);
  for (const name of ['listen', 'polled', 'devicePolls', 'latency', 'reconnect'] as const) {
    checkOptionalBoolean(`options.${name}`, options[name]);
  }
  checkOptionalInteger('options.socketMode', options.socketMode, 0, 0o777);
  checkOptionalInteger('options.queuePairs', options.queuePairs, 1, PAIRS_MAX);
  const { queueSize = 256 } = options;
  checkInteger('options.queueSize', queueSize, 2, VIRTQUEUE_SIZE_MAX);
  if (!isRingSize(queueSize)) throw wrongRange('options.queueSize', 'a power of two', queueSize);
  // A receive ring takes no more than it has entries.
  checkOptionalInteger('options.buffers', options.buffers, 1, queueSize);
  checkOptionalInteger('options.bufferBytes', options.bufferBytes, BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
  checkOptionalInteger('options.memoryBytes', options.memoryBytes, 0, MEMORY_BYTES_MAX);
  checkOptionalInteger('options.mtu', options.mtu, 68, 65_535);
  if (options.mac !== undefined) checkString('options.mac', options.mac);
  for (const name of ['retryMinMs', 'retryMaxMs', 'timeoutMs'] as const) {
    checkOptionalInteger(`options.${name}`, options[name], 1, TIME_MAX_MS);
  }
  checkSignal('options.signal', options.signal);
}
