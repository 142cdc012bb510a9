/** VXLAN ports on loopback, against each other and against datagrams made by hand. */
import assert from 'node:assert/strict';
import { createSocket, type Socket } from 'node:dgram';
import { once } from 'node:events';
import { afterEach, describe, it } from 'node:test';
import { type VxlanOptions, VxlanPort } from '../../src/ports/vxlan.ts';
import { encodeVxlan, VXLAN_HEADER_BYTES } from '../../src/wire/vxlan.ts';
import { assertFrames, FrameSink, frame, sendAll } from '../support/frames.ts';
import { addHead, table } from '../support/guest-memory.ts';
import { atEnd, closePorts, guest, opened, settled } from '../support/ports.ts';
import { skipFamily } from '../support/udp.ts';

afterEach(closePorts);

let nextPort = 20_000 + (process.pid % 10_000);

/** Ends with addresses of their own and one UDP port, each with all the others as remote ends. */
async function ends(count: number, options: Partial<VxlanOptions> = {}): Promise<VxlanPort[]> {
  const addresses = Array.from({ length: count }, (_, i) => `127.0.0.${i + 2}`);
  const port = nextPort++;
  const ports = addresses.map((local) => {
    const remotes = addresses.filter((address) => address !== local);
    return new VxlanPort({ name: local, vni: 42, local, remotes, port, ...options });
  });
  for (const one of ports) await opened(one);
  return ports;
}

async function udp(address: string, port: number): Promise<Socket> {
  const socket = createSocket('udp4');
  atEnd(() => socket.close());
  socket.bind(port, address);
  await once(socket, 'listening');
  return socket;
}

function packet(vni: number, bytes: Uint8Array): Uint8Array {
  const out = new Uint8Array(VXLAN_HEADER_BYTES + bytes.length);
  encodeVxlan(out, 0, vni);
  out.set(bytes, VXLAN_HEADER_BYTES);
  return out;
}

/** From one address to another, each told by a number. */
function between(from: number, to: number, seed: number, bytes = 100): Uint8Array {
  const out = frame(bytes, seed);
  out.set([0x02, 0, 0, 0, 0, to, 0x02, 0, 0, 0, 0, from]);
  return out;
}

const BROADCAST = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff];

