/**
 * The three kinds of sender. Each sends the same payload again and again, as the kernel's selftest does, and can have many
 * sends under way: the memory is only read.
 *
 * The payload is the selftest's, too: lower-case letters in order, beginning anew with each datagram; its receiver checks them.
 */
import { once } from 'node:events';
import { ZerotxError } from '../../index.ts';
import {
  type CopyCause,
  connect,
  type HistogramSnapshot,
  type Lease,
  type Outcome,
  Pool,
  UdpSocket,
} from '../../net/index.ts';
import { RdsNode } from '../../rds/index.ts';
import { deadline } from './deadline.ts';
import { addressOf, DEFAULT_PORT, place, type Settings } from './settings.ts';

/** What happened to lent memory. */
export interface Counts {
  readonly kernelCopiedBytes: number;
  readonly copied: Readonly<Record<CopyCause, number>>;
  readonly latency: HistogramSnapshot;
}

export interface Sender {
  /** Where it sends to and from, for people. */
  readonly to: string;
  readonly from: string;
  readonly family: 4 | 6;
  /** Resolves when the memory is free again. */
  send(): Promise<Outcome>;
  /** Errors that belong to no send. */
  onFailure(failed: (error: unknown) => void): void;
  counts(): Counts;
  /** All was sent. */
  close(): Promise<void>;
  /** Gives up what is under way. */
  abandon(): void;
}

/** Where to: both ends are here, or as the settings say. */
export interface Target {
  readonly address: string;
  readonly port: number;
}

/** How long an RDS peer may take to show that it is there. */
const CONTACT_MS = 5000;

/** Connects; `signal` ends the wait. Throws ECONNREFUSED and its kin, with a remedy. */
export async function openSender(settings: Settings, to: Target, signal: AbortSignal): Promise<Sender> {
  const { address, family } = await addressOf(to.address, settings.family);
  const target = { address, port: to.port, family, signal };
  const { source } = settings;
  const local = source === undefined ? undefined : (await addressOf(source, family)).address;
  try {
    if (settings.test === 'tcp') return await openTcp(settings, target, local);
    if (settings.test === 'udp') return await openUdp(settings, target, local);
    return await openRds(settings, target, local);
  } catch (error) {
    throw explained(error, settings, target);
  }
}

interface Resolved extends Target {
  readonly family: 4 | 6;
  readonly signal: AbortSignal;
}

/** Every piece is lent, as small as it may be, or none. */
function lending({ zerocopy }: Settings): { mode: 'force' | 'off'; thresholdBytes: number } {
  return { mode: zerocopy ? 'force' : 'off', thresholdBytes: 1 };
}

async function openTcp(settings: Settings, to: Resolved, localAddress: string | undefined): Promise<Sender> {
  const { address, port, family, signal } = to;
  const socket = connect({ host: address, port, family, localAddress, zerocopy: lending(settings) });
  try {
    await once(socket, 'connect', { signal });
  } catch (error) {
    socket.destroy();
    throw error;
  }
  // What comes back is thrown away, but the end of the connection must be seen.
  socket.resume();
  let failed: (error: unknown) => void = () => {};
  socket.on('error', (error) => failed(error));
  socket.on('end', () => failed(new ZerotxError('EPIPE', 'the receiver closed the connection')));
  const lease = payloadLease(settings);
  return {
    to: place(address, port),
    from: place(socket.localAddress ?? '', socket.localPort ?? 0),
    family,
    send: () => socket.send(lease),
    onFailure: (callback) => {
      failed = callback;
    },
    counts: () => socket.stats().zerocopy,
    close: async () => {
      lease.release();
      await socket[Symbol.asyncDispose]();
    },
    abandon: () => socket.resetAndDestroy(),
  };
}

