/** The server with real sockets, descriptors and mappings. */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync, renameSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { AF_UNIX, SOCK_STREAM } from '../../src/sys/constants.ts';
import { eventfd, memfd } from '../../src/sys/fds.ts';
import type { RingStart } from '../../src/vhost/session-host.ts';
import { encodeSockaddrUn } from '../../src/wire/sockaddr.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import { socketPair } from '../support/descriptors.ts';
import { RawFrontend } from '../support/vhost-peer.ts';
import { greet, newPath, Scene } from '../support/vhost-scene.ts';
import { MIB, region, ringAddress, state, u64 } from '../support/vhost-session.ts';

const timeout = 20_000;
const openFds = (): number => readdirSync('/proc/self/fd').length;
const mappings = (): number =>
  readFileSync('/proc/self/maps', 'utf8')
    .split('\n')
    .filter((line) => line.includes('memfd:guest')).length;

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

/** Waits until no more than `count` mappings are left: those that were looked at go with the garbage. */
async function unmapped(count: number): Promise<void> {
  for (let i = 0; i < 50 && mappings() > count; i++) {
    collectGarbage();
    await new Promise(setImmediate);
  }
  assert.equal(mappings(), count);
}

/** A guest of 16 MiB with two rings that run. Returns the descriptors that the front-end has. */
async function boot(front: RawFrontend): Promise<number[]> {
  await greet(front);
  const ram = memfd('guest', 16 * MIB);
  const fds = [ram];
  assert.equal(await front.ack(5, vhost.encodeMemoryTable([region(0, 16 * MIB)]), [ram]), 0);
  for (const index of [0, 1]) {
    front.say(8, state(index, 256));
    front.say(10, state(index, 0));
    front.say(9, vhost.encodeVringAddress(ringAddress(index)));
    for (const request of [12, 13, 14]) {
      const fd = eventfd();
      fds.push(fd);
      front.say(request, u64(index), [fd]);
    }
    assert.equal(await front.ack(18, state(index, 1)), 0);
  }
  return fds;
}

