/**
 * Ports as they are written on a command line: a kind, a place, and settings.
 *
 *   tap:tap0,queues=2,offloads                      macvtap:macvtap0            macvtap:/dev/tap7
 *   stream:192.0.2.7:9000,vnet                      stream:listen=[::]:9000     stream:unix:/run/vm.sock
 *   dgram:local=unix:/run/a,remote=unix:/run/b      dgram:local=127.0.0.1:1,remote=127.0.0.1:2
 *   vxlan:vni=42,remote=192.0.2.7,remote=192.0.2.8,local=192.0.2.1,port=4789
 *   pcap:lan.pcap,snap=96                           pcap:replay=lan.pcap,speed=1
 *
 * All take `name=` and `mtu=`; stream and vxlan take `zerocopy=auto|force|off`. A path may have any character but a comma.
 */
import { ZerotxError } from '../core/errors.ts';
import { OFFLOAD_ALL, type Port } from '../core/port.ts';
import type { ZerocopyMode } from '../net/policy.ts';
import { type DgramAddress, DgramPort } from './dgram.ts';
import { MacvtapPort } from './macvtap.ts';
import { PcapPort } from './pcap.ts';
import { StreamPort } from './stream.ts';
import { TapPort } from './tap.ts';
import { VxlanPort } from './vxlan.ts';

export const PORT_KINDS = ['tap', 'macvtap', 'stream', 'dgram', 'vxlan', 'pcap'] as const;
export type PortKind = (typeof PORT_KINDS)[number];

type Maker = (settings: Settings) => Port;

const makers: Readonly<Record<PortKind, Maker>> = {
  tap: (settings) => new TapPort(tapOptions(settings)),
  macvtap: (settings) => new MacvtapPort(tapOptions(settings)),
  stream: makeStream,
  dgram: makeDgram,
  vxlan: makeVxlan,
  pcap: makePcap,
};

/** The port, which is not open yet; throws EINVAL with what is wrong in `text`. */
export function parsePort(text: string): Port {
  const colon = text.indexOf(':');
  const kind = text.slice(0, Math.max(0, colon));
  if (!isKind(kind)) throw bad(text, `it begins with one of ${KINDS_TEXT}${meant(text)}`);
  const settings = new Settings(text, text.slice(colon + 1));
  try {
    const port = makers[kind](settings);
    settings.end();
    return port;
  } catch (error) {
    // What a constructor says of its options: they came from here.
    if (error instanceof RangeError) throw bad(text, error.message);
    throw error;
  }
}

const KINDS_TEXT = PORT_KINDS.map((one) => `${one}:`).join(' ');

/** A place without its kind, as `tap0`. */
function meant(text: string): string {
  const [, named] = /^(tap|macvtap)\d*(?:,|$)/.exec(text) ?? [];
  const kind =
    named ?? (/^unix:|:\d+(?:,|$)/.test(text) ? 'stream' : /\.pcap(?:,|$)/.test(text) ? 'pcap' : null);
  return kind === null ? '' : `; did you mean ${kind}:${text}?`;
}

function isKind(text: string): text is PortKind {
  return (PORT_KINDS as readonly string[]).includes(text);
}

function bad(text: string, why: string): ZerotxError {
  return new ZerotxError('EINVAL', `port ${JSON.stringify(text)}: ${why}`);
}

/** Settings behind the kind; each is taken once, and what is left over is an error. */
class Settings {
  readonly text: string;
  /** The first one, without a name. */
  readonly place: string | undefined;
  readonly #values = new Map<string, string[]>();
  /** Names that were asked for. */
  readonly #known = new Set<string>();

  constructor(text: string, rest: string) {
    this.text = text;
    for (const [i, part] of rest.split(',').entries()) {
      const [, key, value] = /^([a-z]+)=(.*)$/s.exec(part) ?? [];
      if (key !== undefined) this.#values.set(key, [...(this.#values.get(key) ?? []), value as string]);
      else if (i === 0) this.place = part === '' ? undefined : part;
      else if (/^[a-z]+$/.test(part)) this.#values.set(part, ['']);
      else throw bad(text, `${JSON.stringify(part)} is no setting`);
    }
  }

  get name(): string {
    return this.take('name') ?? this.text;
  }

  all(key: string): string[] {
    this.#known.add(key);
    const values = this.#values.get(key) ?? [];
    this.#values.delete(key);
    return values;
  }

  take(key: string): string | undefined {
    const [value, ...more] = this.all(key);
    if (more.length > 0) throw bad(this.text, `${key} is there more than once`);
    return value;
  }

