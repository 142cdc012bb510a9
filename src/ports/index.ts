/**
 * `zerotx/ports`: where Ethernet frames come from and go to, besides guests: taps, streams and datagrams to other
 * programs, tunnels to other hosts, capture files.
 *
 *   import { createTap, parsePort } from 'zerotx/ports';
 *
 *   const lan = createTap({ name: 'lan', device: 'tap0' });
 *   const away = parsePort('vxlan:vni=42,remote=192.0.2.7');
 *   lan.receiver = (table, from) => { ... };              // or join them with zerotx/switch
 *   await lan.open();
 *
 * For programs that join ports, by a switch or by hand. A port is opened once and closed once. Taps and macvtaps need
 * CAP_NET_ADMIN, or a device that was made for this user; everything else needs nothing.
 */
import { type DgramOptions, DgramPort } from './dgram.ts';
import { MacvtapPort } from './macvtap.ts';
import { type PcapOptions, PcapPort } from './pcap.ts';
import { type StreamOptions, StreamPort } from './stream.ts';
import { TapPort, type TapPortOptions } from './tap.ts';
import { type VxlanOptions, VxlanPort } from './vxlan.ts';

export type { Clock } from '../core/clock.ts';
export { type Next, ZerotxError } from '../core/errors.ts';
export type { FrameOwner, FrameTable } from '../core/frames.ts';
export {
  type Capability,
  type FrameReceiver,
  OFFLOAD_ALL,
  OFFLOAD_CSUM,
  OFFLOAD_ECN,
  OFFLOAD_TSO4,
  OFFLOAD_TSO6,
  type Port,
  type PortCounters,
  type ZerocopyCapability,
} from '../core/port.ts';
export type { CopyCause, ZerocopyCounters } from '../net/counters.ts';
export type { ZerocopyMode } from '../net/policy.ts';
export { dropPrivileges, forbidNewPrivileges, type Identity } from '../sys/privileges.ts';
export type { DgramAddress, DgramOptions } from './dgram.ts';
export { PORT_KINDS, type PortKind, parsePort } from './parse.ts';
export type { PcapOptions } from './pcap.ts';
export type { StreamOptions } from './stream.ts';
export type { TapPortOptions } from './tap.ts';
export type { VxlanCounters, VxlanOptions } from './vxlan.ts';
export { DgramPort, MacvtapPort, PcapPort, StreamPort, TapPort, VxlanPort };

/** A tap, which open() opens, and makes if it is not there. Throws ERR_OUT_OF_RANGE. */
export function createTap(options: TapPortOptions): TapPort {
  return new TapPort(options);
}

/** A macvtap that is there. Throws ERR_OUT_OF_RANGE. */
export function createMacvtap(options: TapPortOptions): MacvtapPort {
  return new MacvtapPort(options);
}

/** A byte stream to another program. Throws EINVAL, ENAMETOOLONG. */
export function createStream(options: StreamOptions): StreamPort {
  return new StreamPort(options);
}

/** Datagrams to another program. Throws EINVAL. */
export function createDgram(options: DgramOptions): DgramPort {
  return new DgramPort(options);
}

/** A tunnel to other hosts. Throws EINVAL, ERR_OUT_OF_RANGE. */
export function createVxlan(options: VxlanOptions): VxlanPort {
  return new VxlanPort(options);
}

/** A capture file, to write, to receive from, or both. */
export function createPcap(options: PcapOptions): PcapPort {
  return new PcapPort(options);
}
