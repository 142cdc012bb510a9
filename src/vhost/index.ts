/**
 * `zerotx/vhost`: network devices for virtual machines, in user space. VhostUserDevice is the device that a guest plugs into;
 * VhostUserFrontend is the driver side, which plugs a Node program into any vhost-user back-end.
 *
 *   import { createTap } from 'zerotx/ports';
 *   import { Link, systemClock } from 'zerotx/switch';
 *   import { VhostUserDevice } from 'zerotx/vhost';
 *
 *   const device = new VhostUserDevice({ path: 'vm1.sock' });
 *   const tap = createTap({ name: 'lan', device: 'tap0' });
 *   new Link(device, tap, { clock: systemClock });
 *   await Promise.all([tap.open(), device.open()]);        // then start QEMU, which connects to vm1.sock
 *
 * For programs that run virtual machines, or play one. Importing this loads no addon; opening a device or making a front-end does.
 */
export { type Next, ZerotxError } from '../core/errors.ts';
export {
  type FrameOwner,
  type FrameTable,
  GSO_ECN,
  GSO_NONE,
  GSO_TCPV4,
  GSO_TCPV6,
  VNET_DATA_VALID,
  VNET_NEEDS_CSUM,
} from '../core/frames.ts';
export type { HistogramSnapshot } from '../core/histogram.ts';
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
export {
  type Features,
  features,
  has,
  or,
  VIRTIO_F_EVENT_IDX,
  VIRTIO_F_IN_ORDER,
  VIRTIO_F_INDIRECT_DESC,
  VIRTIO_NET_F_MRG_RXBUF,
  without,
} from '../wire/virtio.ts';
export type { ChainCounters } from './chain.ts';
export {
  VhostUserDevice,
  type VhostUserDeviceEvents,
  type VhostUserDeviceStats,
} from './device.ts';
export type { VhostUserDeviceOptions } from './device-options.ts';
export type { Frontend } from './features.ts';
export {
  type SendOptions,
  VhostUserFrontend,
  type VhostUserFrontendEvents,
  type VhostUserFrontendStats,
} from './frontend.ts';
export { FRONTEND_FEATURES, FRONTEND_PROTOCOL_FEATURES } from './frontend-features.ts';
export type { FrameSet, PrepareOptions } from './frontend-frames.ts';
export type { VhostUserFrontendOptions } from './frontend-options.ts';
export type { Agreement } from './frontend-protocol.ts';
export type { ReceiveCounters, ReceiveQueue } from './frontend-receive.ts';
export type { RingCounters } from './frontend-ring.ts';
export type { TransmitCounters, TransmitQueue } from './frontend-transmit.ts';
export type { Vnet } from './frontend-vnet.ts';
export type { LedgerCounters } from './ledger-counters.ts';
export type { DeviceCounters } from './net-device.ts';
export type { SignalCounters } from './ring-fds.ts';
export type { RxCounters } from './rx.ts';
export type { ServerCounters, ServerState } from './server.ts';
