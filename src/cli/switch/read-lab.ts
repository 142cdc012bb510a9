/** Reads a lab file: the switch, and its ports with what they have besides what they are. */
import { resolve } from 'node:path';
import type { Faults, Rate, StormLimits, SwitchPortOptions, VlanOptions } from '../../switch/index.ts';
import { stableMac } from '../lab/qemu.ts';
import { LabDocument, type Problem } from './document.ts';
import { warnOfFiles } from './files.ts';
import {
  given,
  KINDS,
  type Lab,
  type LabCapture,
  type LabFaults,
  type LabPort,
  type PortSpec,
} from './lab.ts';
import { bytes, integer, mac, orList, percent, type Quantity, rate, text, time } from './quantities.ts';
import { type Naming, readers, SNAP } from './read-kind.ts';
import { Section } from './section.ts';
import { checkTogether, type PortPlaces } from './together.ts';

export interface ReadLab {
  /** Null when there are problems. */
  readonly lab: Lab | null;
  /** How many ports it has, as far as they can be read. */
  readonly ports: number;
  readonly problems: readonly Problem[];
  /** What works, but is perhaps not meant; none when there are problems. */
  readonly warnings: readonly Problem[];
}

const PORTS_KEY = 'ports: what the switch joins, by name';
const NEEDS_PORTS = `it needs ${PORTS_KEY}`;
const NAME = /^[\w.-]{1,64}$/;
const VLAN = integer(1, 4094);
const FRAMES_PER_SECOND = integer(0, 1_000_000_000);
const MAC_LIMIT = integer(1, 1_048_576);
const PORTS_MAX = 1024;
const MACS_MAX = 64;

/** `folder`: what paths in the file are relative to. `isThere`: whether there is a file or folder, to warn of those that are missing. */
export function readLab(
  source: string,
  folder: string,
  isThere: (path: string) => boolean = () => true,
): ReadLab {
  const document = new LabDocument(source);
  // What the text of a broken file would mean is a guess.
  const root =
    document.problems.length > 0 ? undefined : Section.of(document, document.root, null, '', NEEDS_PORTS);
  const lab = root === undefined ? null : readRoot(root, folder, isThere);
  const { problems, warnings } = document;
  const ports = lab?.ports.length ?? 0;
  return problems.length > 0
    ? { lab: null, ports, problems, warnings: [] }
    : { lab, ports, problems, warnings };
}

function readRoot(root: Section, folder: string, isThere: (path: string) => boolean): Lab {
  const options = readSwitch(root);
  const places = new Map<string, PortPlaces>();
  const ports: LabPort[] = [];
  const all = root.has('ports') ? root.section('ports') : undefined;
  if (!root.has('ports')) root.document.report(null, `the file needs ${PORTS_KEY}`);
  for (const [name, section] of all?.sections(
    'it needs a kind, as in { vhost: vm1.sock } or { tap: tap0 }',
  ) ?? []) {
    if (!NAME.test(name))
      root.document.report(
        all?.placeOf(name),
        `the port ${JSON.stringify(name)}: a name has letters, digits, _ . and -, up to 64`,
      );
    const port = readPort(section, { name, folder });
    if (port === undefined) continue;
    ports.push(port);
    places.set(name, { section, place: all?.placeOf(name) });
  }
  if (all !== undefined && (all.keys.length === 0 || all.keys.length > PORTS_MAX))
    root.document.report(root.valuePlace('ports'), `a switch has 1 to ${PORTS_MAX} ports`);
  root.end();
  checkTogether(root, { options, ports }, places);
  warnOfFiles(root.document, ports, places, isThere);
  return { options, ports };
}

function readSwitch(root: Section): Lab['options'] {
  const own = root.section('switch');
  if (own === undefined) return {};
  const options = given({
    macAgeMs: own.take('macAge', time('1ms', '24h')),
    macLimit: own.take('macLimit', MAC_LIMIT),
    portMacLimit: own.take('portMacLimit', MAC_LIMIT),
    storm: readStorm(own),
  });
  own.end();
  return options;
}

function readPort(section: Section, naming: Naming): LabPort | undefined {
  // In the order of the file; asked for all of them, so that they are known.
  const there = KINDS.filter((kind) => section.has(kind));
  const kinds = section.keys.flatMap((key) => there.filter((kind) => kind === key));
  const [kind, ...more] = kinds;
  const specs = kinds.map((one) => readers[one](section, naming));
  if (kind === undefined)
    section.document.report(section.place, `${section.path} needs a kind: ${orList(KINDS)}`);
  for (const other of more)
    section.document.report(
      section.placeOf(other),
      `${section.path} is a ${kind} already, and cannot be a ${other} too`,
    );
  const join = readJoin(section);
  const faults = readFaults(section);
  const capture = readCapture(section, naming.folder);
  section.end();
  const port = specs[0];
  if (port === undefined) return undefined;
  return { name: naming.name, port: addressed(section, port, join), join, faults, capture };
}

