/** One remote end of a VXLAN: its sockets, one of which a flow keeps to, and what is known of lending to it. */

import type { Clock } from '../core/clock.ts';
import type { PortCounters } from '../core/port.ts';
import type { ZerocopyCounters } from '../net/counters.ts';
import { isLocalAddress } from '../net/local.ts';
import { type ZerocopyMode, ZerocopyPolicy } from '../net/policy.ts';
import type { Native } from '../sys/binding.ts';
import { encodeSockaddr } from '../wire/sockaddr.ts';
import type { LendChooser } from './chooser.ts';
import { POLICY_BYTES_MIN } from './lending.ts';
import { leaveOutChecksum, openVxlanSender } from './vxlan-socket.ts';
import { VxlanSender } from './vxlan-tx.ts';

export interface VxlanRemoteOptions {
  readonly address: string;
  readonly port: number;
  readonly local?: string;
  readonly sockets: number;
  readonly bufferBytes: number;
  readonly mode: ZerocopyMode;
  readonly sys: Native;
  readonly clock: Clock;
  readonly counters: PortCounters;
  readonly zerocopy: ZerocopyCounters;
  readonly chooser: LendChooser | null;
  readonly headers: () => Uint8Array;
  readonly writable: () => void;
}

/** Where sockaddr_in and sockaddr_in6 have the address. */
const IPV4_AT = 4;
const IPV4_END = 8;
const IPV6_AT = 8;
const IPV6_END = 24;

export class VxlanRemote {
  readonly #senders: VxlanSender[] = [];
  /** Its address as a source has it. */
  readonly #sockaddr: Uint8Array;
  readonly #at: number;
  readonly #end: number;

  /** Throws what socket(2) and connect(2) refuse; nothing stays open then. */
  constructor(options: VxlanRemoteOptions) {
    const { address, port } = options;
    const isIpv4 = !address.includes(':');
    this.#sockaddr = encodeSockaddr(address, port);
    this.#at = isIpv4 ? IPV4_AT : IPV6_AT;
    this.#end = isIpv4 ? IPV4_END : IPV6_END;
    try {
      for (let i = 0; i < options.sockets; i++) this.#senders.push(this.#open(options));
    } catch (error) {
      this.close();
      throw error;
    }
  }

  /** Whether the socket address at `at` is of this end; its port may be any. */
  isSource(sockaddrs: Uint8Array, at: number): boolean {
    for (let i = this.#at; i < this.#end; i++) if (sockaddrs[at + i] !== this.#sockaddr[i]) return false;
    return true;
  }

  senderFor(hash: number): VxlanSender {
    return this.#senders[hash % this.#senders.length] as VxlanSender;
  }

  close(): void {
    for (const sender of this.#senders.splice(0)) sender.close();
  }

  #open(options: VxlanRemoteOptions): VxlanSender {
    const { address, local, port, bufferBytes, mode, sys } = options;
    const { fd, canLend, canCut } = openVxlanSender(address, local, port, bufferBytes);
    const policy = new ZerocopyPolicy({
      mode: canLend ? mode : 'off',
      thresholdBytes: POLICY_BYTES_MIN,
      loopback: () => isLocalAddress(address),
    });
    try {
      const onUncut = (): void => leaveOutChecksum(fd, address);
      return new VxlanSender({ ...options, fd, policy, borrower: this, canCut, onUncut });
    } catch (error) {
      sys.close(fd);
      throw error;
    }
  }
}
