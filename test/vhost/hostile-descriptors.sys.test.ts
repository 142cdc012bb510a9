/**
 * Kick, call and error descriptors of a front-end that is hostile: such as would make us wait, such as would make us run in a circle,
 * and more of them than there are rings.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { constants, openSync, writeSync } from 'node:fs';
import { afterEach, describe, it } from 'node:test';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { SO_SNDBUF, SOL_SOCKET } from '../../src/sys/constants.ts';
import { adopt, eventfd } from '../../src/sys/fds.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import { sendWithFds, socketPair } from '../support/descriptors.ts';
import { type Oddities, oddities } from '../support/hostile-fds.ts';
import { counter, type HostileGuest, PAYLOAD, RX, soon, TX, turns } from '../support/hostile-guest.ts';
import {
  deliver,
  endScenes,
  frameOf,
  openFds,
  openScene,
  type Scene,
  Witness,
} from '../support/hostile-scene.ts';
import { RawFrontend } from '../support/vhost-peer.ts';
import { greet, newPath, Scene as ServerScene } from '../support/vhost-scene.ts';
import { u64 } from '../support/vhost-session.ts';

const timeout = 60_000;
const EPERM = 1;
const KICK = 12;
const CALL = 13;
const ERR = 14;
/** The largest that an eventfd counts to. */
const FULL = 2n ** 64n - 2n;

async function sends(scene: Scene, guest: HostileGuest, kick: () => void = () => {}): Promise<void> {
  const came = scene.recorder.count;
  guest.send(frameOf(300, came));
  kick();
  await soon('its descriptor', () => guest.tx.driver.reap().length === 1);
  assert.equal(scene.recorder.count, came + 1);
}

/** Makes writes to it wait, and fills it. libuv clears the flag for a child's standard input. */
function clogged(): number {
  const fd = eventfd();
  assert.equal(spawnSync('true', { stdio: [fd, 'ignore', 'ignore'] }).status, 0);
  writeSync(fd, new Uint8Array(BigUint64Array.of(FULL).buffer));
  return fd;
}

describe('kick/call fd is a file/socket/blocking pipe', { timeout }, () => {
  afterEach(endScenes);

  for (const [name, request] of [
    ['kick', KICK],
    ['call', CALL],
    ['err', ERR],
  ] as const) {
    it(`${name}: an eventfd is taken, and nothing else: the rest is refused and closed`, async () => {
      const witness = await Witness.arrive();
      const scene = await openScene();
      const guest = await scene.boot();
      const odd: Oddities = oddities();
      const baseline = openFds();
      for (const [what, fd] of odd.all) {
        const answer = await guest.front.ack(request, u64(TX), [fd]);
        assert.equal(answer, EPERM, what);
        assert.equal(
          await guest.front.ack(request, u64(TX), [name === 'call' ? guest.tx.callFd : guest.tx.kickFd]),
          0,
        );
        await soon(`${what} is closed`, () => openFds() === baseline);
        await sends(scene, guest);
      }
      odd.close();
      await witness.testifies();
    });
  }

  it('a call descriptor that is full, and waits when it is written to: signalled, and nobody waits', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    const fd = clogged();
    for (const request of [CALL, ERR]) {
      assert.equal(await guest.front.ack(request, u64(TX), [fd]), 0);
      assert.equal(await guest.front.ack(request, u64(RX), [fd]), 0);
    }
    for (let i = 0; i < 50; i++) {
      await sends(scene, guest);
      guest.post(PAYLOAD, 2000);
      deliver(scene, frameOf(100));
      assert.equal(guest.rx.driver.reap().length, 1);
    }
    guest.tx.offer(999);
    guest.tx.kick();
    await soon('broken', () => scene.broken.length === 1);
    calls.close(fd);
  });

  it('a kick descriptor that is full: each signal of the kernel is heard', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    const fd = clogged();
    assert.equal(await guest.front.ack(KICK, u64(TX), [fd]), 0);
    for (let i = 0; i < 20; i++) await sends(scene, guest, () => native().eventfdSignal(fd));
    calls.close(fd);
  });

  it("a call socket of User-Mode Linux's that nobody reads, and that is gone: frames go on", async () => {
    const scene = await openScene({ frontend: 'uml' });
    const guest = await scene.boot();
    const [ours, theirs] = socketPair();
    native().setsockoptInt(theirs, SOL_SOCKET, SO_SNDBUF, 1);
    assert.equal(await guest.front.ack(CALL, u64(TX), [theirs]), 0);
    calls.close(theirs);
    for (let i = 0; i < 1000; i++) await sends(scene, guest);
    calls.close(ours);
    for (let i = 0; i < 5; i++) await sends(scene, guest);
    assert.ok(scene.device.stats().details.signalErrors > 0);
  });

  it("a kick socket of User-Mode Linux's whose other end is gone: the ring goes on without", async () => {
    const scene = await openScene({ frontend: 'uml' });
    const guest = await scene.boot();
    const [ours, theirs] = socketPair();
    assert.equal(await guest.front.ack(KICK, u64(TX), [theirs]), 0);
    calls.close(theirs);
    await sends(scene, guest, () => native().sendv(ours, [Uint8Array.of(1)], 1, 0));
    calls.close(ours);
    await turns(20);
    assert.equal(await guest.front.ack(KICK, u64(TX), [guest.tx.kickFd]), 0);
    await sends(scene, guest);
  });

  it('pipes: from User-Mode Linux', async () => {
    const scene = await openScene({ frontend: 'uml' });
    const guest = await scene.boot();
    const path = `${newPath()}-pipe`;
    assert.equal(spawnSync('mkfifo', [path]).status, 0);
    const pipe = adopt(openSync(path, constants.O_RDWR | constants.O_NONBLOCK));
    for (const request of [CALL, ERR, KICK]) assert.equal(await guest.front.ack(request, u64(TX), [pipe]), 0);
    assert.equal(await guest.front.ack(KICK, u64(TX), [guest.tx.kickFd]), 0);
    await sends(scene, guest);
    calls.close(pipe);
  });

  it('the same eventfd for everything: no circle', async () => {
    const witness = await Witness.arrive();
    const scene = await openScene();
    const guest = await scene.boot();
    const fd = eventfd();
    for (const index of [RX, TX]) {
      for (const request of [CALL, ERR, KICK])
        assert.equal(await guest.front.ack(request, u64(index), [fd]), 0);
    }
    for (let i = 0; i < 20; i++) await sends(scene, guest, () => native().eventfdSignal(fd));
    await turns(50);
    const { kicks, signals } = scene.device.stats().details;
    await turns(200);
    const now = scene.device.stats().details;
    assert.deepEqual([now.kicks, now.signals], [kicks, signals], 'it rests');
    assert.ok(kicks < 500, `${kicks} kicks`);
    calls.close(fd);
    await witness.testifies();
  });

  it("User-Mode Linux's own socket: what is signalled comes back as a message that makes no sense", async () => {
    const scene = await openScene({ frontend: 'uml' });
    const guest = await scene.boot();
    assert.equal(await guest.front.ack(CALL, u64(TX), [guest.front.fd]), 0);
    // A header is a signal and a half, and one was for the descriptor itself.
    guest.send(frameOf(100));
    await soon('closed', () => scene.failures.length === 1);
    assert.match(String(scene.failures[0]), /EPROTO|version/);
  });

  it('thousands of them, one after the other: as many are open as there are rings', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    const baseline = openFds();
    const files = [eventfd(), eventfd()];
    for (let i = 0; i < 6000; i++) {
      guest.front.say(12 + (i % 3), u64(i & 1), [files[i % 2] as number]);
      if (i % 32 === 31) {
        await guest.barrier();
        await soon('all are closed', () => openFds() <= baseline + 2);
      }
    }
    assert.equal(counter(guest.tx.errFd), 0);
    for (const fd of files) calls.close(fd);
  });
});

