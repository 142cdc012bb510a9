/**
 * KernelRdsNode: one IP address of this host as the end point of the kernel's own RDS, with the methods of RdsNode.
 *
 * Needs a kernel with the module rds_tcp loaded; it listens on TCP port 16385 of every address then, so a user-space node
 * cannot be open on the same host (network namespaces included). A node holds nothing but one unbound descriptor, for questions:
 * connections, retransmission and congestion are the kernel's, shared by all of the host.
 */
import { EventEmitter } from 'node:events';
import { checkInteger } from '../../core/arguments.ts';
import type { MemlockBudget } from '../../core/budget.ts';
import { errnoError, errnoName, ZerotxError } from '../../core/errors.ts';
import { processBudget } from '../../net/budget.ts';
import { native } from '../../sys/binding.ts';
import { AF_RDS, SOCK_SEQPACKET } from '../../sys/constants.ts';
import { rdsInfo } from '../../sys/rds.ts';
import { decodeSockaddr, SOCKADDR_BYTES } from '../../wire/sockaddr.ts';
import { ownHost, type RdsHost } from '../address.ts';
import type { KernelNodeOptions, KernelNodeStats, RdsNodeApi } from '../api.ts';
import { processRuntime } from '../environment.ts';
import type { MessageInfo, QueueName, RdsInfo, TcpSocketInfo } from '../info.ts';
import { BufferPool } from '../memory.ts';
import { QUEUE_LISTED_MAX } from '../node-info.ts';
import {
  type CloseOptions,
  checkNodeOptions,
  checkSocketOptions,
  closeOptionsError,
  defaultLimits,
  type SocketOptions,
} from '../options.ts';
import type { Runtime } from '../transport.ts';
import { AddressBook, sockaddrOf, withoutZone } from './address.ts';
import {
  decodeConnections,
  decodeCounters,
  decodeMessages,
  decodeSockets,
  decodeTcpSockets,
  infoNumbers,
  type KernelRecords,
} from './info.ts';
import { Settling } from './settling.ts';
import { KernelRdsSocket } from './socket.ts';

type QueueKind = 'sendMessages' | 'retransmitMessages' | 'receiveMessages';

/** What info() calls them. */
const queueNames = {
  sendMessages: 'sendQueue',
  retransmitMessages: 'retransmitQueue',
  receiveMessages: 'receiveQueue',
} as const satisfies Record<QueueKind, QueueName>;

export class KernelRdsNode extends EventEmitter<{ close: [] }> implements RdsNodeApi {
  readonly address: string;
  readonly transport = 'kernel';
  readonly runtime: Runtime = processRuntime;
  readonly budget: MemlockBudget;
  readonly pool: BufferPool;
  readonly book: AddressBook;
  readonly settling: Settling;
  readonly #host: RdsHost;
  /** Without an address: for questions. */
  #fd: number;
  readonly #sockets = new Set<KernelRdsSocket>();
  #closing: Promise<void> | null = null;

  /** Programs use RdsNode.open({ transport: 'kernel' }), which says what it throws. */
  static open(options: KernelNodeOptions): KernelRdsNode {
    const { transport: _, ...rest } = options;
    checkNodeOptions(rest);
    for (const name of ['allow', 'keys', 'mode', 'thresholdBytes', 'lanes'] as const) {
      if ((options as unknown as Record<string, unknown>)[name] === undefined) continue;
      const text = `open EINVAL: options.${name} is for transport 'tcp': the kernel's RDS decides that itself`;
      throw new ZerotxError('EINVAL', text, { syscall: 'open' });
    }
    return new KernelRdsNode(options);
  }

