/**
 * Which kinds of sockets lend: each is tried with a flagged send over loopback. Used by the checks, which explain, and by
 * features(), which only tells.
 */
import { errnoError } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import {
  AF_UNIX,
  AF_VSOCK,
  EPOLLIN,
  EPOLLOUT,
  MSG_ZEROCOPY,
  SO_ZEROCOPY,
  SOCK_DGRAM,
  SOCK_STREAM,
  SOL_SOCKET,
} from '../sys/constants.ts';
import { readText } from './files.ts';
import {
  Absent,
  type Keep,
  lendOnce,
  orAbsent,
  type Pair,
  pages,
  ready,
  tcpPair,
  udpPair,
  withSockets,
} from './loopback.ts';
import { protocols } from './proc.ts';

export type Family = 'tcp4' | 'tcp6' | 'udp4' | 'udp6' | 'unix' | 'vsock';

/** Those that a program may lend on; `unix` is there to show that it does not. */
export const lendingFamilies: readonly Family[] = ['tcp4', 'tcp6', 'udp4', 'udp6', 'vsock'];

export interface FamilyTrial {
  readonly lends: boolean;
  readonly copied: boolean;
  readonly bytes: number;
}

/** Two pages and no more: it must fit into the smallest limits that exist. */
const TRIAL_BYTES = 8192;

const makers: Record<Exclude<Family, 'unix'>, (keep: Keep, signal: AbortSignal) => Promise<Pair>> = {
  tcp4: (keep, signal) => tcpPair(keep, '127.0.0.1', signal),
  tcp6: (keep, signal) => tcpPair(keep, '::1', signal),
  udp4: (keep) => udpPair(keep, '127.0.0.1'),
  udp6: (keep) => udpPair(keep, '::1'),
  vsock: (keep, signal) => orAbsent(() => vsockPair(keep, signal)),
};

/** Tries one family; throws Absent, or the error of the call that failed. */
export function tryFamily(family: Family, signal: AbortSignal): Promise<FamilyTrial> {
  return withSockets(async (keep) => {
    if (family === 'unix') return tryUnix(keep);
    const { sender } = await makers[family](keep, signal);
    const trial = await lendOnce(sender, [pages(TRIAL_BYTES)], signal);
    return { lends: true, ...trial };
  });
}

/**
 * Local sockets take the flag, copy, and never confirm. The socket gets an abstract name of the kernel's choice, which
 * leaves no file: that is what bind() with nothing but a family does (unix_autobind).
 */
function tryUnix(keep: Keep): FamilyTrial {
  const sys = native();
  const receiver = keep(calls.socket(AF_UNIX, SOCK_DGRAM));
  must(sys.bind(receiver, new Uint8Array(Uint16Array.of(AF_UNIX).buffer)), 'bind');
  const name = new Uint8Array(128);
  const length = must(sys.getsockname(receiver, name), 'getsockname');
  const sender = keep(calls.socket(AF_UNIX, SOCK_DGRAM));
  must(sys.connect(sender, name.subarray(0, length)), 'connect');
  const lends = sys.setsockoptInt(sender, SOL_SOCKET, SO_ZEROCOPY, 1) === 0;
  const bytes = must(sys.sendv(sender, [pages(TRIAL_BYTES)], 1, MSG_ZEROCOPY), 'sendmsg');
  return { lends, copied: true, bytes };
}

/** linux/vm_sockets.h: sockaddr_vm is family u16, reserved u16, port u32, cid u32, 4 bytes of flags and zeros. */
const VMADDR_PORT_ANY = 0xffffffff;
const VMADDR_CID_LOCAL = 1;

function vsockAddress(cid: number, port: number): Uint8Array {
  const words = Uint32Array.of(0, port, cid, 0);
  new Uint16Array(words.buffer)[0] = AF_VSOCK;
  return new Uint8Array(words.buffer);
}

async function vsockPair(keep: Keep, signal: AbortSignal): Promise<Pair> {
  // A socket() of a family that is not there makes the kernel load a module for it, which would stay behind.
  if (!protocols(readText('/proc/net/protocols') ?? '').includes('AF_VSOCK')) {
    throw new Absent('no vsock in this kernel, or not loaded');
  }
  const sys = native();
  const listening = keep(calls.socket(AF_VSOCK, SOCK_STREAM));
  // Not to any context: without vsock_loopback the connection would go to the hypervisor, and this fails instead.
  must(sys.bind(listening, vsockAddress(VMADDR_CID_LOCAL, VMADDR_PORT_ANY)), 'bind');
  calls.listen(listening, 1);
  const name = new Uint8Array(16);
  must(sys.getsockname(listening, name), 'getsockname');
  const port = new Uint32Array(name.buffer)[1]!;
  const sender = keep(calls.socket(AF_VSOCK, SOCK_STREAM));
  const connecting = sys.connect(sender, vsockAddress(VMADDR_CID_LOCAL, port));
  if (connecting < 0) {
    const error = errnoError(connecting, 'connect');
    if (error.code !== 'EINPROGRESS') throw error;
  }
  let receiver = -1;
  const peer = new Uint8Array(16);
  await ready(listening, EPOLLIN, signal, () => {
    const accepted = sys.accept(listening, peer);
    if (accepted >= 0) receiver = keep(accepted);
    return receiver >= 0;
  });
  await ready(sender, EPOLLOUT, signal, (events) => (events & EPOLLOUT) !== 0);
  return { sender, receiver };
}

function must(value: number, syscall: string): number {
  if (value < 0) throw errnoError(value, syscall);
  return value;
}