describe('a VXLAN port', { timeout: 60_000 }, () => {
  for (const zerocopy of ['auto', 'force', 'off'] as const) {
    it(`carries frames, byte for byte: zerocopy ${zerocopy}`, async () => {
      const [one, other] = (await ends(2, { mtu: 9000, zerocopy })) as [VxlanPort, VxlanPort];
      const sink = new FrameSink(other);
      const source = guest({ memoryBytes: 8 << 20 });
      const frames = Array.from({ length: 40 }, (_, i) => frame(14 + ((i * 701) % 9000), i));
      for (let round = 1; round <= 5; round++) {
        // In portions that a receive buffer holds.
        await source.send(one, frames.slice(0, 20));
        await sink.until(40 * round - 20);
        await source.send(one, frames.slice(20));
        await sink.until(40 * round);
      }
      // Several sockets: the order between flows is open.
      const byBytes = (a: Uint8Array, b: Uint8Array): number => a.length - b.length;
      assertFrames(sink.frames.slice(-40).sort(byBytes), [...frames].sort(byBytes));
      assert.equal(one.counters.txFrames, 200);
      await settled(source);
      assert.equal(one.zerocopy.pinnedBytes, 0);
      if (zerocopy === 'force') {
        assert.ok(one.counters.txLentBytes > 100 * 4000);
        assert.ok(
          source.loans.every(({ outcome }) => (outcome?.copiedBytes ?? 0) > 0),
          'loopback copies',
        );
      } else assert.equal(one.counters.txLentBytes, 0);
    });
  }

  for (const [name, family, addresses] of [
    ['IPv4', 'udp4', ['127.0.0.2', '127.0.0.3']],
    ['IPv6', 'udp6', ['::1', '::1']],
  ] as const) {
    it(`carries runs of frames of one length, over ${name}`, { skip: skipFamily(family) }, async () => {
      const port = nextPort++;
      const [local, remote] = addresses;
      const options = { name, vni: 42, port, mtu: 9000, zerocopy: 'off' } as const;
      const one = await opened(new VxlanPort({ ...options, local, remotes: [remote] }));
      // Over IPv6 it talks to itself, as ::1 is alone on a loopback device.
      const other =
        local === remote ? one : await opened(new VxlanPort({ ...options, local: remote, remotes: [local] }));
      const sink = new FrameSink(other);
      const source = guest({ memoryBytes: 8 << 20 });
      const expected: Uint8Array[] = [];
      for (const bytes of [60, 1514, 9014]) {
        // As a guest's TCP cuts: many of a length, and a rest; all of one flow.
        const frames = Array.from({ length: 12 }, (_, i) =>
          frame(i % 6 === 5 ? bytes - 20 : bytes, i + bytes),
        );
        expected.push(...frames);
        await source.send(one, frames);
        await sink.until(expected.length);
      }
      assertFrames(sink.frames, expected);
      assert.equal(one.counters.txErrors, 0);
    });
  }

  it('understands itself over IPv6', { skip: skipFamily('udp6') }, async () => {
    const port = nextPort++;
    // One address for both: what is sent comes back.
    const one = await opened(new VxlanPort({ name: 'v6', vni: 1, local: '::1', remotes: ['::1'], port }));
    const sink = new FrameSink(one);
    await guest().send(one, [frame(1000, 1)]);
    await sink.until(1);
    assertFrames(sink.frames, [frame(1000, 1)]);
  });

  it('takes no other virtual network, nothing from strangers, and no rubbish', async () => {
    const [one] = (await ends(1, { remotes: ['127.0.0.9'], local: '127.0.0.2' })) as [VxlanPort];
    const port = nextPort - 1;
    const sink = new FrameSink(one);
    const friend = await udp('127.0.0.9', 0);
    const stranger = await udp('127.0.0.8', 0);
    const good = frame(60, 1);
    const flagless = packet(42, good);
    flagless[0] = 0xf7;
    const send = (socket: Socket, bytes: Uint8Array): void => socket.send(bytes, port, '127.0.0.2');
    send(stranger, packet(42, good));
    for (const bytes of [
      new Uint8Array(0),
      new Uint8Array(7),
      packet(42, new Uint8Array(0)),
      packet(42, new Uint8Array(13)),
      packet(43, good),
      packet(42 << 8, good),
      flagless,
      packet(42, frame(9000, 1)),
      packet(42, frame(1450 + 14 + 4, 2)),
    ]) {
      send(friend, bytes);
    }
    await sink.until(1);
    assertFrames(sink.frames, [frame(1468, 2)]);
    assert.deepEqual(one.vxlan, { badHeaders: 3, strangers: 1, flooded: 0 });
    assert.equal(one.counters.rxErrors, 9);
  });

  it('sends to all what nobody was heard from, and learns', async () => {
    const ports = (await ends(4)) as [VxlanPort, VxlanPort, VxlanPort, VxlanPort];
    const sinks = ports.map((port) => new FrameSink(port));
    const source = guest();
    const hello = between(1, 0, 1);
    hello.set(BROADCAST);
    await source.send(ports[0], [hello]);
    for (const sink of sinks.slice(1)) await sink.until(1);
    assert.equal(ports[0].vxlan.flooded, 3);
    // All of them know where 1 is; it does not know where they are.
    await source.send(ports[2], [between(3, 1, 2)]);
    await sinks[0]!.until(1);
    assertFrames(sinks[0]!.frames, [between(3, 1, 2)]);
    await source.send(ports[0], [between(1, 3, 3), between(1, 3, 4)]);
    await sinks[2]!.until(3);
    assertFrames(sinks[2]!.frames.slice(1), [between(1, 3, 3), between(1, 3, 4)]);
    assert.equal(ports[0].vxlan.flooded, 3);
    assert.deepEqual(
      sinks.map(({ frames }) => frames.length),
      [1, 1, 3, 1],
    );
  });

  it('goes on when nobody listens', async () => {
    const [one] = (await ends(1, { remotes: ['127.0.0.9'], local: '127.0.0.2' })) as [VxlanPort];
    const port = nextPort - 1;
    const source = guest();
    for (let i = 0; i < 20; i++) {
      await source.send(one, [frame(60, i), frame(1400, i)]);
      await new Promise((resolve) => setImmediate(resolve));
    }
    assert.ok(one.counters.txErrors > 0);
    const late = await udp('127.0.0.9', port);
    const heard = once(late, 'message');
    const again = setInterval(() => void source.send(one, [frame(60, 1)]), 1);
    atEnd(() => clearInterval(again));
    const [bytes] = (await heard) as [Buffer];
    assertFrames([bytes], [packet(42, frame(60, 1))]);
  });

  it('drops what is no frame, and what no datagram holds', async () => {
    const [one, other] = (await ends(2, { mtu: 65_535 })) as [VxlanPort, VxlanPort];
    const sink = new FrameSink(other);
    const host = table(3, 0, 66_000);
    addHead(host, new Uint8Array(13));
    addHead(host, frame(65_530, 1));
    addHead(host, frame(65_499, 2));
    await sendAll(one, host);
    await sink.until(1);
    assertFrames(sink.frames, [frame(65_499, 2)]);
    assert.equal(one.counters.txDropped, 1);
    assert.equal(one.counters.txErrors, 1);
  });

  it('cannot be opened twice on one address', async () => {
    const [one] = (await ends(1, { remotes: ['127.0.0.9'], local: '127.0.0.2' })) as [VxlanPort];
    const port = nextPort - 1;
    const options = { name: 'x', vni: 1, remotes: ['127.0.0.9'], local: '127.0.0.2', port };
    await assert.rejects(new VxlanPort(options).open(), { code: 'EADDRINUSE' });
    assert.equal(one.isUp, true);
    await one.close();
    await opened(new VxlanPort(options));
  });
});
