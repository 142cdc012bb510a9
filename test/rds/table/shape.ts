/**
 * The table of what calls of RDS sockets do: rows of a name, a call and what comes of it, in words of the kernel's documentation
 * and sources (net/rds: bind.c, af_rds.c, send.c, recv.c). The rows know nothing of the transport: a factory opens the nodes, and
 * what a transport does otherwise stands in deviations.ts, each with its reason.
 *
 * Everything here is structural, so that sockets of any transport fit: it is the part of the API that rows use.
 */
import { ZerotxError } from '../../../src/core/errors.ts';
import type { RdsAddress, SendOptions, SocketOptions } from '../../../src/rds/options.ts';
import type { RdsOptionValues, RdsSocketOptions } from '../../../src/rds/socket-options.ts';

export type TransportName = 'tcp' | 'kernel';

/** What recvmsg() returns, as rows look at it. */
export interface TableReceived {
  readonly kind: 'data' | 'completion' | 'congestion';
  readonly cookies?: readonly number[];
  readonly mask?: bigint;
  readonly data?: Uint8Array;
  readonly length?: number;
  readonly fullLength?: number;
  readonly truncated?: boolean;
  readonly address?: string;
  readonly port?: number;
  readonly timestamp?: number | null;
  readonly latency?: readonly { readonly point: number; readonly ns: number }[] | null;
}

interface Receiving {
  peek?: boolean;
  control?: boolean;
  maxBytes?: number;
  trunc?: boolean;
}

export interface TableSocket {
  readonly address: string;
  readonly port: number;
  readonly readable: boolean;
  readonly writable: boolean;
  readonly remote: RdsAddress | null;
  connect(to: RdsAddress): void;
  sendmsg(data: Uint8Array | readonly Uint8Array[], to?: RdsAddress, options?: SendOptions): number;
  send(data: Uint8Array, to?: RdsAddress, options?: { timeoutMs?: number }): Promise<unknown>;
  recvmsg(options?: Receiving): TableReceived | null;
  receive(options?: Receiving & { timeoutMs?: number; signal?: AbortSignal }): Promise<TableReceived>;
  setsockopt<Name extends keyof RdsOptionValues>(name: Name, value: RdsOptionValues[Name]): void;
  getsockopt<Name extends keyof RdsSocketOptions>(name: Name): RdsSocketOptions[Name];
  close(options?: { drain?: boolean; timeoutMs?: number }): Promise<void>;
}

export interface TableNode {
  readonly address: string;
  bind(port: number, options?: SocketOptions): TableSocket;
  close(options?: { timeoutMs?: number }): Promise<void>;
}

/** What runs the table over a transport brings. */
export interface Factory {
  readonly transport: TransportName;
  /** Two addresses of this host, of one family. */
  readonly addresses: readonly [string, string];
  /** One of the same family that nobody answers on: what is sent there waits. */
  readonly absent: string;
  open(address: string): Promise<TableNode>;
}

/** What a row works with; its sockets are closed behind it. */
export interface Scene {
  readonly factory: Factory;
  /** The two nodes, open for the whole table. */
  readonly a: TableNode;
  readonly b: TableNode;
  /** A socket of `a`, or of `b`, on a free port. */
  socket(options?: SocketOptions): TableSocket;
  peer(options?: SocketOptions): TableSocket;
  /** Any port of the absent address. */
  readonly absent: RdsAddress;
  /** Resolves when the condition holds; rejects when it does not in time. */
  until(condition: () => boolean): Promise<void>;
}

export interface Row {
  readonly name: string;
  /** Returns plain data. */
  readonly call: (scene: Scene) => unknown;
  /** The code of the error, as text, or the data: what the kernel does. */
  readonly expected: unknown;
}

export interface Group {
  readonly name: string;
  /** In the order of the kernel's checks. */
  readonly rows: readonly Row[];
}

/** What one transport does otherwise. */
export interface Deviation {
  readonly transport: TransportName;
  /** `group: row`, as rowName() gives it. */
  readonly row: string;
  /** Instead of `expected`. */
  readonly instead: unknown;
  readonly reason: string;
}

export function rowName(group: Group, row: Row): string {
  return `${group.name}: ${row.name}`;
}

/** The code that a call fails with, or what it returns. */
export function codeOr<T>(call: () => T): T | string {
  try {
    return call();
  } catch (error) {
    return codeOfError(error);
  }
}

export function codeOfError(error: unknown): string {
  if (error instanceof ZerotxError) return error.code;
  throw error;
}

/** A text as a message, and back. */
export function bytes(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

export function textOf(received: TableReceived | null): string | null {
  return received?.data === undefined ? null : new TextDecoder().decode(received.data);
}

/** Where a socket is. */
export function of(socket: TableSocket): RdsAddress {
  return { address: socket.address, port: socket.port };
}
