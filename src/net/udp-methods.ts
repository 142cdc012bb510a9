/**
 * The methods of a UDP socket that set and get options of its descriptor: one line each, with the checks of node:dgram.
 *
 * Before the socket is bound there is no descriptor yet: joining a group binds it, buffer sizes throw ERR_SOCKET_BUFFER_SIZE,
 * and all others EBADF.
 */
import { EventEmitter } from 'node:events';
import { checkString, wrongType } from '../core/arguments.ts';
import { assert } from '../core/assert.ts';
import { errnoError, errnoOf, ZerotxError } from '../core/errors.ts';
import * as calls from '../sys/calls.ts';
import { SO_RCVBUF, SO_SNDBUF, SOL_SOCKET } from '../sys/constants.ts';
import { nodeTypeError } from './node-errors.ts';
import type { UdpSocketEvents } from './udp-options.ts';
import { UdpSockopts } from './udp-sockopts.ts';
import type { UdpType } from './udp-target.ts';

/** What the methods need of the socket. */
export interface DescriptorAccess {
  /** Undefined before the socket is bound, and after it is closed. */
  fd(): number | undefined;
  /** Throws if the socket is closed. */
  checkRunning(): void;
  /** Binds an unbound socket to all addresses and a port of the kernel's choice. */
  bindNow(): void;
}

const EBADF = -errnoOf('EBADF');

let attach: (socket: UdpOptionMethods, access: DescriptorAccess) => void;

export class UdpOptionMethods extends EventEmitter<UdpSocketEvents> {
  readonly type: UdpType;
  readonly #sockopts: UdpSockopts;
  #access: DescriptorAccess | null = null;

  constructor(type: UdpType) {
    super();
    this.type = type;
    this.#sockopts = new UdpSockopts(type, () => this.#access?.fd());
  }

  static {
    attach = (socket, access) => {
      socket.#access = access;
    };
  }

  setBroadcast(on: boolean): void {
    this.#sockopts.setBroadcast(Boolean(on));
  }

  /** 1 to 255. */
  setTTL(ttl: number): number {
    if (typeof ttl !== 'number') throw wrongType('ttl', 'of type number', ttl);
    this.#sockopts.setTtl('setTTL', 'ttl', ttl);
    return ttl;
  }

  /** 0 (this host) to 255. */
  setMulticastTTL(ttl: number): number {
    if (typeof ttl !== 'number') throw wrongType('ttl', 'of type number', ttl);
    this.#sockopts.setTtl('setMulticastTTL', 'multicastTtl', ttl);
    return ttl;
  }

  setMulticastLoopback(on: boolean): boolean {
    this.#sockopts.setMulticastLoopback(Boolean(on));
    return on;
  }

  /** An address of the interface (IPv4), or its zone: `::%eth0`. */
  setMulticastInterface(interfaceAddress: string): void {
    this.#checkRunning();
    checkString('interfaceAddress', interfaceAddress);
    this.#sockopts.setMulticastInterface(interfaceAddress);
  }

  /** Binds an unbound socket to all addresses and a port of the kernel's choice. */
  addMembership(multicastAddress: string, interfaceAddress?: string): void {
    this.#checkGroup(multicastAddress);
    this.#access?.bindNow();
    this.#sockopts.membership('addMembership', multicastAddress, interfaceAddress);
  }

  dropMembership(multicastAddress: string, interfaceAddress?: string): void {
    this.#checkGroup(multicastAddress);
    this.#sockopts.membership('dropMembership', multicastAddress, interfaceAddress);
  }

  /** As addMembership(), for what one sender sends to the group. */
  addSourceSpecificMembership(sourceAddress: string, groupAddress: string, interfaceAddress?: string): void {
    this.#checkSource(sourceAddress, groupAddress);
    this.#access?.bindNow();
    const call = 'addSourceSpecificMembership';
    this.#sockopts.sourceMembership(call, sourceAddress, groupAddress, interfaceAddress);
  }

  dropSourceSpecificMembership(sourceAddress: string, groupAddress: string, interfaceAddress?: string): void {
    this.#checkSource(sourceAddress, groupAddress);
    const call = 'dropSourceSpecificMembership';
    this.#sockopts.sourceMembership(call, sourceAddress, groupAddress, interfaceAddress);
  }

  /** As the kernel counts, which is twice what was asked for. */
  getRecvBufferSize(): number {
    return this.#bufferSize(SO_RCVBUF, 0);
  }

  getSendBufferSize(): number {
    return this.#bufferSize(SO_SNDBUF, 0);
  }

  setRecvBufferSize(bytes: number): void {
    this.#bufferSize(SO_RCVBUF, bytes);
  }

  setSendBufferSize(bytes: number): void {
    this.#bufferSize(SO_SNDBUF, bytes);
  }

  /** Sets unless `bytes` is 0, and gets. */
  #bufferSize(option: number, bytes: number): number {
    if (bytes >>> 0 !== bytes) {
      throw nodeTypeError('ERR_SOCKET_BAD_BUFFER_SIZE', 'Buffer size must be a positive integer');
    }
    const fd = this.#access?.fd();
    try {
      if (fd === undefined) throw errnoError(EBADF, 'getsockopt');
      if (bytes > 0) calls.setOption(fd, SOL_SOCKET, option, bytes);
      return calls.getOption(fd, SOL_SOCKET, option);
    } catch (cause) {
      const text = `Could not get or set buffer size: ${(cause as Error).message}`;
      throw new ZerotxError('ERR_SOCKET_BUFFER_SIZE', text, { cause });
    }
  }

  #checkRunning(): void {
    assert(this.#access !== null, 'a socket without access to its descriptor');
    this.#access.checkRunning();
  }

  #checkGroup(multicastAddress: unknown): void {
    this.#checkRunning();
    if (!multicastAddress) {
      throw nodeTypeError('ERR_MISSING_ARGS', 'The "multicastAddress" argument must be specified');
    }
    checkString('multicastAddress', multicastAddress);
  }

  #checkSource(sourceAddress: unknown, groupAddress: unknown): void {
    this.#checkRunning();
    checkString('sourceAddress', sourceAddress);
    checkString('groupAddress', groupAddress);
  }
}

/** Gives the methods of `socket` a descriptor to work on. For its constructor. */
export function attachDescriptor(socket: UdpOptionMethods, access: DescriptorAccess): void {
  attach(socket, access);
}
