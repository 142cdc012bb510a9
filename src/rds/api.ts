/**
 * What both transports offer: RdsNode and RdsSocket over TCP in user space (node.ts, socket.ts), KernelRdsNode and KernelRdsSocket
 * over the kernel's own RDS (kernel/). A program that is written against these types runs on either.
 *
 * Where the kernel differs:
 *
 *   peers                  no 'peerUp', 'peerDown' and 'warning': the kernel does not tell; connections are the host's
 *   a destination here     another process's socket is local, too; a lent message completes when its receiver has read it
 *   127/8, ::1             the loopback transport: sendmsg() with `zerocopy` fails with EOPNOTSUPP, send() copies
 *   buffers                limited by net.core.wmem_max and rmem_max; EMSGSIZE over the send buffer that was granted
 *   send() given up        a message that was accepted cannot be taken back alone: ZTX_STILL_LENT
 *   cancelled messages     ECANCELED may be said of one that was acknowledged just before
 *   close()                with memory lent the port is free when it resolves, not at once
 */
import type { MemlockBudget } from '../core/budget.ts';
import type { Outcome } from '../core/ubuf.ts';
import type { RdsInfo } from './info.ts';
import type {
  AwaitReceiveOptions,
  AwaitSendOptions,
  CloseOptions,
  NodeLimits,
  RdsAddress,
  ReceiveOptions,
  SendOptions,
  SocketOptions,
} from './options.ts';
import type { RdsMessage, RdsReceived } from './received.ts';
import type { RdsOptionValues, RdsSocketOptions } from './socket-options.ts';

export interface KernelNodeOptions {
  readonly transport: 'kernel';
  /** The IP address to be at; a link-local one with its zone. */
  readonly address: string;
  /** The account that lent pages are charged to, besides the kernel's. Default: the process's, limited by RLIMIT_MEMLOCK. */
  readonly budget?: MemlockBudget;
  readonly limits?: Pick<Partial<NodeLimits>, 'idlePoolBytes'>;
}

export interface RdsSocketApiEvents {
  /** recvmsg() has something: call it until it returns null. */
  readable: [];
  /** After EAGAIN, ENOBUFS or ENOMEM: worth another try. */
  writable: [];
  close: [];
}

/** See RdsSocket for what each does, and throws. */
export interface RdsSocketApi extends AsyncIterable<RdsMessage, void, void>, AsyncDisposable {
  readonly address: string;
  readonly port: number;
  readonly zerocopy: boolean;
  readonly closed: boolean;
  readonly readable: boolean;
  readonly writable: boolean;
  readonly sendBufferBytes: number;
  readonly receiveBufferBytes: number;
  /** Payload bytes accepted and not acknowledged. */
  readonly queuedBytes: number;
  /** Payload bytes received and not read. */
  readonly unreadBytes: number;
  /** Bytes of the program's memory that are lent. */
  readonly lentBytes: number;
  /** The default destination; null before connect(). */
  readonly remote: RdsAddress | null;
  connect(to: RdsAddress): void;
  sendmsg(data: Uint8Array | readonly Uint8Array[], to?: RdsAddress, options?: SendOptions): number;
  send(
    data: Uint8Array | readonly Uint8Array[],
    to?: RdsAddress,
    options?: AwaitSendOptions,
  ): Promise<Outcome>;
  recvmsg(options?: ReceiveOptions): RdsReceived | null;
  receive(options?: AwaitReceiveOptions): Promise<RdsReceived>;
  recvErrqueue(): { readonly origin: 'ZCOOKIE'; readonly cookies: readonly number[] } | null;
  cancelSentTo(to: RdsAddress | string): void;
  setsockopt<Name extends keyof RdsOptionValues>(name: Name, value: RdsOptionValues[Name]): void;
  getsockopt<Name extends keyof RdsSocketOptions>(name: Name): RdsSocketOptions[Name];
  close(options?: CloseOptions): Promise<void>;
  on(event: keyof RdsSocketApiEvents, listener: () => void): unknown;
  once(event: keyof RdsSocketApiEvents, listener: () => void): unknown;
  off(event: keyof RdsSocketApiEvents, listener: () => void): unknown;
}

/** See RdsNode for what each does, and throws. */
export interface RdsNodeApi extends AsyncDisposable {
  readonly address: string;
  readonly closed: boolean;
  bind(port: number, options?: SocketOptions): RdsSocketApi;
  info(options?: { readonly limit?: number }): RdsInfo;
  close(options?: CloseOptions): Promise<void>;
}

/** What a node of the kernel's RDS holds, as plain numbers; all else is in info(). */
export interface KernelNodeStats {
  readonly address: string;
  /** Open ones. */
  readonly sockets: number;
  /** Bytes of the program's memory that are lent by sockets, open or closed. */
  readonly lentBytes: number;
  /** Of these, withdrawn and perhaps still read by TCP, watched; and watched in vain for a minute. */
  readonly settlingBytes: number;
  readonly quarantinedBytes: number;
  readonly idlePoolBytes: number;
  readonly budget: { readonly usedPages: number; readonly limitPages: number };
}
