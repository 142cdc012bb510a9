/** Parts of tap.lab.test.ts: run in a network namespace of their own, silent when all is well. */

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { writeSync } from 'node:fs';
import { errnoOf } from '../../../src/core/errors.ts';
import { OFFLOAD_CSUM, OFFLOAD_TSO4, OFFLOAD_TSO6 } from '../../../src/core/port.ts';
import { native } from '../../../src/sys/binding.ts';
import { EPOLLIN } from '../../../src/sys/constants.ts';
import { reactor } from '../../../src/sys/reactor.ts';
import * as tap from '../../../src/sys/tap.ts';
import { VNET_HEADER_BYTES } from '../../../src/wire/virtio.ts';
import { setTapOffloads, setTapQueue } from '../../support/descriptors.ts';
import { waitFor } from '../../support/sockets.ts';

const EAGAIN = -errnoOf('EAGAIN');
const HEADER = VNET_HEADER_BYTES;
const ETHERTYPE_IPV4 = 0x0800;
const ETHERTYPE_TEST = 0x88b5; // IEEE 802 local experimental
const PEER_MAC = Buffer.from('020000000009', 'hex');
const IPPROTO_UDP = 17;

const sh = (command: string): string => execFileSync('sh', ['-c', command], { encoding: 'utf8' });

/** One frame with its header, or undefined when none waits. recv(2) is for sockets, so two pieces: readv(2). */
function read(fd: number): { header: Buffer; frame: Buffer } | undefined {
  const header = Buffer.alloc(HEADER);
  const frame = Buffer.alloc(70_000);
  const got = native().readv(fd, [header, frame], 2);
  if (got === EAGAIN) return undefined;
  assert.ok(got >= HEADER + 14, `readv: ${got}`);
  return { header, frame: frame.subarray(0, got - HEADER) };
}

/** The next frame that `wanted` takes; others, such as the kernel's neighbour discovery, are dropped. */
async function next(
  fd: number,
  wanted: (frame: Buffer) => boolean,
): Promise<{ header: Buffer; frame: Buffer }> {
  let found: { header: Buffer; frame: Buffer } | undefined;
  await waitFor(fd, EPOLLIN, () => {
    for (;;) {
      const one = read(fd);
      if (one === undefined) return false;
      if (!wanted(one.frame)) continue;
      found = one;
      return true;
    }
  });
  return found as unknown as { header: Buffer; frame: Buffer };
}

const isUdp = (frame: Buffer): boolean =>
  frame.readUInt16BE(12) === ETHERTYPE_IPV4 && frame[23] === IPPROTO_UDP;

/** An interface with an address, and a neighbour that is said to be there. */
function configure(name: string, subnet = '198.18.0'): void {
  sh(`ip link set ${name} address 02:00:00:00:00:01 up && ip addr add ${subnet}.1/24 dev ${name}`);
  sh(`ip neigh replace ${subnet}.2 lladdr 02:00:00:00:00:09 dev ${name} nud permanent`);
}

/** The frame of an IPv4 UDP datagram from the neighbour to us; no UDP checksum, which IPv4 allows. */
function datagramFrame(port: number, payload: Buffer): Buffer {
  const frame = Buffer.alloc(42 + payload.length);
  frame.write('020000000001', 0, 'hex');
  PEER_MAC.copy(frame, 6);
  frame.writeUInt16BE(ETHERTYPE_IPV4, 12);
  frame.writeUInt16BE(0x4500, 14);
  frame.writeUInt16BE(28 + payload.length, 16);
  frame.writeUInt16BE((64 << 8) | IPPROTO_UDP, 22);
  frame.set([198, 18, 0, 2, 198, 18, 0, 1], 26);
  let sum = 0;
  for (let at = 14; at < 34; at += 2) sum += frame.readUInt16BE(at);
  sum = (sum & 0xffff) + (sum >>> 16);
  frame.writeUInt16BE(~(sum + (sum >>> 16)) & 0xffff, 24);
  frame.writeUInt16BE(9, 34);
  frame.writeUInt16BE(port, 36);
  frame.writeUInt16BE(8 + payload.length, 38);
  payload.copy(frame, 42);
  return frame;
}