  private constructor(options: KernelNodeOptions) {
    super();
    this.#host = ownHost(options.address);
    this.address = this.#host.address;
    this.budget = options.budget ?? processBudget();
    this.pool = new BufferPool(options.limits?.idlePoolBytes ?? defaultLimits.idlePoolBytes);
    this.book = new AddressBook(this.#host);
    this.settling = new Settling(this.runtime, () => this.#tcpSocketsNow());
    this.#fd = openSocket();
    try {
      // Port 0 is any: whether RDS can be here is known now, and not at the first bind().
      native().close(this.#bound(0, 'open'));
    } catch (error) {
      native().close(this.#fd);
      throw error;
    }
  }

  get closed(): boolean {
    return this.#closing !== null;
  }

  bind(port: number, options: SocketOptions = {}): KernelRdsSocket {
    checkSocketOptions(port, options);
    if (this.closed)
      throw new ZerotxError('ENOTCONN', 'bind ENOTCONN: the node is closed', { syscall: 'bind' });
    const fd = this.#bound(port, 'bind');
    try {
      const name = new Uint8Array(SOCKADDR_BYTES);
      const bound = decodeSockaddr(name, native().getsockname(fd, name)).port;
      const socket = new KernelRdsSocket(this, fd, bound, options);
      this.#sockets.add(socket);
      return socket;
    } catch (error) {
      native().close(fd);
      throw error;
    }
  }

  /** What the kernel shows of this address, as RdsNode.info(); its counters are those of the host. Throws ENOTCONN when the node is closed. */
  info({ limit = QUEUE_LISTED_MAX }: { readonly limit?: number } = {}): RdsInfo {
    checkInteger('options.limit', limit, 0, Number.MAX_SAFE_INTEGER);
    if (this.closed)
      throw new ZerotxError('ENOTCONN', 'info ENOTCONN: the node is closed', { syscall: 'info' });
    const own = withoutZone(this.address);
    const isOwn = ({ localAddress }: { localAddress: string }): boolean => localAddress === own;
    const leftOut: Record<QueueName, number> = { sendQueue: 0, retransmitQueue: 0, receiveQueue: 0 };
    const queue = (kind: QueueKind): MessageInfo[] => {
      const all = this.#messages(kind).filter(isOwn);
      leftOut[queueNames[kind]] = Math.max(0, all.length - limit);
      return all.slice(0, limit);
    };
    return {
      counters: this.#ask('counters', decodeCounters) ?? {},
      sockets: (this.#ask('sockets', decodeSockets) ?? []).filter(({ address }) => address === own),
      connections: (this.#ask('connections', decodeConnections) ?? []).filter(isOwn),
      sendQueue: queue('sendMessages'),
      retransmitQueue: queue('retransmitMessages'),
      receiveQueue: queue('receiveMessages'),
      tcpSockets: this.#tcpSockets().filter(isOwn),
      leftOut,
    };
  }

  stats(): KernelNodeStats {
    const { budget, settling } = this;
    let lentBytes = 0;
    for (const socket of this.#sockets) lentBytes += socket.lentBytes;
    return {
      address: this.address,
      sockets: [...this.#sockets].filter(({ closed }) => !closed).length,
      lentBytes,
      settlingBytes: settling.bytes,
      quarantinedBytes: settling.quarantinedBytes,
      idlePoolBytes: this.pool.idleBytes,
      budget: { usedPages: budget.used(), limitPages: budget.limitPages },
    };
  }

  close(options: CloseOptions = {}): Promise<void> {
    const wrong = closeOptionsError(options);
    if (wrong !== null) return Promise.reject(wrong);
    this.#closing ??= this.#close(options);
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  // --- for sockets ---

  /** Messages of the socket at `port` that wait to be sent or acknowledged. */
  queued(port: number): MessageInfo[] {
    const both = [...this.#messages('sendMessages'), ...this.#messages('retransmitMessages')];
    return both.filter((each) => this.#isAt(each, port));
  }

  /** Messages that wait to be read. */
  unread(port: number): MessageInfo[] {
    return this.#messages('receiveMessages').filter((each) => this.#isAt(each, port));
  }

  /** Pages are back in the budget: whoever waits for some tries again. */
  memoryCameBack(): void {
    for (const socket of this.#sockets) if (socket.waitsForMemory) socket.eventsDue();
  }

  /** Its descriptor is closed. */
  forget(socket: KernelRdsSocket): void {
    this.#sockets.delete(socket);
    this.#closeIfUnused();
  }

  async #close(options: CloseOptions): Promise<void> {
    const results = await Promise.allSettled([...this.#sockets].map((socket) => socket.close(options)));
    this.#closeIfUnused();
    this.emit('close');
    const failed = results.find((result) => result.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
  }

  /** Sockets that linger still ask what TCP holds. */
  #closeIfUnused(): void {
    if (!this.closed || this.#sockets.size > 0 || this.#fd < 0) return;
    native().close(this.#fd);
    this.#fd = -1;
  }

  /** A new descriptor, bound to this address. */
  #bound(port: number, syscall: string): number {
    const fd = openSocket();
    const result = native().bind(fd, sockaddrOf(this.#host, port));
    if (result >= 0) return fd;
    native().close(fd);
    const hint = bindHints[errnoName(result)];
    const details = { address: this.address, port, ...(hint === undefined ? {} : { hint }) };
    throw errnoError(result, syscall, details);
  }

  /** Null when the kernel is short of memory. */
  #tcpSocketsNow(): TcpSocketInfo[] | null {
    try {
      return this.#tcpSockets();
    } catch {
      return null;
    }
  }

  #tcpSockets(): TcpSocketInfo[] {
    return this.#ask('tcpSockets', decodeTcpSockets) ?? [];
  }

  #messages(kind: QueueKind): MessageInfo[] {
    return this.#ask(kind, decodeMessages) ?? [];
  }

  #isAt({ localAddress, localPort }: MessageInfo, port: number): boolean {
    return localPort === port && localAddress === withoutZone(this.address);
  }

  /** The form with both families, or where the kernel has no IPv6 the older one; null if it has neither. */
  #ask<T>(kind: keyof typeof infoNumbers, decode: (records: KernelRecords) => T): T | null {
    const numbers = infoNumbers[kind];
    const ipv6 = rdsInfo(this.#fd, numbers.ipv6);
    if (ipv6 !== null) return decode({ ...ipv6, ipv6: true });
    const ipv4 = rdsInfo(this.#fd, numbers.ipv4);
    return ipv4 === null ? null : decode({ ...ipv4, ipv6: false });
  }
}

const bindHints: Readonly<Record<string, string>> = {
  EADDRINUSE: 'another RDS socket of this host has the port; 0 takes a free one',
  EADDRNOTAVAIL:
    "no address of this host, or the module rds_tcp is not loaded: modprobe rds_tcp, or transport: 'tcp'",
  EINVAL: 'port 1 is reserved for the handshake',
};

/** A socket of AF_RDS, non-blocking. */
function openSocket(): number {
  const fd = native().socket(AF_RDS, SOCK_SEQPACKET, 0);
  if (fd >= 0) return fd;
  const hint =
    "this kernel has no RDS loaded: modprobe rds_tcp (Debian does not load it by itself), or transport: 'tcp'";
  throw errnoError(fd, 'socket', { hint });
}
