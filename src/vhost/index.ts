/**
 * zerotx/vhost: network devices for virtual machines, in user space. VhostUserDevice is the device that a guest plugs into;
 * VhostUserFrontend is the driver side, which plugs a Node program into any vhost-user back-end.
 */
export type { Capability, FrameReceiver, Port, PortCounters } from '../core/port.ts';
export { OFFLOAD_ALL, OFFLOAD_CSUM, OFFLOAD_ECN, OFFLOAD_TSO4, OFFLOAD_TSO6 } from '../core/port.ts';
export {
  VhostUserDevice,
  type VhostUserDeviceEvents,
  type VhostUserDeviceOptions,
  type VhostUserDeviceStats,
} from './device.ts';
export {
  type SendOptions,
  VhostUserFrontend,
  type VhostUserFrontendEvents,
  type VhostUserFrontendStats,
} from './frontend.ts';
export type { FrameSet, PrepareOptions } from './frontend-frames.ts';
export type { VhostUserFrontendOptions } from './frontend-options.ts';
export type { Vnet } from './frontend-vnet.ts';
