/**
 * What a lab file says, as options of the switch and its ports. docs/vm-lab.md is its reference; what is read here is checked here,
 * so that nothing of it is refused later but by the system.
 */
import type {
  DgramOptions,
  PcapOptions,
  StreamOptions,
  TapPortOptions,
  VxlanOptions,
} from '../../ports/index.ts';
import type { Faults, SwitchOptions, SwitchPortOptions } from '../../switch/index.ts';
import type { VhostUserDeviceOptions } from '../../vhost/index.ts';

export const KINDS = ['vhost', 'tap', 'macvtap', 'stream', 'dgram', 'vxlan', 'pcap'] as const;
export type Kind = (typeof KINDS)[number];

export type PortSpec =
  | { readonly kind: 'vhost'; readonly options: VhostUserDeviceOptions }
  | { readonly kind: 'tap' | 'macvtap'; readonly options: TapPortOptions }
  | { readonly kind: 'stream'; readonly options: StreamOptions }
  | { readonly kind: 'dgram'; readonly options: DgramOptions }
  | { readonly kind: 'vxlan'; readonly options: VxlanOptions }
  | { readonly kind: 'pcap'; readonly options: PcapOptions };

export interface LabFaults {
  readonly seed?: number;
  /** Of what comes out of the port, and of what goes to it. */
  readonly rx?: Faults;
  readonly tx?: Faults;
}

export interface LabCapture {
  /** Absolute path. */
  readonly file: string;
  readonly snapBytes?: number;
}

export interface LabPort {
  readonly name: string;
  readonly port: PortSpec;
  readonly join: SwitchPortOptions;
  readonly faults: LabFaults | null;
  readonly capture: LabCapture | null;
}

export interface Lab {
  readonly options: Omit<SwitchOptions, 'clock'>;
  readonly ports: readonly LabPort[];
}

type Given<T> = { [K in keyof T]?: Exclude<T[K], undefined> };

/** The values that are there. */
export function given<T extends object>(values: T): Given<T> {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as Given<T>;
}