  flag(key: string): boolean {
    const value = this.take(key);
    if (value !== undefined && value !== '') throw bad(this.text, `${key} takes no value: write ,${key}`);
    return value !== undefined;
  }

  number(key: string): number | undefined {
    const value = this.take(key);
    if (value === undefined) return undefined;
    if (!/^\d{1,9}(\.\d+)?$/.test(value)) throw bad(this.text, `${key}=${value} is no number`);
    return Number(value);
  }

  mode(): ZerocopyMode | undefined {
    const value = this.take('zerocopy');
    if (value === undefined || value === 'auto' || value === 'force' || value === 'off') return value;
    throw bad(this.text, `zerocopy is auto, force or off, not ${value}`);
  }

  needPlace(what: string): string {
    if (this.place === undefined) throw bad(this.text, `it needs ${what}`);
    return this.place;
  }

  end(): void {
    const [key] = this.#values.keys();
    if (key === undefined) return;
    const known = [...this.#known].sort();
    const near = known.find((one) => one.slice(0, 2) === key.slice(0, 2));
    const hint = near === undefined ? `there are ${known.join(', ')}` : `did you mean ${near}?`;
    throw bad(this.text, `there is no setting ${key} here: ${hint}`);
  }
}

/** Options without those that were left out. */
function given<T extends object>(options: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  const entries = Object.entries(options).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries) as { [K in keyof T]: Exclude<T[K], undefined> };
}

function tapOptions(settings: Settings): ConstructorParameters<typeof TapPort>[0] {
  const device = settings.needPlace('the name of a device');
  return given({
    device,
    name: settings.take('name') ?? device,
    queues: settings.number('queues'),
    offloads: settings.flag('offloads') ? OFFLOAD_ALL : undefined,
    mtu: settings.number('mtu'),
  });
}

function makeStream(settings: Settings): Port {
  const listen = settings.take('listen');
  const place = listen ?? settings.needPlace('HOST:PORT, unix:PATH, or listen=');
  if (listen !== undefined && settings.place !== undefined)
    throw bad(settings.text, 'it listens or connects');
  return new StreamPort({
    ...addressOf(settings, place),
    ...given({
      name: settings.name,
      listen: listen !== undefined,
      vnet: settings.flag('vnet'),
      mtu: settings.number('mtu'),
      zerocopy: settings.mode(),
    }),
  });
}

function makeDgram(settings: Settings): Port {
  const local = settings.take('local');
  const remote = settings.take('remote');
  if (local === undefined || remote === undefined || settings.place !== undefined) {
    throw bad(settings.text, 'it needs local= and remote=');
  }
  return new DgramPort({
    local: addressOf(settings, local),
    remote: addressOf(settings, remote),
    ...given({ name: settings.name, mtu: settings.number('mtu') }),
  });
}

function makeVxlan(settings: Settings): Port {
  const vni = settings.number('vni');
  const remotes = settings.all('remote');
  if (vni === undefined || remotes.length === 0 || settings.place !== undefined) {
    throw bad(settings.text, 'it needs vni= and remote=');
  }
  return new VxlanPort({
    vni,
    remotes,
    ...given({
      name: settings.name,
      local: settings.take('local'),
      port: settings.number('port'),
      mtu: settings.number('mtu'),
      sockets: settings.number('sockets'),
      zerocopy: settings.mode(),
    }),
  });
}

function makePcap(settings: Settings): Port {
  const replay = settings.take('replay');
  if (replay === undefined && settings.place === undefined) {
    throw bad(settings.text, 'it needs the path of a file, or replay=');
  }
  return new PcapPort(
    given({
      name: settings.name,
      file: settings.place,
      replay,
      speed: settings.number('speed'),
      snapBytes: settings.number('snap'),
    }),
  );
}

/** `unix:PATH`, or `HOST:PORT` with an IPv6 address in brackets. */
function addressOf(settings: Settings, place: string): DgramAddress {
  if (place.startsWith('unix:') && place.length > 5) return { path: place.slice(5) };
  const [, bracketed, plain, port = ''] = /^(?:\[([^\]]+)\]|([^:]+)):(\d{1,5})$/.exec(place) ?? [];
  const address = bracketed ?? plain;
  if (address === undefined || Number(port) > 0xffff) {
    throw bad(settings.text, `${JSON.stringify(place)} is neither HOST:PORT nor unix:PATH`);
  }
  return { address, port: Number(port) };
}
