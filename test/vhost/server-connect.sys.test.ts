/** The server that connects to its front-end, and servers that are short of descriptors. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync, rmSync } from 'node:fs';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import * as calls from '../../src/sys/calls.ts';
import { eventfd } from '../../src/sys/fds.ts';
import { RawFrontend } from '../support/vhost-peer.ts';
import { greet, Scene } from '../support/vhost-scene.ts';
import { u64 } from '../support/vhost-session.ts';

const timeout = 20_000;
const openFds = (): number => readdirSync('/proc/self/fd').length;

describe('a server at the limit of descriptors', { timeout: 60_000 }, () => {
  it('tries again by the clock, to accept and to connect', () => {
    const child = fileURLToPath(new URL('./children/fds-limit.js', import.meta.url));
    const result = spawnSync('sh', ['-c', 'ulimit -n 64; exec "$0" "$@"', process.execPath, child], {
      encoding: 'utf8',
      timeout: 50_000,
    });
    const { status, signal, stdout, stderr } = result;
    assert.deepEqual({ status, signal, stdout, stderr }, { status: 0, signal: null, stdout: '', stderr: '' });
  });
});

describe('a server that connects', { timeout }, () => {
  /** Time that passes when the test says so. */
  class Time {
    readonly delays: number[] = [];
    #due: (() => void) | null = null;

    readonly after = (ms: number, fn: () => void): (() => void) => {
      assert.equal(this.#due, null, 'one timer at a time');
      this.delays.push(ms);
      this.#due = fn;
      return () => {
        this.#due = null;
      };
    };

    pass(): void {
      const due = this.#due;
      this.#due = null;
      assert.ok(due);
      due();
    }

    get isIdle(): boolean {
      return this.#due === null;
    }
  }

  it('tries again with growing delays, and negotiates anew with each front-end', async () => {
    const time = new Time();
    const scene = new Scene('connect', { after: time.after });
    scene.server.open();
    assert.equal(scene.server.state, 'waiting');
    assert.match(String(scene.server.lastError), /ENOENT/);
    for (let i = 0; i < 6; i++) time.pass();
    assert.deepEqual(time.delays, [100, 200, 400, 800, 1600, 3000, 3000]);
    for (let i = 0; i < 3; i++) {
      rmSync(scene.path, { force: true });
      const listening = RawFrontend.listen(scene.path);
      time.pass();
      assert.equal(scene.server.state, 'connected');
      const front = await listening.accept();
      await greet(front);
      listening.close();
      front.close();
      await scene.is('waiting');
      // In good order: at once, or nearly.
      assert.equal(time.delays.at(-1), 100);
    }
    assert.equal(scene.hosts.length, 3);
    time.pass();
    assert.match(String(scene.server.lastError), /ECONNREFUSED/);
    scene.server.close();
    assert.equal(time.isIdle, true);
  });

  it('waits longer and longer for a front-end that makes no sense', async () => {
    const time = new Time();
    const scene = new Scene('connect', { after: time.after });
    const listening = RawFrontend.listen(scene.path);
    scene.server.open();
    for (let i = 0; i < 3; i++) {
      const front = await listening.accept();
      front.raw(new Uint8Array(12));
      await scene.is('waiting');
      front.close();
      time.pass();
    }
    assert.deepEqual(time.delays, [100, 200, 400]);
    scene.server.close();
    listening.close();
  });

  it('case 49: descriptors are flat after 1000 connections', async () => {
    const time = new Time();
    const scene = new Scene('connect', { after: time.after });
    const listening = RawFrontend.listen(scene.path);
    const file = eventfd();
    scene.server.open();
    let before = 0;
    for (let i = 0; i < 1000; i++) {
      const front = await listening.accept();
      if (i % 2 === 0) front.say(13, u64(1), [file]);
      front.close();
      await scene.is('waiting');
      if (i === 10) before = openFds();
      time.pass();
    }
    assert.equal(openFds(), before + (scene.server.state === 'connected' ? 1 : 0));
    scene.server.close();
    listening.close();
    calls.close(file);
  });

  it('stops waiting when it is closed from its own news', async () => {
    const time = new Time();
    const scene = new Scene('connect', { after: time.after });
    const listening = RawFrontend.listen(scene.path);
    scene.server.open();
    const front = await listening.accept();
    await greet(front);
    const { onState } = scene.server;
    const closed = new Promise<void>((resolve) => {
      scene.server.onState = (state) => {
        onState?.(state);
        if (state === 'waiting') scene.server.close();
        if (state === 'closed') resolve();
      };
    });
    front.close();
    await closed;
    assert.equal(time.isIdle, true);
    listening.close();
  });
});
