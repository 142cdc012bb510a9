/** Ports of a lab file that are right one by one, and wrong together: who claims what another one has. */
import type { LabDocument, Place } from './document.ts';
import type { Kind, Lab, LabPort, PortSpec } from './lab.ts';
import type { Section } from './section.ts';

export interface PortPlaces {
  readonly section: Section;
  /** Of its name. */
  readonly place: Place;
}

const MTU_DEFAULT = 1500;
const VXLAN_MTU_DEFAULT = 1450;

const MAC_LIMIT_DEFAULT = 4096;

type Places = ReadonlyMap<string, PortPlaces>;

/** What a port has to itself, and the key that says so. */
interface Claim {
  readonly key: 'capture' | Kind;
  readonly what: string;
}

export function checkTogether(root: Section, lab: Lab, places: Places): void {
  checkClaims(root.document, lab.ports, places);
  checkMacs(lab.ports, places);
  checkMacLimit(root, lab);
  warnOfMtu(root.document, lab.ports, places);
}

function checkClaims(document: LabDocument, ports: readonly LabPort[], places: Places): void {
  const owners = new Map<string, LabPort>();
  for (const port of ports) {
    for (const { key, what } of claimsOf(port)) {
      const owner = owners.get(what);
      owners.set(what, owner ?? port);
      if (owner === undefined) continue;
      const line = document.lineOf(places.get(owner.name)?.place);
      const whose = owner === port ? 'its own already' : `${owner.name}'s already (line ${line})`;
      places.get(port.name)?.section.report(key, `${what} is ${whose}`);
    }
  }
}

function claimsOf({ port, capture }: LabPort): Claim[] {
  const what = claimOf(port);
  return [
    ...(what === null ? [] : [{ key: port.kind, what }]),
    ...(capture === null ? [] : [{ key: 'capture', what: `the file ${capture.file}` } as const]),
  ];
}

function claimOf({ kind, options }: PortSpec): string | null {
  switch (kind) {
    case 'vhost':
      return `the socket ${options.path}`;
    case 'tap':
    case 'macvtap':
      return `the device ${options.device}`;
    case 'stream':
      if (options.listen !== true) return null;
      if (options.path !== undefined) return `the socket ${options.path}`;
      return `TCP port ${options.port} of ${options.address}`;
    case 'dgram': {
      const { local } = options;
      return 'path' in local ? `the socket ${local.path}` : `UDP port ${local.port} of ${local.address}`;
    }
    case 'vxlan':
      return `UDP port ${options.port ?? 4789} of ${options.local ?? 'all addresses'}`;
    case 'pcap':
      return typeof options.file === 'string' ? `the file ${options.file}` : null;
  }
}

/** An address that a port is held to belongs to it in all its VLANs. */
function checkMacs(ports: readonly LabPort[], places: Places): void {
  const owners = new Map<string, string>();
  for (const { name, join } of ports) {
    const { macs = [] } = join;
    const pinned = macs.flatMap((mac) => vlansOf(join.vlan).map((vlan) => ({ mac, vlan })));
    // One message is enough for a trunk of a thousand VLANs.
    const taken = pinned.find(({ mac, vlan }) => (owners.get(`${mac} ${vlan}`) ?? name) !== name);
    for (const { mac, vlan } of pinned) owners.set(`${mac} ${vlan}`, name);
    if (taken === undefined) continue;
    const where = taken.vlan === 0 ? '' : ` in VLAN ${taken.vlan}`;
    places.get(name)?.section.report('macs', `${taken.mac} is another port's already${where}`);
  }
}

/** Addresses that ports are held to are remembered for good, once in each VLAN. */
function checkMacLimit(root: Section, { options, ports }: Lab): void {
  const { macLimit = MAC_LIMIT_DEFAULT } = options;
  const pinned = ports.reduce(
    (sum, { join }) => sum + (join.macs?.length ?? 0) * new Set(vlansOf(join.vlan)).size,
    0,
  );
  if (pinned > macLimit)
    root.report('switch', `macs of all ports in all their VLANs are ${pinned}, and macLimit is ${macLimit}`);
}

function vlansOf(vlan: LabPort['join']['vlan']): readonly number[] {
  if (vlan === undefined) return [0];
  if ('access' in vlan) return [vlan.access];
  return vlan.native === undefined ? vlan.trunk : [...vlan.trunk, vlan.native];
}

/** Frames that are too long for a port are dropped there: a guest that does not know that loses its large packets alone. */
function warnOfMtu(document: LabDocument, ports: readonly LabPort[], places: Places): void {
  for (const port of ports) {
    const mtu = mtuOf(port);
    const longer = ports.find(
      (other) => other.port.kind === 'vhost' && mtuOf(other) > mtu && canMeet(port, other),
    );
    if (longer === undefined) continue;
    document.warn(
      places.get(port.name)?.place,
      `${port.name} takes packets of ${mtu} bytes, and ${longer.name} sends up to ${mtuOf(longer)}: give ${longer.name} mtu: ${mtu}`,
    );
  }
}

function mtuOf({ port }: LabPort): number {
  switch (port.kind) {
    case 'vhost':
    case 'tap':
    case 'macvtap':
      return port.options.mtu ?? MTU_DEFAULT;
    case 'vxlan':
      return port.options.mtu ?? VXLAN_MTU_DEFAULT;
    case 'stream':
    case 'dgram':
      return port.options.mtu ?? 0xffff;
    case 'pcap':
      return 0xffff;
  }
}

function canMeet(a: LabPort, b: LabPort): boolean {
  const vlans = new Set(vlansOf(a.join.vlan));
  return vlansOf(b.join.vlan).some((vlan) => vlans.has(vlan));
}
