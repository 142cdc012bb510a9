/**
 * `zerotx/switch`: joins ports. A Switch any number of them, by address; a Link two. Ports come from `zerotx/ports` and
 * `zerotx/vhost`, or are yours: anything that implements `Port`.
 *
 *   import { Switch, systemClock, withFaults } from 'zerotx/switch';
 *   const lan = new Switch({ clock: systemClock });
 *   lan.add(guest, { vlan: { access: 5 }, macs: ['52:54:00:12:34:56'] });
 *   lan.add(withFaults(uplink, { clock: systemClock, tx: { lossPercent: 1, delayMs: 20 } }), { vlan: { trunk: [5, 6] } });
 *   await Promise.all([guest.open(), uplink.open()]);
 *
 * Middleware are ports around ports, so they go wherever a port goes. Importing this loads no addon, and nothing here needs one.
 */

export type { Clock } from '../core/clock.ts';
export { type Next, ZerotxError } from '../core/errors.ts';
export {
  FRAME_BYTES,
  FRAME_SLOT,
  FRAME_STATUS,
  FRAME_VLAN,
  FRAME_WORDS,
  type FrameOwner,
  FrameTable,
  type FrameTableOptions,
  frameTableBytes,
  GSO_ECN,
  GSO_NONE,
  GSO_TCPV4,
  GSO_TCPV6,
  HEAD_AT,
  HEAD_BYTES,
  HEADROOM_BYTES,
  TAIL_COUNT,
  TAIL_START,
  VNET_CSUM,
  VNET_DATA_VALID,
  VNET_FLAGS,
  VNET_GSO,
  VNET_NEEDS_CSUM,
} from '../core/frames.ts';
export { createHostTable } from '../core/host-table.ts';
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
  portCounters,
  type ZerocopyCapability,
} from '../core/port.ts';
export type { Outcome, Ubuf } from '../core/ubuf.ts';
export { systemClock } from './clock.ts';
export type { EgressCounters } from './egress.ts';
export { Link, type LinkCounters, type LinkOptions } from './link.ts';
export { type FaultOptions, FaultPort, withFaults } from './middleware/fault.ts';
export type { FaultCounters, Faults } from './middleware/fault-path.ts';
export { type CapturedFrame, type CaptureOptions, CapturePort, withCapture } from './middleware/pcap.ts';
export { Wrapper } from './middleware/wrapper.ts';
export type { Rate, StormLimits } from './storm.ts';
export { type FdbListing, Switch, type SwitchOptions, type SwitchStats } from './switch.ts';
export type { IngressCounters, SwitchPortCounters, SwitchPortOptions } from './switch-port.ts';
export type { VlanOptions } from './vlan.ts';
