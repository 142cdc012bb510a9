/**
 * UdpSocket: node:dgram's socket, with memory that is lent instead of copied and with many datagrams per call.
 *
 * Methods, events, their order and their errors are those of dgram.Socket; what differs:
 *
 * - sendSegments() sends a payload as many datagrams, up to 64 per call (UDP_SEGMENT), and resolves when the memory is the
 *   program's again. The callback of send() comes at that moment, too.
 * - 'batch' hands over runs of datagrams as the kernel put them together (UDP_GRO).
 * - A socket is never shared among the workers of a cluster (`reusePort` spreads load instead), nor made from a descriptor.
 * - After close() a port that the program chose stays taken for as long as the kernel reads lent memory: with its descriptor
 *   closed, nobody would ever learn of the end.
 *
 *   send(), sendSegments() ──▶ Transmission ──▶ UdpEndpoint: bound? which address? ──▶ UdpChannel ──▶ kernel
 *     callback, promise ◀────── its memory is the program's again ◀────────────────────────┘
 *
 * Here is what a send is made of, and who hears of its end. Where it goes and when is udp-endpoint.ts; its calls are
 * udp-channel.ts.
 */
import { checkInteger, checkObject, checkSignal, checkString, wrongType } from '../core/arguments.ts';
import { releases } from '../core/releases.ts';
import type { Outcome } from '../core/ubuf.ts';
import { Lease, lendLease, returnLease } from './lease.ts';
import { abortError } from './node-errors.ts';
import { checkTargetPort } from './port.ts';
import { UDP4_BYTES_MAX, UDP6_BYTES_MAX } from './segments.ts';
import { type SendCallback, sendArguments, type UdpPayload } from './udp-arguments.ts';
import { checkRunning, dispatch, isConnected, UdpEndpoint } from './udp-endpoint.ts';
import { dgramError, type UdpSocketOptions } from './udp-options.ts';
import type { RemoteInfo } from './udp-receiver.ts';
import type { UdpType } from './udp-target.ts';
import { Transmission } from './udp-transmission.ts';

export interface SegmentsOptions {
  /** Where to; left out on a connected socket. */
  readonly port?: number | undefined;
  /** This host if left out. */
  readonly address?: string | undefined;
  readonly signal?: AbortSignal | undefined;
}

const STILL_LENT = 'the kernel still reads the memory of a UDP send';

export class UdpSocket extends UdpEndpoint {
  /**
   * Sends one datagram: `send(message[, offset, length][, port][, address][, callback])`, port and address on unconnected
   * sockets only. The message is a string, a view, or an array of them. The callback runs when the memory is the
   * program's again, with an error or the number of bytes; without one, a failed lookup is an 'error' event, and other
   * errors of the send are not reported.
   */
  send(message: UdpPayload, port?: number, address?: string, callback?: SendCallback): void;
  send(message: UdpPayload, port: number, callback?: SendCallback): void;
  send(message: UdpPayload, callback: SendCallback): void;
  send(
    message: string | NodeJS.ArrayBufferView,
    offset: number,
    length: number,
    port?: number,
    address?: string,
    callback?: SendCallback,
  ): void;
  send(
    message: string | NodeJS.ArrayBufferView,
    offset: number,
    length: number,
    port: number,
    callback?: SendCallback,
  ): void;
  send(
    message: string | NodeJS.ArrayBufferView,
    offset: number,
    length: number,
    callback: SendCallback,
  ): void;
  send(...args: readonly unknown[]): void {
    const { pieces, port, address, callback } = sendArguments(args, isConnected(this));
    checkRunning(this);
    const tell =
      callback === undefined
        ? null
        : (error: Error | null, { bytes }: Outcome): void => {
            if (error === null) callback(null, bytes);
            else (callback as (error: Error) => void)(error);
          };
    const transmission = new Transmission(pieces, { segmentBytes: 0, tell });
    dispatch(this, transmission, port, address, (error) => {
      if (callback !== undefined) transmission.end(error);
      else releases.run(() => this.emit('error', error));
    });
  }

  /**
   * Sends the payload as datagrams of `segmentBytes`, the last one shorter, in as few system calls as the kernel allows, and
   * resolves when the memory is the program's again, with how much of it was copied. Pieces are one payload, whatever
   * their sizes; a payload without bytes is no datagram. Where the kernel or a device cannot cut, datagrams go one by one.
   *
   * Rejects with the first error: what was sent before it is out. EMSGSIZE (EINVAL before Linux 6.14): a datagram does not fit
   * the MTU of the path. `ABORT_ERR` when `signal` fires before all is handed over, and `ZTX_STILL_LENT` (whose `released`
   * tells the end) when the kernel still reads the memory then. Throws ERR_INVALID_ARG_TYPE, ERR_OUT_OF_RANGE,
   * ERR_SOCKET_BAD_PORT, ERR_SOCKET_DGRAM_IS_CONNECTED, ERR_SOCKET_DGRAM_NOT_RUNNING, and ZTX_RELEASED for a lease.
   */
  sendSegments(
    payload: Uint8Array | readonly Uint8Array[] | Lease,
    segmentBytes: number,
    options: SegmentsOptions = {},
  ): Promise<Outcome> {
    checkInteger('segmentBytes', segmentBytes, 1, this.type === 'udp4' ? UDP4_BYTES_MAX : UDP6_BYTES_MAX);
    checkObject('options', options as unknown);
    const { signal, address } = options;
    checkSignal('options.signal', signal);
    if (address !== undefined) checkString('options.address', address);
    const connected = isConnected(this);
    if (connected && (options.port !== undefined || address !== undefined)) {
      throw dgramError('ERR_SOCKET_DGRAM_IS_CONNECTED');
    }
    const port = connected ? undefined : checkTargetPort(options.port);
    const lease = payload instanceof Lease ? payload : null;
    const parts = Array.isArray(payload) ? (payload as readonly Uint8Array[]) : [payload as Uint8Array];
    if (lease === null && !parts.every((part) => part instanceof Uint8Array)) {
      throw wrongType('payload', 'an instance of Uint8Array or Lease, or an array of Uint8Array', payload);
    }
    checkRunning(this);
    if (signal?.aborted === true) return Promise.reject(abortError(signal));
    const pieces = lease === null ? parts : [lendLease(lease)];
    return new Promise<Outcome>((resolve, reject) => {
      const onAbort = (): void => transmission.giveUp(abortError(signal as AbortSignal), STILL_LENT);
      const transmission = new Transmission(pieces, {
        segmentBytes,
        tell: (error, outcome) => {
          signal?.removeEventListener('abort', onAbort);
          if (error === null) resolve(outcome);
          else reject(error);
        },
        giveBack: lease === null ? undefined : () => returnLease(lease),
      });
      signal?.addEventListener('abort', onAbort, { once: true });
      if (transmission.cursor.remaining === 0) transmission.end(null);
      else dispatch(this, transmission, port, address, (error) => transmission.end(error));
    });
  }
}

/** As dgram.createSocket(). */
export function createUdpSocket(
  options: UdpType | UdpSocketOptions,
  listener?: (message: Buffer, from: RemoteInfo) => void,
): UdpSocket {
  return new UdpSocket(options, listener);
}
