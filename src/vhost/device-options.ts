/** Options of a VhostUserDevice: what they are, and whether they are. */
import { checkObject, checkOptionalInteger, checkString, wrongRange } from '../core/arguments.ts';
import { OFFLOAD_ALL } from '../core/port.ts';
import type { Frontend } from './features.ts';
import { macOption } from './mac.ts';

export interface VhostUserDeviceOptions {
  /** The Unix socket. */
  readonly path: string;
  /** `listen` (the default): QEMU connects, `-chardev socket,path=...`; `connect`: QEMU listens, `server=on`. */
  readonly role?: 'listen' | 'connect';
  /** Access rights of the socket file, 0o600 if left out. */
  readonly socketMode?: number;
  /** What the switch, logs and counters call it; the path if left out. */
  readonly name?: string;
  /** `qemu` (also for DPDK), or `uml` for User-Mode Linux, which reads its configuration from the device. */
  readonly frontend?: Frontend;
  /** Queue pairs, 1 if left out, at most 16; for User-Mode Linux 1, as its driver uses more only with a control queue. */
  readonly queues?: number;
  /** Longest packet without Ethernet header, 1500 if left out, 68 to 65,535. */
  readonly mtu?: number;
  /** For front-ends that take it from us: `02:00:00:00:00:01`, or a random one. */
  readonly mac?: string;
  /** OFFLOAD_ bits that are offered to the guest: all if left out, as switches and links do in software what a port lacks. */
  readonly offloads?: number;
  /** `auto`: lend to ports that take it. `off`: copy everything. */
  readonly zerocopy?: 'auto' | 'off';
  /** A frame that is lent for longer is overtaken, and its borrower gets nothing more for a while: 5 ms. */
  readonly holdMs?: number;
  /** Frames of a ring that are lent at once: 128, and a quarter of the ring at most. */
  readonly lentMax?: number;
  /** Whether copied frames are returned to the guest before lent ones that came earlier. */
  readonly completion?: 'in-order' | 'copies-first';
  /** How long a ring that stops waits for what is lent: 1000 ms. */
  readonly drainMs?: number;
  /** Guest memory that one front-end may have us map: 64 GiB. */
  readonly regionBytesMax?: number;
}

/** Queue pairs of a device. */
const QUEUES_MAX = 16;
const TIMEOUT_MS_MAX = 600_000;

/** What each may be, besides undefined. */
const CHOICES = {
  role: ['listen', 'connect'],
  frontend: ['qemu', 'uml'],
  zerocopy: ['auto', 'off'],
  completion: ['in-order', 'copies-first'],
} as const;

/** Throws ERR_OUT_OF_RANGE and ERR_INVALID_ARG_TYPE for options that are none. */
export function checkDeviceOptions(options: VhostUserDeviceOptions): void {
  checkObject('options', options);
  checkString('options.path', options.path);
  if (options.name !== undefined) checkString('options.name', options.name);
  macOption(options.mac);
  for (const [name, allowed] of Object.entries(CHOICES)) {
    const value = options[name as keyof typeof CHOICES];
    if (value !== undefined && !(allowed as readonly unknown[]).includes(value)) {
      throw wrongRange(`options.${name}`, `one of ${allowed.join(', ')}`, value);
    }
  }
  const { queues, frontend } = options;
  checkOptionalInteger('options.socketMode', options.socketMode, 0, 0o777);
  checkOptionalInteger('options.queues', queues, 1, QUEUES_MAX);
  if (frontend === 'uml' && queues !== undefined && queues > 1) {
    throw wrongRange('options.queues', '1 for User-Mode Linux', queues);
  }
  checkOptionalInteger('options.mtu', options.mtu, 68, 65_535);
  checkOptionalInteger('options.offloads', options.offloads, 0, OFFLOAD_ALL);
  checkOptionalInteger('options.holdMs', options.holdMs, 1, TIMEOUT_MS_MAX);
  checkOptionalInteger('options.lentMax', options.lentMax, 0, 32_768);
  checkOptionalInteger('options.drainMs', options.drainMs, 0, TIMEOUT_MS_MAX);
  checkOptionalInteger('options.regionBytesMax', options.regionBytesMax, 4096, Number.MAX_SAFE_INTEGER);
}
