/** Options, events and errors of UDP sockets: the names, kinds and codes of node:dgram. */
import {
  checkObject,
  checkOptionalBoolean,
  checkOptionalInteger,
  checkSignal,
  wrongType,
} from '../core/arguments.ts';
import { ZerotxError } from '../core/errors.ts';
import { nodeTypeError } from './node-errors.ts';
import type { RemoteInfo } from './udp-receiver.ts';
import type { UdpType } from './udp-target.ts';
import { type ResolvedZerocopy, resolveZerocopy, type ZerocopyOptions } from './zerocopy-options.ts';

/** As node:dgram calls it: with the number of the family. */
export type UdpLookup = (
  hostname: string,
  family: 4 | 6,
  callback: (error: Error | null, address: string, family: number) => void,
) => void;

export interface UdpSocketOptions {
  readonly type: UdpType;
  /** SO_REUSEADDR: on Linux several sockets may then have the same address, and the last one gets what comes. */
  readonly reuseAddr?: boolean | undefined;
  /** SO_REUSEPORT: several sockets share the address, and the kernel spreads what comes among them. */
  readonly reusePort?: boolean | undefined;
  /** A `udp6` socket without IPv4. */
  readonly ipv6Only?: boolean | undefined;
  readonly recvBufferSize?: number | undefined;
  readonly sendBufferSize?: number | undefined;
  /** The threshold is 16 KiB for one call, which may carry many datagrams; `pinTimeoutMs` means nothing here. */
  readonly zerocopy?: ZerocopyOptions | undefined;
  /** Lets the kernel hand over runs of equal datagrams in one piece (UDP_GRO); true if left out. */
  readonly gro?: boolean | undefined;
  /** Closes the socket when it fires. */
  readonly signal?: AbortSignal | undefined;
  /** dns.lookup() if left out. */
  readonly lookup?: UdpLookup | undefined;
}

export interface UdpSocketEvents {
  listening: [];
  connect: [];
  /** One datagram. The Buffer is the program's; datagrams that the kernel delivered in one run share at most 64 KiB. */
  message: [message: Buffer, from: RemoteInfo];
  /** If somebody listens, instead of 'message': datagrams of `segmentBytes` each, the last one perhaps shorter. */
  batch: [datagrams: Buffer, segmentBytes: number, from: RemoteInfo];
  error: [error: Error];
  close: [];
}

/** Options with the defaults filled in. */
export interface ResolvedUdpOptions {
  readonly type: UdpType;
  readonly reuseAddr: boolean;
  readonly reusePort: boolean;
  readonly ipv6Only: boolean;
  /** 0: the system's. */
  readonly recvBufferSize: number;
  readonly sendBufferSize: number;
  readonly zerocopy: ResolvedZerocopy;
  readonly gro: boolean;
  readonly signal: AbortSignal | undefined;
  readonly lookup: UdpLookup | undefined;
}

const UDP_THRESHOLD_BYTES = 16 * 1024;

const UINT32_MAX = 2 ** 32 - 1;

export function resolveUdpOptions(given: UdpType | UdpSocketOptions): ResolvedUdpOptions {
  const options: Partial<UdpSocketOptions> = typeof given === 'string' ? { type: given } : given;
  checkObject('options', options);
  const { type, lookup, signal, recvBufferSize = 0, sendBufferSize = 0, gro = true } = options;
  if (type !== 'udp4' && type !== 'udp6') {
    throw nodeTypeError('ERR_SOCKET_BAD_TYPE', 'Bad socket type specified. Valid types are: udp4, udp6');
  }
  if (lookup !== undefined && typeof lookup !== 'function')
    throw wrongType('options.lookup', 'of type function', lookup);
  const { reuseAddr = false, reusePort = false, ipv6Only = false } = options;
  for (const [name, value] of Object.entries({ reuseAddr, reusePort, ipv6Only, gro })) {
    checkOptionalBoolean(`options.${name}`, value);
  }
  checkOptionalInteger('options.recvBufferSize', recvBufferSize, 0, UINT32_MAX);
  checkOptionalInteger('options.sendBufferSize', sendBufferSize, 0, UINT32_MAX);
  checkSignal('options.signal', signal);
  const zerocopy = resolveZerocopy(options.zerocopy, UDP_THRESHOLD_BYTES);
  return {
    type,
    reuseAddr,
    reusePort,
    ipv6Only,
    recvBufferSize,
    sendBufferSize,
    zerocopy,
    gro,
    signal,
    lookup,
  };
}

const messages = {
  ERR_SOCKET_ALREADY_BOUND: 'Socket is already bound',
  ERR_SOCKET_DGRAM_IS_CONNECTED: 'Already connected',
  ERR_SOCKET_DGRAM_NOT_CONNECTED: 'Not connected',
  ERR_SOCKET_DGRAM_NOT_RUNNING: 'Not running',
} as const;

export function dgramError(code: keyof typeof messages): ZerotxError {
  return new ZerotxError(code, messages[code]);
}
