/**
 * The options that an active rds-stress sends to the passive one, over plain TCP, before any RDS traffic.
 *
 * Two forms exist, both big-endian and packed. The plain one is 59 bytes. The versioned one, sent only when a type of
 * service or asynchronous sends were asked for, puts a 16-byte version string before those 59 bytes and two bytes
 * behind them. No length announces which it is: the passive side reads 16 bytes in one read, and if they are its own
 * version it expects 61 more, else they were the first 16 of the plain form and 43 more follow.
 *
 * Names are rds-stress's own. Flags are kept as the bytes they are, because some travel as 0xff.
 */
import { readU16, readU32, writeU16, writeU32 } from './bytes.ts';

/** What the passive side reads first. */
export const OPTIONS_PROBE_BYTES = 16;
const PLAIN_OPTIONS_BYTES = 59;
export const VERSIONED_OPTIONS_BYTES = 77;
/** The rds-tools release whose formats these are. */
const STRESS_VERSION = '2.0.7';

export interface StressOptions {
  reqDepth: number;
  reqSize: number;
  ackSize: number;
  rdmaSize: number;
  /** IPv4 address as a number, the first octet highest; 0 for none. */
  sendAddr: number;
  receiveAddr: number;
  startingPort: number;
  nrTasks: number;
  /** Seconds; 0 runs until interrupted. */
  runTime: number;
  summaryOnly: number;
  rtprio: number;
  tracing: number;
  verify: number;
  showParams: number;
  showPerfdata: number;
  useCongMonitor: number;
  rdmaUseOnce: number;
  rdmaUseGetMr: number;
  rdmaUseFence: number;
  rdmaCacheMrs: number;
  rdmaKeyOMeter: number;
  suppressWarnings: number;
  simplex: number;
  rwMode: number;
  rdmaVector: number;
  rdmaAlignment: number;
  connectRetries: number;
  /** Versioned form only. */
  tos: number;
  /** Versioned form only. */
  async: number;
}

/** What rds-stress starts from before it reads its command line. */
export const defaultOptions: Readonly<StressOptions> = {
  reqDepth: 1,
  reqSize: 1024,
  ackSize: 63,
  rdmaSize: 0,
  sendAddr: 0,
  receiveAddr: 0,
  startingPort: 4000,
  nrTasks: 1,
  runTime: 0,
  summaryOnly: 0,
  rtprio: 0,
  tracing: 0,
  verify: 0,
  showParams: 0,
  showPerfdata: 0,
  useCongMonitor: 1,
  rdmaUseOnce: 0,
  rdmaUseGetMr: 0,
  rdmaUseFence: 1,
  rdmaCacheMrs: 0,
  rdmaKeyOMeter: 0,
  suppressWarnings: 0xff,
  simplex: 0,
  rwMode: 0,
  rdmaVector: 1,
  rdmaAlignment: 0,
  connectRetries: 0,
  tos: 0,
  async: 0,
};

type Field = readonly [name: keyof StressOptions, bytes: 1 | 2 | 4];

/** The 59 bytes both forms share, in order. */
const plainFields: readonly Field[] = [
  ['reqDepth', 4],
  ['reqSize', 4],
  ['ackSize', 4],
  ['rdmaSize', 4],
  ['sendAddr', 4],
  ['receiveAddr', 4],
  ['startingPort', 2],
  ['nrTasks', 2],
  ['runTime', 4],
  ['summaryOnly', 1],
  ['rtprio', 1],
  ['tracing', 1],
  ['verify', 1],
  ['showParams', 1],
  ['showPerfdata', 1],
  ['useCongMonitor', 1],
  ['rdmaUseOnce', 1],
  ['rdmaUseGetMr', 1],
  ['rdmaUseFence', 1],
  ['rdmaCacheMrs', 1],
  ['rdmaKeyOMeter', 1],
  ['suppressWarnings', 1],
  ['simplex', 1],
  ['rwMode', 1],
  ['rdmaVector', 4],
  ['rdmaAlignment', 4],
  ['connectRetries', 4],
];

const versionedFields: readonly Field[] = [...plainFields, ['tos', 1], ['async', 1]];

export type OptionsForm = 'plain' | 'versioned';

/** Which form begins with these 16 bytes, as a passive side of the given version decides. */
export function optionsForm(first16: Uint8Array, version: string = STRESS_VERSION): OptionsForm {
  for (let i = 0; i < version.length; i++) if (first16[i] !== version.charCodeAt(i)) return 'plain';
  return first16[version.length] === 0 ? 'versioned' : 'plain';
}

export function optionsBytes(form: OptionsForm): number {
  return form === 'plain' ? PLAIN_OPTIONS_BYTES : VERSIONED_OPTIONS_BYTES;
}

/** The form rds-stress chooses for these options. */
export function formFor(options: StressOptions): OptionsForm {
  return options.tos !== 0 || options.async !== 0 ? 'versioned' : 'plain';
}

/** 59 or 77 bytes; the plain form drops `tos` and `async`. */
export function encodeOptions(options: StressOptions, form: OptionsForm = formFor(options)): Uint8Array {
  const out = new Uint8Array(optionsBytes(form));
  let at = 0;
  if (form === 'versioned') {
    for (let i = 0; i < STRESS_VERSION.length; i++) out[i] = STRESS_VERSION.charCodeAt(i);
    at = OPTIONS_PROBE_BYTES;
  }
  for (const [name, bytes] of form === 'plain' ? plainFields : versionedFields) {
    if (bytes === 4) writeU32(out, at, options[name]);
    else if (bytes === 2) writeU16(out, at, options[name]);
    else out[at] = options[name];
    at += bytes;
  }
  return out;
}

/** Reads `optionsBytes(form)` bytes from the start of `buf`. */
export function decodeOptions(buf: Uint8Array, form: OptionsForm): StressOptions {
  const options: StressOptions = { ...defaultOptions };
  let at = form === 'plain' ? 0 : OPTIONS_PROBE_BYTES;
  for (const [name, bytes] of form === 'plain' ? plainFields : versionedFields) {
    options[name] = bytes === 4 ? readU32(buf, at) : bytes === 2 ? readU16(buf, at) : buf[at]!;
    at += bytes;
  }
  return options;
}