/** Sends a datagram to the neighbour, and gives what came out of the tap. */
async function sent(fd: number, bytes: number): Promise<{ header: Buffer; frame: Buffer }> {
  const socket = createSocket('udp4');
  socket.send(Buffer.alloc(bytes, 7), 9, '198.18.0.2');
  const got = await next(fd, isUdp);
  socket.close();
  return got;
}

async function frames(): Promise<void> {
  const { fd, name } = tap.openTap({ name: 'tap0' });
  assert.equal(name, 'tap0');
  configure(name);
  const { header, frame } = await sent(fd, 100);
  assert.deepEqual([...header], Array(HEADER).fill(0));
  assert.deepEqual(frame.subarray(0, 6), PEER_MAC);
  assert.equal(frame.length, 142);
  assert.deepEqual(frame.subarray(42), Buffer.alloc(100, 7));

  const socket = createSocket('udp4');
  socket.bind(0, '198.18.0.1');
  await once(socket, 'listening');
  const wire = Buffer.concat([
    Buffer.alloc(HEADER),
    datagramFrame(socket.address().port, Buffer.from('hello')),
  ]);
  const arrival = once(socket, 'message');
  assert.equal(writeSync(fd, wire), wire.length);
  const [message] = (await arrival) as [Buffer];
  assert.equal(message.toString(), 'hello');
  socket.close();

  assert.throws(() => writeSync(fd, wire.subarray(0, HEADER)), { code: 'EINVAL' }, 'no frame');
  assert.throws(() => writeSync(fd, wire.subarray(0, HEADER - 1)), { code: 'EINVAL' }, 'half a header');
  sh('ip link set tap0 down');
  assert.throws(() => writeSync(fd, wire), { code: 'EIO' });
  assert.equal(native().close(fd), 0);
  assert.throws(() => sh('ip link show tap0 2>&1'), 'it goes with its last descriptor');
}

async function offloads(): Promise<void> {
  const { fd, name } = tap.openTap({
    name: 'tap0',
    offloads: OFFLOAD_CSUM | OFFLOAD_TSO4 | OFFLOAD_TSO6,
  });
  configure(name);
  // VIRTIO_NET_HDR_F_NEEDS_CSUM, csum_start behind Ethernet and IPv4, csum_offset of UDP.
  const { header } = await sent(fd, 100);
  assert.deepEqual([header[0], header.readUInt16LE(6), header.readUInt16LE(8)], [1, 34, 6]);
  setTapOffloads(fd, 0);
  assert.deepEqual([...(await sent(fd, 100)).header], Array(HEADER).fill(0));
  setTapOffloads(fd, OFFLOAD_CSUM);
  assert.equal((await sent(fd, 100)).header[0], 1);
  assert.throws(() => setTapOffloads(fd, 1 << 20), { code: 'EINVAL', syscall: 'TUNSETOFFLOAD' });
  assert.equal(native().tapSetVnetHeader(fd, 9), -errnoOf('EINVAL'), 'shorter than the header of old');
  assert.equal(native().tapSetVnetHeader(fd, 10), 0);
  native().close(fd);
}

async function queues(): Promise<void> {
  const first = tap.openTap({ name: 'tap0', multiQueue: true });
  const second = tap.openTap({ name: 'tap0', multiQueue: true });
  assert.throws(() => tap.openTap({ name: 'tap0' }), { code: 'EINVAL' });
  configure('tap0');
  setTapQueue(first.fd, false);
  for (let i = 0; i < 5; i++) await sent(second.fd, 10);
  setTapQueue(first.fd, true);
  setTapQueue(second.fd, false);
  for (let i = 0; i < 5; i++) await sent(first.fd, 10);
  assert.throws(() => setTapQueue(second.fd, false), { code: 'EINVAL', syscall: 'TUNSETQUEUE' });
  native().close(first.fd);
  native().close(second.fd);
  const single = tap.openTap({ name: 'tap1' });
  assert.throws(() => setTapQueue(single.fd, false), { code: 'EINVAL' });
  native().close(single.fd);
}

