/**
 * What rds-stress needs of the RDS library, as interfaces that `RdsNode` and its sockets satisfy, and the glue between
 * one such socket and one engine: events become calls, error codes become results.
 */
import { ZerotxError } from '../../index.ts';
import type { Ending } from './ending.ts';
import { type TaskConfig, TaskEngine } from './engine.ts';
import { addressNumber, dotted } from './numbers.ts';
import type { SendResult, TaskLink } from './outbox.ts';

/** Something a socket's `recvmsg` gives; the members other kinds have are absent. */
export type Received =
  | {
      kind: 'data';
      data: Uint8Array;
      address: string;
      port: number;
      cookies: readonly number[];
      recycle(): void;
    }
  | { kind: 'completion'; cookies: readonly number[] }
  | { kind: 'congestion'; mask: bigint };

export interface StressSocket {
  sendmsg(
    data: Uint8Array,
    to: { address: string; port: number },
    options: { zerocopy?: boolean; cookie?: number },
  ): number;
  recvmsg(): Received | null;
  on(event: 'readable' | 'writable', listener: () => void): unknown;
}

export interface BindOptions {
  zerocopy: boolean;
  sendBufferBytes: number;
  receiveBufferBytes: number;
  congestionMonitor: boolean;
}

export interface StressNode {
  bind(port: number, options: BindOptions): StressSocket;
  stats(): StressNodeStats;
  /** Closes the sockets with it. */
  close(options: { timeoutMs: number }): Promise<unknown>;
}

export interface StressNodeStats {
  readonly counters: object;
  readonly zerocopy: { readonly lentBytes: number; readonly kernelCopiedBytes: number };
}

export interface TaskHooks {
  roundTrip?(us: number): void;
  trace?(line: string): void;
}

export class Task {
  readonly engine: TaskEngine;
  readonly #socket: StressSocket;
  readonly #ending: Ending;
  readonly #address: number;
  readonly #addressText: string;

  constructor(socket: StressSocket, config: TaskConfig, ending: Ending, hooks: TaskHooks) {
    this.#socket = socket;
    this.#ending = ending;
    this.#address = config.remote.address;
    this.#addressText = dotted(config.remote.address);
    this.engine = new TaskEngine(config, this.#link(config, hooks));
    socket.on('readable', () => this.#guard(() => this.#readable()));
    socket.on('writable', () => this.#guard(() => this.engine.writable()));
  }

  start(): void {
    this.#guard(() => this.engine.start());
  }

  stop(): void {
    this.engine.stop();
  }

  #readable(): void {
    for (let got = this.#socket.recvmsg(); got !== null; got = this.#socket.recvmsg()) {
      if (got.kind === 'congestion') {
        this.engine.congestion(got.mask);
        continue;
      }
      if (got.cookies.length > 0) this.engine.completed(got.cookies);
      if (got.kind === 'data') this.#data(got);
    }
    this.engine.pump();
  }

  #data(got: Extract<Received, { kind: 'data' }>): void {
    // Nearly every message is from the one peer: its address is parsed once, not each time.
    const from = got.address === this.#addressText ? this.#address : (addressNumber(got.address) ?? 0);
    try {
      this.engine.receive(got.data, from, got.port);
    } finally {
      got.recycle();
    }
  }

  #guard(work: () => void): void {
    try {
      work();
    } catch (error) {
      this.engine.stop();
      this.#ending.fail(error);
    }
  }

  #link(config: TaskConfig, hooks: TaskHooks): TaskLink {
    const socket = this.#socket;
    const first = config.remote.firstPort;
    const destinations = Array.from({ length: config.remote.count }, (_, i) => ({
      address: this.#addressText,
      port: first + i,
    }));
    return {
      ...hooks,
      nowUs: () => performance.now() * 1000,
      send(message, port, cookie) {
        const options = cookie === undefined ? {} : { zerocopy: true, cookie };
        try {
          socket.sendmsg(message, destinations[port - first]!, options);
          return 'sent';
        } catch (error) {
          return resultOf(error);
        }
      },
    };
  }
}

function resultOf(error: unknown): SendResult {
  const code = error instanceof ZerotxError ? error.code : undefined;
  if (code === 'EAGAIN') return 'full';
  if (code === 'ENOBUFS') return 'congested';
  if (code === 'ENOMEM') return 'memory';
  throw error;
}