describe('a front-end that has its own end of the connection kept open, and goes', { timeout }, () => {
  afterEach(endScenes);

  /** A socket in which another one waits to be received. */
  function carrying(fd: number): number {
    const [one, other] = socketPair();
    assert.equal(sendWithFds(one, Uint8Array.of(1), [fd]), 1);
    calls.close(one);
    return other;
  }

  for (const [name, request] of [
    ['kick', KICK],
    ['call', CALL],
    ['err', ERR],
    ['channel', 21],
  ] as const) {
    for (const [what, wrap] of [
      ['it', (fd: number) => fd],
      ['a socket that carries it', carrying],
    ] as const) {
      it(`${name}, ${what}: its end is heard, and the next is served`, async () => {
        const scene = await openScene();
        const guest = await scene.boot();
        const fd = wrap(guest.front.fd);
        guest.front.say(request, request === 21 ? new Uint8Array(0) : u64(TX), [fd]);
        await guest.barrier();
        if (fd !== guest.front.fd) calls.close(fd);
        guest.end();
        await soon('it was heard', () => scene.device.state === 'listening');
        await sends(scene, await scene.boot());
      });
    }
  }

  it('in half a message: that has to be whole after a while', async () => {
    const scene = new ServerScene('listen', { patienceMs: 50 });
    scene.server.open();
    const front = RawFrontend.connect(scene.path);
    await greet(front);
    front.raw(Uint8Array.of(CALL), [front.fd]);
    front.close();
    await scene.is('connected');
    await scene.is('listening');
    assert.match(String(scene.server.lastError), /EPROTO|middle of a message/);
    scene.server.close();
  });

  it('behind replies that it does not read: they have to be read after a while', async () => {
    const scene = new ServerScene('listen', { patienceMs: 50 });
    scene.server.open();
    const front = RawFrontend.connect(scene.path);
    native().setsockoptInt(front.fd, SOL_SOCKET, SO_SNDBUF, 1 << 20);
    await greet(front);
    const ask = vhost.encodeMessage(1, 0);
    let isFull = false;
    // Replies fill its end, and then its questions ours.
    for (let i = 0; i < 100_000 && !isFull; i++) {
      const sent = sendWithFds(front.fd, ask, i % 100 === 99 ? [front.fd] : []);
      isFull = sent === undefined;
      if (i % 64 === 0) await turns(1);
    }
    assert.ok(isFull);
    front.close();
    await scene.is('listening');
    assert.match(String(scene.server.lastError), /does not read a reply/);
    scene.server.close();
  });

  it('a message that comes slowly, byte by byte, is as good as any', async () => {
    const scene = new ServerScene('listen', { patienceMs: 5000 });
    scene.server.open();
    const front = RawFrontend.connect(scene.path);
    for (const byte of vhost.encodeMessage(1, 0)) {
      front.raw(Uint8Array.of(byte));
      await turns(3);
    }
    assert.equal((await front.reply(1)).length, 8);
    front.close();
    await scene.is('listening');
    assert.equal(scene.server.lastError, null);
    scene.server.close();
  });
});
