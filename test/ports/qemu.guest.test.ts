/**
 * Stream and datagram ports with QEMU's own `-netdev stream` and `-netdev dgram`: its network boot asks for an address, gets
 * an offer from us, and asks for that one. So frames were understood in both directions.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, describe, it } from 'node:test';
import type { Port } from '../../src/core/port.ts';
import { DgramPort } from '../../src/ports/dgram.ts';
import { StreamPort } from '../../src/ports/stream.ts';
import { readU16, writeU16, writeU32 } from '../../src/wire/bytes.ts';
import { onPath } from '../guest/kernel.ts';
import { FrameSink } from '../support/frames.ts';
import { internetChecksum } from '../support/lab-client.ts';
import { atEnd, closePorts, guest, opened } from '../support/ports.ts';

const found = await onPath('qemu-system-x86_64');
const skip = found === null ? 'needs the package qemu-system-x86' : false;
const folder = mkdtempSync(join(tmpdir(), 'zerotx-qemu-'));

after(() => rmSync(folder, { recursive: true }));
afterEach(closePorts);

const UDP_AT = 34;
const BOOTP_AT = 42;
const XID_AT = BOOTP_AT + 4;
const CHADDR_AT = BOOTP_AT + 28;
const OPTIONS_AT = BOOTP_AT + 240;
const DISCOVER = 1;
const REQUEST = 3;
const OFFERED = [10, 5, 0, 2];

/** The options of a DHCP message from a client; null for any other frame. */
function dhcpOptions(bytes: Uint8Array): Map<number, Uint8Array> | null {
  if (readU16(bytes, 12) !== 0x0800 || bytes[23] !== 17 || readU16(bytes, UDP_AT + 2) !== 67) return null;
  const options = new Map<number, Uint8Array>();
  for (let at = OPTIONS_AT; bytes[at] !== 0xff && at + 1 < bytes.length; at += 2 + bytes[at + 1]!) {
    options.set(bytes[at]!, bytes.subarray(at + 2, at + 2 + bytes[at + 1]!));
  }
  return options;
}

function offer(discover: Uint8Array): Uint8Array {
  const options = [53, 1, 2, 54, 4, 10, 5, 0, 1, 51, 4, 0, 0, 1, 0, 1, 4, 255, 255, 255, 0, 255];
  const out = new Uint8Array(OPTIONS_AT + 64);
  out.set(discover.subarray(6, 12));
  out.set([2, 0, 0, 0, 0, 1, 0x08, 0x00, 0x45], 6);
  writeU16(out, 16, out.length - 14);
  out.set([64, 17], 22);
  out.set([10, 5, 0, 1, 255, 255, 255, 255], 26);
  writeU16(out, 24, internetChecksum(out.subarray(14, UDP_AT)));
  writeU16(out, UDP_AT, 67);
  writeU16(out, UDP_AT + 2, 68);
  writeU16(out, UDP_AT + 4, out.length - UDP_AT);
  out.set([2, 1, 6], BOOTP_AT);
  out.set(discover.subarray(XID_AT, XID_AT + 4), XID_AT);
  out.set(OFFERED, BOOTP_AT + 16);
  out.set(discover.subarray(CHADDR_AT, CHADDR_AT + 6), CHADDR_AT);
  writeU32(out, OPTIONS_AT - 4, 0x63825363);
  out.set(options, OPTIONS_AT);
  return out;
}

function boot(netdev: string): void {
  const args = ['-M', 'q35', '-m', '64', '-nodefaults', '-display', 'none'];
  args.push('-netdev', `${netdev},id=n0`, '-device', 'virtio-net-pci,netdev=n0,mac=52:54:00:00:00:09');
  const child = spawn(found as string, args, { stdio: ['ignore', 'ignore', 'inherit'] });
  atEnd(async () => {
    if (child.exitCode !== null) return;
    const closed = once(child, 'close');
    child.kill('SIGKILL');
    await closed;
  });
}

async function serve(port: Port): Promise<void> {
  const sink = new FrameSink(port);
  sink.wants = (bytes) => dhcpOptions(bytes) !== null;
  const source = guest();
  for (let i = 0; ; i++) {
    await sink.until(i + 1);
    const message = sink.frames[i]!;
    const options = dhcpOptions(message)!;
    assert.deepEqual([...message.subarray(6, 12)], [0x52, 0x54, 0, 0, 0, 9]);
    const [kind] = options.get(53)!;
    if (kind === DISCOVER) await source.send(port, [offer(message)]);
    else {
      assert.equal(kind, REQUEST);
      assert.deepEqual([...options.get(50)!], OFFERED);
      return;
    }
  }
}

describe('the network boot of a QEMU guest', { skip, timeout: 240_000 }, () => {
  it('asks over a stream: TCP', async () => {
    const port = await opened(new StreamPort({ name: 's', listen: true, port: 0 }));
    boot(`stream,server=off,addr.type=inet,addr.host=127.0.0.1,addr.port=${port.listeningPort}`);
    await serve(port);
  });

  it('asks over a stream: a Unix socket, where QEMU listens', async () => {
    const path = join(folder, 'stream.sock');
    const port = await opened(new StreamPort({ name: 's', path }));
    boot(`stream,server=on,addr.type=unix,addr.path=${path}`);
    await serve(port);
  });

  it('asks in datagrams: UDP', async () => {
    const ours = 17_000 + 2 * (process.pid % 1000);
    const theirs = ours + 1;
    const at = (port: number) => ({ address: '127.0.0.1', port });
    const port = await opened(new DgramPort({ name: 'd', local: at(ours), remote: at(theirs) }));
    const inet = (end: string, number: number) =>
      `${end}.type=inet,${end}.host=127.0.0.1,${end}.port=${number}`;
    boot(`dgram,${inet('local', theirs)},${inet('remote', ours)}`);
    await serve(port);
  });

  it('asks in datagrams: Unix sockets', async () => {
    const [ours, theirs] = [join(folder, 'a.sock'), join(folder, 'b.sock')];
    const port = await opened(new DgramPort({ name: 'd', local: { path: ours }, remote: { path: theirs } }));
    boot(`dgram,local.type=unix,local.path=${theirs},remote.type=unix,remote.path=${ours}`);
    await serve(port);
  });
});
