/**
 * The options of a stream socket, and what a program may set before there is a connection: keep-alive, Nagle's algorithm, and the
 * idle time-out.
 */
import type { DuplexOptions } from 'node:stream';
import { checkInteger } from '../core/arguments.ts';
import {
  IPPROTO_TCP,
  SO_KEEPALIVE,
  SOL_SOCKET,
  TCP_KEEPCNT,
  TCP_KEEPIDLE,
  TCP_KEEPINTVL,
  TCP_NODELAY,
} from '../sys/constants.ts';
import type { OnRead } from './incoming.ts';
import { nodeTypeError } from './node-errors.ts';
import type { ZerocopyOptions } from './zerocopy-options.ts';

export interface TcpSocketOptions {
  allowHalfOpen?: boolean | undefined;
  /** Destroys the socket when it fires. */
  signal?: AbortSignal | undefined;
  noDelay?: boolean | undefined;
  keepAlive?: boolean | undefined;
  /** Milliseconds; parts of a second are cut off. */
  keepAliveInitialDelay?: number | undefined;
  highWaterMark?: number | undefined;
  readableHighWaterMark?: number | undefined;
  writableHighWaterMark?: number | undefined;
  /** One buffer for all reads instead of 'data' events. */
  onread?: OnRead | undefined;
  zerocopy?: ZerocopyOptions | undefined;
}

interface OptionTarget {
  setOption(level: number, name: number, value: number): number;
}

export interface SettingsOptions {
  noDelay?: boolean | undefined;
  keepAlive?: boolean | undefined;
  keepAliveInitialDelay?: number | undefined;
}

/** What libuv sets beside the delay: a probe a second, ten times. */
const PROBE_INTERVAL_S = 1;
const PROBES = 10;

export class TcpSettings {
  #noDelay: boolean | undefined;
  #keepAlive: boolean | undefined;
  #delayS = 0;

  constructor({ noDelay, keepAlive, keepAliveInitialDelay }: SettingsOptions) {
    // Only what is asked for is set: each costs a system call per connection.
    this.#noDelay = noDelay === true ? true : undefined;
    this.#keepAlive = keepAlive === true ? true : undefined;
    this.#delayS = seconds(keepAliveInitialDelay);
  }

  setNoDelay(on: boolean, target: OptionTarget | null): void {
    if (this.#noDelay === on) return;
    this.#noDelay = on;
    target?.setOption(IPPROTO_TCP, TCP_NODELAY, on ? 1 : 0);
  }

  setKeepAlive(on: boolean, initialDelayMs: number | undefined, target: OptionTarget | null): void {
    this.#keepAlive = on;
    this.#delayS = seconds(initialDelayMs);
    if (target !== null) this.#applyKeepAlive(target);
  }

  /** Sets on a new connection what was asked for before. */
  apply(target: OptionTarget): void {
    if (this.#noDelay !== undefined) target.setOption(IPPROTO_TCP, TCP_NODELAY, this.#noDelay ? 1 : 0);
    if (this.#keepAlive !== undefined) this.#applyKeepAlive(target);
  }

  #applyKeepAlive(target: OptionTarget): void {
    target.setOption(SOL_SOCKET, SO_KEEPALIVE, this.#keepAlive === true ? 1 : 0);
    if (this.#keepAlive !== true || this.#delayS === 0) return;
    target.setOption(IPPROTO_TCP, TCP_KEEPIDLE, this.#delayS);
    target.setOption(IPPROTO_TCP, TCP_KEEPINTVL, PROBE_INTERVAL_S);
    target.setOption(IPPROTO_TCP, TCP_KEEPCNT, PROBES);
  }
}

function seconds(ms: number | undefined): number {
  return Math.max(0, Math.trunc((ms ?? 0) / 1000)) || 0;
}

/** Those of the options that are the stream's. */
export function streamOptions(options: DuplexOptions): DuplexOptions {
  const names = ['highWaterMark', 'readableHighWaterMark', 'writableHighWaterMark'] as const;
  return Object.fromEntries(
    names.flatMap((name) => (options[name] === undefined ? [] : [[name, options[name]]])),
  );
}

/** A descriptor of somebody else's cannot be taken over: its completions would be read by two. Throws ERR_INVALID_ARG_VALUE. */
export function refuseHandles(options: object): void {
  for (const name of ['fd', 'handle']) {
    const value = (options as Record<string, unknown>)[name];
    if (value === undefined || value === null) continue;
    const text = `The property 'options.${name}' is not supported: sockets are made here`;
    throw nodeTypeError('ERR_INVALID_ARG_VALUE', text);
  }
}

/** Largest delay of a timer. */
const TIMEOUT_MS_MAX = 2 ** 31 - 1;

/** Fires after so many milliseconds without refresh(), again and again; it never keeps the process alive. */
export class SocketTimeout {
  readonly #fire: () => void;
  #timer: NodeJS.Timeout | null = null;

  constructor(fire: () => void) {
    this.#fire = fire;
  }

  /** 0 switches it off. Throws ERR_INVALID_ARG_TYPE or ERR_OUT_OF_RANGE. */
  set(ms: number): void {
    if (typeof ms !== 'number' || !(ms >= 0 && Number.isFinite(ms)))
      checkInteger('msecs', ms, 0, TIMEOUT_MS_MAX);
    this.stop();
    if (ms > 0) this.#timer = setTimeout(this.#fire, Math.min(ms, TIMEOUT_MS_MAX)).unref();
  }

  refresh(): void {
    this.#timer?.refresh();
  }

  stop(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
  }
}
