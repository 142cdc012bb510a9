/**
 * What only a device shows, in the network namespace that the parent made: run as `node udp-lab.js <mode>`; prints what
 * happened as JSON, for the parent to judge.
 *
 *   10.98.0.2    behind i0, an ifb: its driver drops what it is given, and confirms it, uncopied
 *   10.99.0.2    behind z0, a veth: a neighbour that never answers, so packets wait about 3 s
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mock } from 'node:test';
import { closerStats, LINGER_MS } from '../../../src/net/closer.ts';
import { UdpSocket } from '../../../src/net/udp.ts';
import type { UdpSocketOptions } from '../../../src/net/udp-options.ts';
import { native } from '../../../src/sys/binding.ts';

const SINK = { address: '10.98.0.2', port: 9 };
const NOBODY = { address: '10.99.0.2', port: 9 };
const KIB64 = 64_000;

async function open(options: Partial<UdpSocketOptions> = {}): Promise<UdpSocket> {
  const socket = new UdpSocket({ type: 'udp4', ...options });
  socket.bind(0);
  await once(socket, 'listening');
  return socket;
}

function print(result: object): void {
  process.stdout.write(JSON.stringify(result));
}

/** Large calls to the sink are lent; to this host they are copied, by the same socket. */
async function sink(): Promise<void> {
  const socket = await open({ zerocopy: { pin: true } });
  const outcomes = [];
  for (let i = 0; i < 20; i++) {
    outcomes.push(await socket.sendSegments(Buffer.alloc(20 * KIB64), 1000, SINK));
    outcomes.push(await socket.sendSegments(Buffer.alloc(KIB64), 1000, { ...SINK, address: '127.0.0.1' }));
  }
  print({ outcomes, stats: socket.stats() });
  socket.close();
}

/** A packet tap on the way: the kernel copies for it, and `auto` notices. */
async function tap(): Promise<void> {
  const AF_PACKET = 17;
  const SOCK_RAW = 3;
  const ALL_PROTOCOLS = 0x0300; // ETH_P_ALL, in network order
  assert.ok(native().socket(AF_PACKET, SOCK_RAW, ALL_PROTOCOLS) >= 0);
  const socket = await open({ zerocopy: { pin: true } });
  let last = { bytes: 0, copiedBytes: 0, exact: true };
  for (let i = 0; i < 40; i++) last = await socket.sendSegments(Buffer.alloc(KIB64), 1000, SINK);
  print({ last, stats: socket.stats() });
  socket.close();
}

/** What went to nobody is held, and everything sent afterwards overtakes it. */
async function held(): Promise<void> {
  const socket = await open({ zerocopy: { mode: 'force', pin: true } });
  const order: string[] = [];
  const note = (name: string) => () => order.push(name);
  const first = socket.sendSegments(Buffer.alloc(KIB64), 1000, NOBODY).then(note('nobody'));
  for (let i = 0; i < 5; i++) {
    await socket
      .sendSegments(Buffer.alloc(KIB64), 1000, { ...NOBODY, address: '127.0.0.1' })
      .then(note('here'));
    await socket.sendSegments(Buffer.alloc(KIB64), 1000, SINK).then(note('sink'));
  }
  const { pinnedBytes } = socket.stats().zerocopy;
  await first;
  print({ order, pinnedBytes, stats: socket.stats() });
  socket.close();
}

/** A full send buffer: what waits goes out later, in order. */
async function full(): Promise<void> {
  const socket = await open({ zerocopy: { mode: 'force', pin: true } });
  const order: number[] = [];
  const sends = Array.from({ length: 8 }, async (_, i) => {
    await socket.sendSegments(Buffer.alloc(KIB64), 1000, NOBODY);
    order.push(i);
  });
  const { queuedSends } = socket.stats();
  await Promise.all(sends);
  print({ order, queuedSends, stats: socket.stats() });
  socket.close();
}

/** No room for more than a few notifications: the rest is copied. */
async function optmem(): Promise<void> {
  const socket = await open({ zerocopy: { mode: 'force', pin: true, thresholdBytes: 1 } });
  const sends = Array.from({ length: 20 }, () => socket.sendSegments(Buffer.alloc(100), 100, NOBODY));
  await Promise.all(sends);
  print({ stats: socket.stats() });
  socket.close();
}

/** A segment that does not fit the MTU is refused after the kernel has counted the call; what follows must not suffer. */
async function tooLong(): Promise<void> {
  const socket = await open({ zerocopy: { mode: 'force', pin: true } });
  const errors: unknown[] = [];
  const held = socket.sendSegments(Buffer.alloc(KIB64), 1000, NOBODY).then(() => 'held');
  for (let i = 0; i < 3; i++) {
    await socket
      .sendSegments(Buffer.alloc(KIB64), 9000, SINK)
      .catch(({ code, message }) => errors.push({ code, message }));
    await socket.sendSegments(Buffer.alloc(KIB64), 1000, SINK);
  }
  // Nothing but the held one is pinned, and it is released last.
  const { pinnedBytes } = socket.stats().zerocopy;
  await held;
  print({ errors, pinnedBytes, stats: socket.stats() });
  socket.close();
}

/** close() with a send in flight: it stays lent, is told of at the deadline, and comes back when the kernel lets go. */
async function quarantine(): Promise<void> {
  const socket = await open({ zerocopy: { mode: 'force', pin: true } });
  const { port } = socket.address();
  const first = socket.sendSegments(Buffer.alloc(KIB64), 1000, NOBODY).catch((error) => error);
  mock.timers.enable({ apis: ['setTimeout'] });
  socket.close();
  await once(socket, 'close');
  const lingering = closerStats();
  // The port was the kernel's choice, so it is free again.
  const next = new UdpSocket('udp4');
  next.bind(port);
  await once(next, 'listening');
  mock.timers.tick(LINGER_MS);
  const error = await first;
  const atDeadline = closerStats();
  mock.timers.reset();
  const outcome = await error.released;
  await new Promise(setImmediate);
  print({ code: error.code, lingering, atDeadline, outcome, after: closerStats() });
  next.close();
}

const modes: Record<string, () => Promise<void>> = { sink, tap, held, full, optmem, tooLong, quarantine };
const [mode = ''] = process.argv.slice(2);
assert.ok(modes[mode], `no mode ${mode}`);
await modes[mode]();