function names(): void {
  const one = tap.openTap({ name: 'ztx%d' });
  const two = tap.openTap({ name: 'ztx%d' });
  assert.deepEqual([one.name, two.name], ['ztx0', 'ztx1']);
  const longest = tap.openTap({ name: 'x'.repeat(15) });
  assert.equal(longest.name, 'x'.repeat(15));
  for (const name of ['', 'x'.repeat(16), 'a\0b']) {
    assert.throws(() => tap.openTap({ name }), { code: 'EINVAL', message: /no name/ });
  }
  assert.throws(() => tap.openTap({ name: 'ztx0' }), { code: 'EBUSY', message: /another program/ });
  assert.throws(() => tap.openTap({ name: 'a/b' }), { code: 'EINVAL' });
  assert.throws(() => tap.openTap({ name: 'lo' }), { code: 'EINVAL' });
  assert.equal(native().tapOpen(Buffer.from('tap9'), 0x1002, new Uint8Array(15)), -errnoOf('EINVAL'));
  for (const missing of ['nobody0', '', '..', 'a/b']) {
    assert.throws(() => tap.openMacvtap(missing), { code: 'ENODEV' });
  }
  assert.throws(() => tap.openMacvtap('/dev/tap99999'), { code: 'ENOENT', message: /not there/ });
  assert.throws(() => tap.openMacvtap('/dev/null'), { code: 'ENOTTY' });
  for (const { fd } of [one, two, longest]) native().close(fd);
}

function user(): void {
  const { fd } = tap.openTap({ name: 'own' });
  native().close(fd);
  for (const name of ['foreign', 'new']) {
    assert.throws(() => tap.openTap({ name }), { code: 'EPERM', message: /CAP_NET_ADMIN/ });
  }
}

async function events(): Promise<void> {
  const { fd } = tap.openTap({ name: 'tap0' });
  configure('tap0');
  let count = 0;
  let check = (): void => {};
  const registration = reactor().add(fd, EPOLLIN, (seen) => {
    assert.ok((seen & EPOLLIN) !== 0);
    count += 1;
    check();
  });
  const socket = createSocket('udp4');
  // Nobody reads: each frame is an event all the same, unless it comes together with another.
  for (let i = 0; i < 5; i++) {
    const before = count;
    const seen = new Promise<void>((resolve) => {
      check = () => count > before && resolve();
    });
    socket.send(Buffer.alloc(10), 9, '198.18.0.2');
    await seen;
  }
  socket.close();
  registration.remove();
  let datagrams = 0;
  for (let one = read(fd); one !== undefined; one = read(fd)) if (isUdp(one.frame)) datagrams += 1;
  assert.equal(datagrams, 5);
  native().close(fd);
}

/** low <-> far is a veth, mv0 lies on low; far is ours to look at through a packet socket of `ip`'s: its counters. */
async function macvtap(): Promise<void> {
  const { fd } = tap.openMacvtap('mv0', { offloads: OFFLOAD_CSUM | OFFLOAD_TSO4 | OFFLOAD_TSO6 });
  sh(
    'ip addr add 198.18.0.1/24 dev far && ip neigh replace 198.18.0.2 lladdr 02:00:00:00:00:05 dev far nud permanent',
  );
  // To the macvtap's address, so it comes out here; its checksum is left to us, as a veth leaves it.
  const { header, frame } = await sent(fd, 100);
  assert.equal(frame.toString('hex', 0, 6), '020000000005');
  assert.deepEqual(frame.subarray(42), Buffer.alloc(100, 7));
  assert.deepEqual([header[0], header.readUInt16LE(6), header.readUInt16LE(8)], [1, 34, 6]);

  const received = (): number => Number(sh('cat /sys/class/net/far/statistics/rx_bytes'));
  const before = received();
  const out = Buffer.alloc(HEADER + 1014);
  out.write('ffffffffffff020000000005', HEADER, 'hex');
  out.writeUInt16BE(ETHERTYPE_TEST, HEADER + 12);
  assert.equal(writeSync(fd, out), out.length);
  assert.ok(received() - before >= 1014);
  assert.throws(() => setTapOffloads(fd, 1 << 20), { code: 'EINVAL' });
  native().close(fd);
}

function macvtapNames(): void {
  assert.throws(() => tap.openMacvtap('mv0'), { code: 'ENODEV', message: /another network namespace/ });
  assert.throws(() => tap.openMacvtap('low'), { code: 'ENODEV', message: /not a macvtap/ });
}

const parts: Record<string, () => void | Promise<void>> = {
  frames,
  offloads,
  queues,
  names,
  user,
  events,
  macvtap,
  macvtapNames,
};
await parts[process.argv[2] as string]?.();
