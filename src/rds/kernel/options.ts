/**
 * Options of kernel sockets: checked as those of user-space sockets are (../socket-options.ts), then given to the kernel, which
 * has the last word. Its buffers are limited by net.core.wmem_max and rmem_max.
 */
import { errnoError } from '../../core/errors.ts';
import { native } from '../../sys/binding.ts';
import {
  RDS_CONG_MONITOR,
  RDS_RECVERR,
  SO_RCVBUF,
  SO_RDS_MSG_RXPATH_LATENCY,
  SO_RDS_TRANSPORT,
  SO_SNDBUF,
  SO_TIMESTAMP,
  SO_ZEROCOPY,
  SOL_RDS,
  SOL_SOCKET,
} from '../../sys/constants.ts';
import type { RdsAddress, SocketOptions } from '../options.ts';
import {
  getOption,
  type OptionTarget,
  type RdsOptionValues,
  type RdsSocketOptions,
  SocketSettings,
  setOption,
} from '../socket-options.ts';

const LATENCY_POINTS = 3;

export class KernelOptions implements OptionTarget {
  readonly settings: SocketSettings = new SocketSettings();
  readonly #fd: number;
  readonly #cancel: (to: RdsAddress) => void;
  readonly #forgetNews: () => void;
  #zerocopy = false;
  #monitors = false;

  constructor(fd: number, cancelSentTo: (to: RdsAddress) => void, forgetNews: () => void) {
    this.#fd = fd;
    this.#cancel = cancelSentTo;
    this.#forgetNews = forgetNews;
  }

  /** What bind() was told. Buffers that are asked for are at least as large as the kernel allows. */
  setAtBind(options: SocketOptions, bufferBytes: number): void {
    // Always: it is how the kernel wakes a socket that met ENOBUFS. The program hears of it only if it asks.
    this.#set(SOL_RDS, RDS_CONG_MONITOR, 1);
    this.sendBufferBytes = options.sendBufferBytes ?? bufferBytes;
    this.receiveBufferBytes = options.receiveBufferBytes ?? bufferBytes;
    if (options.zerocopy) this.zerocopy = true;
    this.#monitors = options.congestionMonitor ?? false;
    this.settings.sendTimeoutMs = options.sendTimeoutMs ?? 0;
    this.settings.receiveTimeoutMs = options.receiveTimeoutMs ?? 0;
    if (options.timestamp) this.set('SO_TIMESTAMP', true);
    if (options.receiveErrors) this.set('RDS_RECVERR', true);
    if (options.receiveLatency !== undefined) this.set('SO_RDS_MSG_RXPATH_LATENCY', options.receiveLatency);
  }

  set<Name extends keyof RdsOptionValues>(name: Name, value: RdsOptionValues[Name]): void {
    setOption(this, name, value);
    if (name === 'RDS_RECVERR') this.#set(SOL_RDS, RDS_RECVERR, Number(this.settings.receiveErrors));
  }

  get<Name extends keyof RdsSocketOptions>(name: Name): RdsSocketOptions[Name] {
    const value = getOption(this, name) as RdsSocketOptions[Name];
    if (name !== 'SO_RDS_TRANSPORT') return value;
    // The loopback transport is another one than TCP, and is what an address of 127/8 has.
    return this.#get(SOL_RDS, SO_RDS_TRANSPORT) as RdsSocketOptions[Name];
  }

  get zerocopy(): boolean {
    return this.#zerocopy;
  }

  /** Once on, it stays on for the kernel, which gives no cookies back without (rds_recvmsg_zcookie). */
  set zerocopy(on: boolean) {
    if (on) this.#set(SOL_SOCKET, SO_ZEROCOPY, 1);
    this.#zerocopy = on;
  }

  /** RDS uses half of what the socket has (rds_sk_sndbuf), and the socket has twice what was set. */
  get sendBufferBytes(): number {
    return Math.floor(this.#get(SOL_SOCKET, SO_SNDBUF) / 2);
  }

  set sendBufferBytes(bytes: number) {
    this.#set(SOL_SOCKET, SO_SNDBUF, bytes);
  }

  get receiveBufferBytes(): number {
    return Math.floor(this.#get(SOL_SOCKET, SO_RCVBUF) / 2);
  }

  set receiveBufferBytes(bytes: number) {
    this.#set(SOL_SOCKET, SO_RCVBUF, bytes);
  }

  get congestionMonitor(): boolean {
    return this.#monitors;
  }

  set congestionMonitor(on: boolean) {
    this.#monitors = on;
    if (!on) this.#forgetNews();
  }

  cancelSentTo(to: RdsAddress): void {
    this.#cancel(to);
  }

  tracingChanged(): void {
    const { timestamp, latency } = this.settings;
    this.#set(SOL_SOCKET, SO_TIMESTAMP, Number(timestamp));
    // struct rds_rx_trace_so: how many, and three places.
    const value = new Uint8Array(1 + LATENCY_POINTS);
    value[0] = latency.length;
    value.set(latency, 1);
    const result = native().setsockopt(this.#fd, SOL_RDS, SO_RDS_MSG_RXPATH_LATENCY, value);
    if (result < 0) throw errnoError(result, 'setsockopt');
  }

  #set(level: number, name: number, value: number): void {
    const result = native().setsockoptInt(this.#fd, level, name, value);
    if (result < 0) throw errnoError(result, 'setsockopt');
  }

  #get(level: number, name: number): number {
    const result = native().getsockoptInt(this.#fd, level, name);
    if (result < 0) throw errnoError(result, 'getsockopt');
    return result;
  }
}