async function openUdp(settings: Settings, to: Resolved, localAddress: string | undefined): Promise<Sender> {
  const { address, port, family, signal } = to;
  const socket = new UdpSocket({ type: family === 6 ? 'udp6' : 'udp4', zerocopy: lending(settings) });
  try {
    if (localAddress !== undefined) {
      socket.bind({ address: localAddress });
      await once(socket, 'listening', { signal });
    }
    const connected = once(socket, 'connect', { signal });
    socket.connect(port, address);
    await connected;
  } catch (error) {
    socket.close();
    throw error;
  }
  const lease = payloadLease(settings);
  const local = socket.address();
  return {
    to: place(address, port),
    from: place(local.address, local.port),
    family,
    send: () => socket.sendSegments(lease, settings.payloadBytes),
    onFailure: (callback) => {
      socket.on('error', callback);
    },
    counts: () => socket.stats().zerocopy,
    close: async () => {
      lease.release();
      await socket[Symbol.asyncDispose]();
    },
    abandon: () => socket.close(),
  };
}

async function openRds(settings: Settings, to: Resolved, localAddress: string | undefined): Promise<Sender> {
  const { address, port, family, signal } = to;
  const node = await RdsNode.open({ address: localAddress as string, ...lending(settings) });
  const socket = node.bind(0, { zerocopy: settings.zerocopy });
  const contact = deadline(signal, CONTACT_MS);
  try {
    // Port 0 answers with an empty message. Without it a peer that is not there would be waited for.
    socket.sendmsg(new Uint8Array(0), { address, port: 0 });
    await once(socket, 'readable', { signal: contact.signal });
    socket.recvmsg();
  } catch (error) {
    await node.close();
    if (signal.aborted) throw error;
    throw new ZerotxError('ETIMEDOUT', `no answer within ${CONTACT_MS} ms`, { cause: error });
  } finally {
    contact.clear();
  }
  // Shared memory cannot be taken away from its owner, so every runtime may lend it.
  const payload = new Uint8Array(new SharedArrayBuffer(settings.payloadBytes));
  fill(payload, settings.payloadBytes);
  return {
    to: place(address, port),
    from: place(node.address, socket.port),
    family,
    send: () => socket.send(payload, { address, port }),
    // A peer that goes away may come back: it is no error.
    onFailure: () => {},
    counts: () => {
      const { zerocopy } = node.stats();
      return { ...zerocopy, latency: zerocopy.latency.snapshot() };
    },
    close: () => node.close({ drain: true }),
    abandon: () => {
      node.close({ timeoutMs: 0 }).catch(() => {});
    },
  };
}

function payloadLease({ payloadBytes, datagrams }: Settings): Lease {
  const pool = new Pool();
  const lease = pool.tryAcquire(payloadBytes * datagrams);
  if (lease === undefined) throw new ZerotxError('ENOMEM', 'no memory for the payload');
  fill(lease.buffer, payloadBytes);
  return lease;
}

/** Letters in order, from `a` with each datagram. */
function fill(bytes: Uint8Array, datagramBytes: number): void {
  const letters = new Uint8Array(datagramBytes).map((_, i) => 97 + (i % 26));
  for (let at = 0; at < bytes.byteLength; at += datagramBytes) {
    bytes.set(letters.subarray(0, bytes.byteLength - at), at);
  }
}

const UNREACHED = new Set(['ECONNREFUSED', 'EHOSTUNREACH', 'ENETUNREACH', 'ETIMEDOUT']);

/** Says how to start a receiver, if that is what is missing. */
export function explained(error: unknown, settings: Settings, to: Target): unknown {
  const { code = '', message } = error as NodeJS.ErrnoException;
  if (!UNREACHED.has(code)) return error;
  const port = to.port === DEFAULT_PORT ? '' : ` -p ${to.port}`;
  const remedy = `start it there first: zerotx msg-zerocopy ${settings.test} -r -D ${to.address}${port}`;
  const text = `nobody receives at ${place(to.address, to.port)} (${message}); ${remedy}`;
  return new ZerotxError(code, text, { cause: error });
}
