/** The machine and the runtime: the addon, Node's rule for foreign buffers, huge pages, io_uring, congestion control. */
import { version } from 'node:process';
import { errnoName, type ZerotxError } from '../../core/errors.ts';
import { addonBuildCommand, addonFile, native } from '../../sys/binding.ts';
import * as calls from '../../sys/calls.ts';
import { AF_INET, IPPROTO_TCP, SOCK_STREAM, TCP_CONGESTION } from '../../sys/constants.ts';
import { markProtects } from '../../sys/lend.ts';
import { readNumber, readText } from '../files.ts';
import { type Check, type Result, result } from '../finding.ts';
import { kib } from '../format.ts';
import { withSockets } from '../loopback.ts';
import { chosen, kilobytes } from '../proc.ts';

/** What loading the addon ends with; undefined if it is there. */
export function addonError(): ZerotxError | undefined {
  try {
    native();
    return undefined;
  } catch (error) {
    return error as ZerotxError;
  }
}

function addon(): Result {
  const missing = addonError();
  if (missing !== undefined) {
    const { cause, message, code } = missing;
    // The search for a build tells what it looked for on its first line.
    const why = (cause instanceof Error ? cause.message : message).split('\n')[0]!;
    const remedy = `${addonBuildCommand()} (needs a C and C++ compiler, make and Python)`;
    return result('fail', why, { remedy, data: { code } });
  }
  const file = addonFile();
  return result('ok', `loaded from ${file}`, { data: { file, pageBytes: native().pageSize() } });
}

function lending(): Result {
  const data = { node: version, lendsForeign: markProtects() };
  if (data.lendsForeign) return result('ok', `Node ${version}: buffers of any origin are lent`, { data });
  return result(
    'warn',
    `Node ${version} lets a program take a marked buffer away: only pool memory is lent, other buffers are copied`,
    {
      remedy: 'send from a Pool, pass pin: true for buffers that are never transferred, or use Node 24',
      data,
    },
  );
}

const HUGE_TRIAL_BYTES = 8 * 1024 * 1024;

/** Maps memory that asks for huge pages, touches it, and counts how much of the process is in such pages after that. */
function hugePages(): Result {
  const setting = chosen(readText('/sys/kernel/mm/transparent_hugepage/enabled') ?? '');
  const before = hugeBytes();
  if (before === undefined) return result('skip', 'this kernel does not count huge pages of a process');
  const memory = native().slabCreate(HUGE_TRIAL_BYTES, true);
  if (typeof memory === 'number') return result('warn', `no memory for the trial: ${errnoName(memory)}`);
  new Uint8Array(memory).fill(1);
  const gained = Math.max(0, (hugeBytes() ?? 0) - before);
  const data = { setting: setting ?? null, askedBytes: HUGE_TRIAL_BYTES, gainedBytes: gained };
  if (gained >= HUGE_TRIAL_BYTES / 2)
    return result('ok', `${kib(gained)} of ${kib(HUGE_TRIAL_BYTES)} came as huge pages`, { data });
  const never = setting === 'never' || setting === undefined;
  return result(
    'warn',
    `${kib(gained)} of ${kib(HUGE_TRIAL_BYTES)} came as huge pages: lending costs a little more`,
    {
      remedy: never
        ? 'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled'
        : 'memory is fragmented: echo 1 > /proc/sys/vm/compact_memory, or lend from pools made early',
      data,
    },
  );
}

function hugeBytes(): number | undefined {
  return kilobytes(readText('/proc/self/smaps_rollup') ?? '', 'AnonHugePages');
}

function ioUring(): Result {
  const answer = native().ioUringProbe();
  const setting = readNumber('/proc/sys/kernel/io_uring_disabled');
  const data = {
    allowed: answer === 0,
    code: answer === 0 ? null : errnoName(answer),
    setting: setting ?? null,
  };
  if (answer === 0) return result('ok', 'a ring can be set up; the library needs none', { data });
  const forbidden = setting !== undefined && setting > 0;
  return result('warn', `io_uring_setup: ${errnoName(answer)}; the library needs none`, {
    remedy: forbidden
      ? 'sysctl -w kernel.io_uring_disabled=0'
      : 'a seccomp filter, as of docker, or a kernel without it: allow io_uring_setup, _enter and _register',
    data,
  });
}

const NAME_BYTES = 16;

/** Loopback connections are switched to reno; that is what is tried here. */
function congestion(): Promise<Result> {
  return withSockets((keep) => {
    const fd = keep(calls.socket(AF_INET, SOCK_STREAM));
    const usual = nameOf(fd);
    const refused =
      native().setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, new TextEncoder().encode('reno')) < 0;
    const data = { default: usual, renoAllowed: !refused };
    if (!usual.startsWith('bbr')) return result('ok', `${usual}, which does not pace`, { data });
    if (!refused)
      return result('ok', `${usual} paces, which costs CPU on loopback: reno is taken there`, { data });
    return result('warn', `${usual} paces, at twice the CPU on loopback, and reno is not allowed`, {
      remedy: 'add reno to net.ipv4.tcp_allowed_congestion_control',
      data,
    });
  });
}

function nameOf(fd: number): string {
  const bytes = new Uint8Array(NAME_BYTES);
  calls.getOptionBytes(fd, IPPROTO_TCP, TCP_CONGESTION, bytes);
  const end = bytes.indexOf(0);
  return String.fromCharCode(...bytes.subarray(0, end < 0 ? NAME_BYTES : end));
}

/** Without it nothing else can be tried. */
export const addonCheck: Check = { id: 'addon', title: 'Native addon', withoutAddon: true, run: addon };

export const systemChecks: readonly Check[] = [
  { id: 'lending', title: 'Buffers that Node lets us lend', withoutAddon: true, run: lending },
  { id: 'hugepages', title: 'Huge pages', run: hugePages },
  { id: 'iouring', title: 'io_uring', run: ioUring },
  { id: 'congestion', title: 'Congestion control', run: congestion },
];
