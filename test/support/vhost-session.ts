/** A front-end for sessions without sockets: says messages, collects replies, and knows how a device is brought up. */
import assert from 'node:assert/strict';
import type { Frontend } from '../../src/vhost/features.ts';
import { Framer } from '../../src/vhost/framing.ts';
import { Session } from '../../src/vhost/session.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import { FakeCalls, RecordingHost } from './vhost-host.ts';

export interface Sent {
  readonly fds?: readonly number[];
  /** Asks for an acknowledgement. */
  readonly ack?: boolean;
  /** Instead of version 1 alone. */
  readonly flags?: number;
}

/** Both ends: bytes and descriptors go through a Framer, replies are collected. */
export class Dialogue {
  readonly calls: FakeCalls = new FakeCalls();
  readonly host: RecordingHost = new RecordingHost(this.calls);
  readonly framer: Framer = new Framer((fd) => this.calls.close(fd));
  readonly session: Session;
  replies: Uint8Array[] = [];
  /** A message waits. */
  held: Promise<void> | null = null;

  constructor(
    options: { frontend?: Frontend; pairs?: number; offloads?: number; regionBytesMax?: number } = {},
  ) {
    const { frontend = 'qemu', pairs = 1, offloads = 15, regionBytesMax } = options;
    this.session = new Session(
      this.host,
      {
        offer: { frontend, pairs, offloads },
        ...(regionBytesMax === undefined ? {} : { regionBytesMax }),
      },
      this.calls,
      (bytes) => this.replies.push(bytes),
    );
  }

  /** Sends a message and returns what came back for it, header and all; nothing while it waits. */
  send(
    request: number,
    payload: Uint8Array = new Uint8Array(0),
    { fds = [], ack = false, flags = 0 }: Sent = {},
  ): Uint8Array[] {
    const bytes = vhost.encodeMessage(request, flags | (ack ? vhost.VHOST_USER_NEED_REPLY : 0), payload);
    this.replies = [];
    this.feed(bytes, fds);
    return this.replies;
  }

  /** Bytes of the stream; `fds` come with the first read of them. */
  feed(bytes: Uint8Array, fds: readonly number[] = []): void {
    let at = 0;
    let left = fds;
    while (at < bytes.length) {
      assert.equal(this.held, null, 'nothing is read while a message waits');
      const room = this.framer.wanted();
      const part = bytes.subarray(at, at + room.length);
      room.set(part);
      at += part.length;
      const message = this.framer.took(part.length, left);
      left = [];
      if (message === null) continue;
      const held = this.session.handle(message);
      if (held === null) continue;
      this.held = held.then(() => {
        this.held = null;
      });
    }
  }

  /** The errno that a message is answered with. */
  ack(request: number, payload?: Uint8Array, fds: readonly number[] = []): number {
    const replies = this.send(request, payload, { fds, ack: true });
    assert.equal(replies.length, 1, 'exactly one reply');
    return replyNumber(replies[0] as Uint8Array, request);
  }

  /** The number that a request is answered with. */
  get(request: number, payload?: Uint8Array): number {
    const replies = this.send(request, payload);
    assert.equal(replies.length, 1, 'exactly one reply');
    return replyNumber(replies[0] as Uint8Array, request);
  }

  /** The base of a ring, by GET_VRING_BASE. */
  base(index: number): number {
    const replies = this.send(vhost.VHOST_USER_GET_VRING_BASE, state(index, 0));
    assert.equal(replies.length, 1, 'exactly one reply');
    return replyBase(replies[0] as Uint8Array, index);
  }

  file(name?: string): number {
    return this.calls.files.open(name);
  }

  /** Ends the session and checks that nothing is left. */
  end(): void {
    this.framer.end();
    this.session.end(null);
    assert.equal(this.calls.files.count, 0, 'descriptors are closed');
    assert.deepEqual(
      this.calls.liveSpaces.map(({ id }) => id),
      [],
      'spaces are destroyed',
    );
  }
}

export function replyBase(reply: Uint8Array, index: number): number {
  const { payload } = readReply(reply, vhost.VHOST_USER_GET_VRING_BASE);
  const answer = vhost.decodeState(payload);
  assert.equal(payload.length, 8);
  assert.equal(answer?.index, index);
  return answer.num;
}

function replyNumber(reply: Uint8Array, request: number): number {
  const { payload } = readReply(reply, request);
  assert.equal(payload.length, 8);
  return Number(new DataView(payload.buffer, payload.byteOffset).getBigUint64(0, true));
}

/** Flags must be exactly version and reply. */
export function readReply(reply: Uint8Array, request: number): { payload: Uint8Array } {
  const header = vhost.decodeHeader(reply);
  assert.equal(header.request, request);
  assert.equal(header.flags, 5);
  assert.equal(header.size, reply.length - 12);
  return { payload: reply.subarray(12) };
}

export function u64(value: number | bigint): Uint8Array {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(value), true);
  return bytes;
}

export function state(index: number, num: number): Uint8Array {
  return vhost.encodeState({ index, num });
}

/** Where tests have guest memory: guest 0 is user USER. */
export const USER = 0x7f00_0000_0000n;
export const MIB: number = 2 ** 20;

export function region(guest: number, bytes: number, user?: bigint, offset?: number): vhost.MemoryRegion {
  return {
    guestAddress: BigInt(guest),
    bytes: BigInt(bytes),
    userAddress: user ?? USER + BigInt(guest),
    mmapOffset: BigInt(offset ?? guest),
  };
}

/** Ring `index`: its three parts in a page each, from 64 KiB on. */
export function ringAddress(index: number, user: bigint = USER): vhost.VringAddress {
  const at = user + 0x1_0000n + BigInt(index) * 0x1_0000n;
  return { index, flags: 0, desc: at, avail: at + 0x4000n, used: at + 0x8000n, log: 0n };
}

/** Bits 28, 29, 32, 35 and 30: what rings care about, and what QEMU cares about. */
export const PLAIN_FEATURES = 0x9_7000_0000n;

/** Everything up to a running, enabled pair of rings. */
export function bringUp(dialogue: Dialogue, indexes: readonly number[] = [0, 1]): void {
  assert.equal(dialogue.ack(vhost.VHOST_USER_SET_FEATURES, u64(PLAIN_FEATURES)), 0);
  assert.equal(
    dialogue.ack(vhost.VHOST_USER_SET_MEM_TABLE, vhost.encodeMemoryTable([region(0, 16 * MIB)]), [
      dialogue.file('ram'),
    ]),
    0,
  );
  for (const index of indexes) {
    setUpRing(dialogue, index);
    assert.equal(dialogue.ack(vhost.VHOST_USER_SET_VRING_ENABLE, state(index, 1)), 0);
  }
}

export function setUpRing(dialogue: Dialogue, index: number, base = 0): void {
  assert.equal(dialogue.ack(vhost.VHOST_USER_SET_VRING_NUM, state(index, 256)), 0);
  assert.equal(dialogue.ack(vhost.VHOST_USER_SET_VRING_BASE, state(index, base)), 0);
  assert.equal(
    dialogue.ack(vhost.VHOST_USER_SET_VRING_ADDR, vhost.encodeVringAddress(ringAddress(index))),
    0,
  );
  assert.equal(dialogue.ack(vhost.VHOST_USER_SET_VRING_KICK, u64(index), [dialogue.file('kick')]), 0);
  assert.equal(dialogue.ack(vhost.VHOST_USER_SET_VRING_CALL, u64(index), [dialogue.file('call')]), 0);
}
