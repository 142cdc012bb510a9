/** What a laboratory's client asks of test/ports/children/lab-peer.ts, and how it judges the answers. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { connect } from 'node:net';

/** Bytes without a short period. */
export function labPattern(bytes: number): Buffer {
  const out = Buffer.allocUnsafe(bytes);
  let state = 1;
  for (let i = 0; i < bytes; i++) {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    out[i] = state >>> 16;
  }
  return out;
}

/** Sends so many bytes over TCP, and fetches as many: both as they should be. */
export async function exchangeTcp(address: string, port: number, bytes: number): Promise<void> {
  const sent = labPattern(bytes);
  const socket = connect(port, address);
  const chunks: Buffer[] = [];
  socket.on('data', (data: Buffer) => chunks.push(data));
  await once(socket, 'connect');
  const head = Buffer.alloc(8);
  head.writeUInt32BE(bytes, 0);
  head.writeUInt32BE(bytes, 4);
  socket.write(head);
  socket.write(sent);
  await once(socket, 'end');
  socket.end();
  const answer = Buffer.concat(chunks);
  assert.equal(answer.length, 32 + bytes);
  assert.equal(answer.subarray(0, 32).toString('hex'), createHash('sha256').update(sent).digest('hex'));
  assert.equal(Buffer.compare(answer.subarray(32), sent), 0);
}

/** A datagram of each length, there and back. */
export async function echoUdp(address: string, port: number, lengths: readonly number[]): Promise<void> {
  const socket = createSocket('udp4');
  try {
    for (const length of lengths) {
      const sent = labPattern(length);
      socket.send(sent, port, address);
      const [back] = (await once(socket, 'message')) as [Buffer];
      assert.equal(Buffer.compare(back, sent), 0, `${length} bytes`);
    }
  } finally {
    socket.close();
  }
}

/** The checksum of an IPv4 header, whose own field is zero (RFC 1071). */
export function internetChecksum(bytes: Uint8Array): number {
  let sum = 0;
  for (let i = 0; i < bytes.length; i += 2) sum += ((bytes[i] as number) << 8) | (bytes[i + 1] ?? 0);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16);
  return ~sum & 0xffff;
}