describe('a server that listens', { timeout }, () => {
  it('serves a front-end, and the next when that has gone', async () => {
    const scene = new Scene('listen');
    scene.server.open();
    assert.equal(statSync(scene.path).mode & 0o777, 0o600);
    for (let i = 1; i <= 3; i++) {
      const front = RawFrontend.connect(scene.path);
      await greet(front);
      assert.equal(scene.server.state, 'connected');
      assert.ok(scene.server.session);
      front.close();
      await scene.is('listening');
      assert.equal(scene.host.error, null);
      assert.equal(scene.hosts.length, i);
    }
    assert.deepEqual(
      { ...scene.server.counters },
      {
        connections: 3,
        disconnects: 3,
        failures: 0,
        rejected: 0,
        refusals: 0,
      },
    );
    scene.server.close();
    assert.equal(existsSync(scene.path), false);
    scene.server.close();
  });

  it('runs rings over memory of the guest, and leaves nothing of it', async () => {
    const [fdsBefore, mapsBefore] = [openFds(), mappings()];
    const scene = new Scene('listen');
    scene.server.open();
    const front = RawFrontend.connect(scene.path);
    const fds = await boot(front);
    const ring = scene.host.rings.get(1) as RingStart;
    assert.equal(ring.size, 256);
    assert.equal(ring.memory.desc.byteLength, 4096);
    assert.equal(ring.memory.used.byteLength, 2054);
    // What the front-end writes is what the ring has.
    const out = Uint8Array.of(1, 2, 3, 4);
    assert.equal(ring.lease.space.write(0x2_0000, out), 0);
    assert.deepEqual(new Uint8Array(ring.memory.desc, 0, 4), out);
    assert.ok(mappings() > mapsBefore);
    assert.deepEqual(vhost.decodeState(await front.ask(11, state(1, 0))), { index: 1, num: 5 });
    assert.equal(ring.memory.desc.byteLength, 0, 'views are taken away when the ring stops');
    front.close();
    await scene.is('listening');
    scene.server.close();
    for (const fd of fds) calls.close(fd);
    assert.equal(openFds(), fdsBefore);
    await unmapped(mapsBefore);
  });

  it('keeps the mapping of a table whose files come again, and makes a new one for other files', async () => {
    const scene = new Scene('listen');
    scene.server.open();
    const front = RawFrontend.connect(scene.path);
    const fds = await boot(front);
    const { lease } = scene.server.session?.state.memory ?? {};
    const table = vhost.encodeMemoryTable([region(0, 16 * MIB)]);
    assert.equal(await front.ack(5, table, [fds[0] as number]), 0);
    assert.equal(scene.server.session?.state.memory.lease, lease);
    const other = memfd('guest', 16 * MIB);
    assert.equal(await front.ack(5, table, [other]), 0);
    assert.notEqual(scene.server.session?.state.memory.lease, lease);
    // A file that is too short, and one that is none.
    const short = memfd('guest', MIB);
    assert.equal(await front.ack(5, table, [short]), 27);
    const [a, b] = socketPair();
    assert.equal(await front.ack(5, table, [a]), 13);
    for (const fd of [...fds, other, short, a, b]) calls.close(fd);
    front.close();
    await scene.is('listening');
    scene.server.close();
  });

  it('case 49: closes a second front-end at once, and goes on with the first', async () => {
    const scene = new Scene('listen');
    scene.server.open();
    const first = RawFrontend.connect(scene.path);
    await greet(first);
    for (let i = 0; i < 10; i++) {
      const second = RawFrontend.connect(scene.path);
      await second.closed();
      second.close();
    }
    assert.equal(scene.server.counters.rejected, 10);
    await greet(first);
    first.close();
    scene.server.close();
  });

  it('takes a new front-end for one that has gone without its having noticed', async () => {
    const scene = new Scene('listen');
    scene.server.open();
    const first = RawFrontend.connect(scene.path);
    await greet(first);
    // Both happen before the server is told of either.
    first.close();
    const second = RawFrontend.connect(scene.path);
    await greet(second);
    assert.equal(scene.server.counters.rejected, 0);
    assert.equal(scene.hosts.length, 2);
    second.close();
    scene.server.close();
  });

  it('case 49: descriptors are flat after 1000 front-ends, wherever they leave', async () => {
    const scene = new Scene('listen');
    scene.server.open();
    const file = eventfd();
    let before = 0;
    const whole = vhost.encodeMessage(12, 0, u64(0));
    for (let i = 0; i < 1000; i++) {
      const front = RawFrontend.connect(scene.path);
      if (i % 4 === 0) await front.ask(1);
      if (i % 4 === 1) front.raw(whole.subarray(0, i % whole.length || 1), [file]);
      if (i % 4 === 2) for (const index of [0, 1, 2]) front.say(12 + (index % 3), u64(index), [file]);
      front.close();
      await scene.is('connected');
      await scene.is('listening');
      if (i === 10) before = openFds();
    }
    assert.equal(openFds(), before);
    assert.equal(scene.server.counters.connections, 1000);
    calls.close(file);
    scene.server.close();
  });

  it('case 35: ends a connection that makes no sense, with the reason, and serves the next', async () => {
    const scene = new Scene('listen');
    scene.server.open();
    for (const words of [
      [1, 0, 0],
      [1, 2, 0],
      [1, 5, 0],
      [5, 1, 0x1_0000],
    ]) {
      const front = RawFrontend.connect(scene.path);
      const file = eventfd();
      front.raw(new Uint8Array(Uint32Array.from(words).buffer), [file]);
      await front.closed();
      assert.match(String(scene.host.error), /EPROTO|vhost-user front-end sent/);
      front.close();
      calls.close(file);
    }
    assert.equal(scene.server.counters.failures, 4);
    const front = RawFrontend.connect(scene.path);
    await greet(front);
    front.close();
    scene.server.close();
  });

  it('reads messages in any pieces', async () => {
    const scene = new Scene('listen');
    scene.server.open();
    const front = RawFrontend.connect(scene.path);
    const bytes = Buffer.concat([
      vhost.encodeMessage(3, 0),
      vhost.encodeMessage(8, 8, state(0, 256)),
      vhost.encodeMessage(1, 0),
    ]);
    for (const byte of bytes) {
      front.raw(Uint8Array.of(byte));
      await new Promise(setImmediate);
    }
    assert.deepEqual(await front.reply(8), new Uint8Array(8));
    assert.equal((await front.reply(1)).length, 8);
    front.close();
    scene.server.close();
  });

  it('stops reading from a front-end that does not read, and loses no reply', async () => {
    const scene = new Scene('listen');
    scene.server.open();
    const front = RawFrontend.connect(scene.path);
    const batch = Buffer.concat(Array.from({ length: 100 }, () => vhost.encodeMessage(1, 0)));
    let said = 0;
    // Until neither of us has room: each turn it reads what it may.
    for (let idle = 0; idle < 50; ) {
      const sent = native().sendv(front.fd, [batch], 1, 0);
      if (sent > 0) assert.equal(sent % 12, 0);
      said += Math.max(sent, 0) / 12;
      idle = sent > 0 ? 0 : idle + 1;
      await new Promise(setImmediate);
    }
    const { counters } = scene.server.session ?? {};
    assert.ok((counters?.messages ?? 0) < said);
    for (let i = 0; i < said; i++) await front.reply(1);
    assert.equal(counters?.messages, said);
    front.close();
    scene.server.close();
  });

  it('takes it for an ordinary end when a front-end leaves without having read its replies', async () => {
    const scene = new Scene('listen');
    scene.server.open();
    const front = RawFrontend.connect(scene.path);
    for (let i = 0; i < 3; i++) front.say(1);
    await scene.is('connected');
    while ((scene.server.session?.counters.messages ?? 0) < 3) await new Promise(setImmediate);
    front.close();
    await scene.is('listening');
    assert.equal(scene.host.error, null);
    assert.equal(scene.server.counters.disconnects, 1);
    scene.server.close();
  });

  it('holds what comes after a message that waits, and lets go when the front-end goes', async () => {
    const scene = new Scene('listen');
    scene.server.open();
    const front = RawFrontend.connect(scene.path);
    const fds = await boot(front);
    let release: (base: number) => void = () => {};
    scene.host.stop = () =>
      new Promise((resolve) => {
        release = resolve;
      });
    front.say(11, state(1, 0));
    front.say(19, u64(1));
    front.say(1);
    for (let i = 0; i < 10; i++) await new Promise(setImmediate);
    assert.deepEqual(scene.host.rarps, []);
    release(77);
    assert.deepEqual(vhost.decodeState(await front.reply(11)), { index: 1, num: 77 });
    await front.reply(1);
    assert.equal(scene.host.rarps.length, 1);
    front.say(11, state(0, 0));
    front.close();
    await scene.is('listening');
    assert.equal(scene.host.error, null);
    release(1);
    for (const fd of fds) calls.close(fd);
    scene.server.close();
  });

  it('replaces the file of a server that died, and only such a file', async () => {
    const path = newPath();
    const fd = calls.socket(AF_UNIX, SOCK_STREAM);
    assert.equal(native().bind(fd, encodeSockaddrUn(path)), 0);
    calls.listen(fd, 1);
    assert.throws(() => new Scene('listen', { path }).server.open(), { code: 'EADDRINUSE' });
    calls.close(fd);
    const scene = new Scene('listen', { path, socketMode: 0o660 });
    scene.server.open();
    assert.equal(statSync(path).mode & 0o777, 0o660);
    const front = RawFrontend.connect(path);
    await greet(front);
    front.close();
    scene.server.close();

    writeFileSync(path, 'precious');
    assert.throws(() => scene.server.open(), { code: 'EADDRINUSE' });
    assert.equal(readFileSync(path, 'utf8'), 'precious');
    assert.equal(scene.server.state, 'closed');
    assert.throws(() => new Scene('listen', { path: join(path, 'x') }).server.open(), /ENOTDIR/);
    assert.throws(() => new Scene('listen', { path: `/${'x'.repeat(200)}` }).server.open(), {
      code: 'ENAMETOOLONG',
    });
  });

  it('leaves a file that another put in its place', () => {
    const scene = new Scene('listen');
    scene.server.open();
    const other = new Scene('listen');
    other.server.open();
    renameSync(other.path, scene.path);
    scene.server.close();
    assert.equal(existsSync(scene.path), true);
    other.server.close();
  });

  it('ends a connection when its owner says so', async () => {
    const scene = new Scene('listen');
    scene.server.open();
    const front = RawFrontend.connect(scene.path);
    await greet(front);
    scene.server.disconnect(new Error('the guest is broken'));
    await front.closed();
    assert.equal(scene.server.state, 'listening');
    assert.match(String(scene.server.lastError), /the guest is broken/);
    front.close();
    scene.server.close();
  });
});