/** A guest that is held to addresses has one of them; another one always has the same. */
function addressed(section: Section, spec: PortSpec, { macs }: SwitchPortOptions): PortSpec {
  if (spec.kind !== 'vhost') return spec;
  const { mac: own, path } = spec.options;
  if (own !== undefined && macs !== undefined && !macs.includes(own))
    section.report('macs', `the guest's own, ${own}, is not among them`);
  return { kind: 'vhost', options: { mac: macs?.[0] ?? stableMac(path), ...spec.options } };
}

function readJoin(section: Section): SwitchPortOptions {
  const macs = section.list('macs', mac);
  if (macs !== undefined && macs.length > MACS_MAX) section.report('macs', `there are ${MACS_MAX} at most`);
  return given({
    vlan: readVlan(section),
    macs: macs === undefined || macs.length === 0 ? undefined : macs,
    storm: readStorm(section),
    macLimit: section.take('macLimit', MAC_LIMIT),
  });
}

function readVlan(section: Section): VlanOptions | undefined {
  if (!section.hasSection('vlan')) {
    // `vlan: 5` is what everybody means by it.
    const access = section.take('vlan', VLAN);
    return access === undefined ? undefined : { access };
  }
  const own = section.section('vlan');
  if (own === undefined) return undefined;
  const access = own.take('access', VLAN);
  const trunk = own.list('trunk', VLAN);
  const native = own.take('native', VLAN);
  own.end();
  if (own.has('access') && own.has('trunk'))
    own.document.report(own.place, `${own.path} has access and trunk, and is one of them`);
  else if (!own.has('access') && !own.has('trunk'))
    own.document.report(
      own.place,
      `${own.path} needs access (one VLAN, untagged) or trunk (several, tagged)`,
    );
  else if (own.has('native') && own.has('access'))
    own.report('native', 'only a trunk has a native VLAN; access is untagged as it is');
  else if (trunk !== undefined) return { trunk, ...given({ native }) };
  return access === undefined ? undefined : { access };
}

function readStorm(section: Section): StormLimits | undefined {
  const own = section.section('storm');
  if (own === undefined) return undefined;
  const limits = given({
    broadcast: readRate(own, 'broadcast'),
    multicast: readRate(own, 'multicast'),
    unknown: readRate(own, 'unknown'),
  });
  own.end();
  return limits;
}

/** `1000`, frames a second, or with a burst `{ rate: 1000, burst: 50 }`. */
function readRate(storm: Section, key: string): Rate | undefined {
  if (!storm.hasSection(key)) {
    const framesPerSecond = storm.take(key, FRAMES_PER_SECOND);
    return framesPerSecond === undefined ? undefined : { framesPerSecond };
  }
  const own = storm.section(key);
  const framesPerSecond = own?.need('rate', FRAMES_PER_SECOND);
  const burstFrames = own?.take('burst', integer(1, 1_000_000_000));
  own?.end();
  return framesPerSecond === undefined ? undefined : { framesPerSecond, ...given({ burstFrames }) };
}

function readFaults(section: Section): LabFaults | null {
  const own = section.section('faults');
  if (own === undefined) return null;
  const faults = given({
    seed: own.take('seed', integer(0, 0xffff_ffff)),
    rx: readLine(own, 'rx'),
    tx: readLine(own, 'tx'),
  });
  own.end();
  if (!own.has('rx') && !own.has('tx'))
    own.document.report(
      own.place,
      `${own.path} needs rx (what comes out of the port), tx (what goes to it), or both`,
    );
  return faults;
}

function readLine(section: Section, key: string): Faults | undefined {
  const own = section.section(key);
  if (own === undefined) return undefined;
  const [shortest, longest] = [time('0ms', '10min'), bytes('1B', '1GiB')];
  const faults = given({
    lossPercent: own.take('loss', percent),
    duplicatePercent: own.take('duplicate', percent),
    corruptPercent: own.take('corrupt', percent),
    delayMs: own.take('delay', shortest),
    jitterMs: own.take('jitter', shortest),
    reorderPercent: own.take('reorder', percent),
    reorderMs: own.take('reorderDelay', shortest),
    bytesPerSecond: own.take('rate', rate),
    queueBytes: own.take('queue', longest),
    heldBytes: own.take('held', longest),
  });
  own.end();
  if (own.has('queue') && !own.has('rate'))
    own.report('queue', 'it is the queue of a rate, which is not there');
  if (own.has('reorderDelay') && !own.has('reorder'))
    own.report('reorderDelay', 'it is for the frames of reorder, which is not there');
  return faults;
}

const CAPTURE: Quantity<string> = text('the path of a file', 4095);

function readCapture(section: Section, folder: string): LabCapture | null {
  const own = section.hasSection('capture') ? section.section('capture') : undefined;
  const file = own === undefined ? section.take('capture', CAPTURE) : own.need('file', CAPTURE);
  const snapBytes = own?.take('snap', SNAP);
  own?.end();
  return file === undefined ? null : { file: resolve(folder, file), ...given({ snapBytes }) };
}
