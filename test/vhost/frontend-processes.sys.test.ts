/** A front-end and a device in processes of their own, which race as they would in earnest. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { VhostUserFrontend } from '../../src/vhost/frontend.ts';
import { FRONTEND_FEATURES } from '../../src/vhost/frontend-features.ts';
import type { VhostUserFrontendOptions } from '../../src/vhost/frontend-options.ts';
import { features, without } from '../../src/wire/virtio.ts';
import { scaled } from '../support/counts.ts';
import { frameOf } from '../support/frontend-queues.ts';
import { socketPath } from '../support/vhost-backend.ts';

const CHILD = fileURLToPath(new URL('./children/frontend-echo.js', import.meta.url));
const PING_PONGS = scaled(3000, 1_000_000);
const RESTARTS = scaled(5, 200);

let folder: ReturnType<typeof socketPath>;
const children = new Set<ChildProcess>();

before(() => {
  folder = socketPath();
});
after(() => {
  for (const child of children) child.kill('SIGKILL');
  folder.end();
});

async function startEcho(): Promise<ChildProcess> {
  const child = spawn(process.execPath, [CHILD, folder.path], { stdio: ['ignore', 'pipe', 'inherit'] });
  children.add(child);
  await once(child.stdout, 'data');
  return child;
}

async function kill(child: ChildProcess): Promise<void> {
  const closed = once(child, 'close');
  child.kill('SIGKILL');
  await closed;
  children.delete(child);
}

const MODES: [string, Partial<VhostUserFrontendOptions>][] = [
  ['with event index', {}],
  ['without event index', { features: without(FRONTEND_FEATURES, features(29)) }],
  ['without kicks', { devicePolls: true }],
];

describe('two processes', { timeout: scaled(120_000, 3_600_000) }, () => {
  for (const [what, options] of MODES) {
    it(`lose no notification ${what}: ${PING_PONGS} frames there and back, one at a time`, async () => {
      const child = await startEcho();
      const nic = await VhostUserFrontend.connect({ path: folder.path, ...options });
      const frame = frameOf(60, 1);
      await new Promise<void>((resolve, reject) => {
        let left = PING_PONGS;
        nic.on('error', reject);
        nic.on('frame', () => {
          left -= 1;
          if (left === 0) resolve();
          else nic.send(frame);
        });
        nic.send(frame);
      });
      assert.equal(nic.rx.counters.frames, PING_PONGS);
      await nic.close();
      await kill(child);
    });
  }

  it('get over the death of the device, again and again', async () => {
    let child = await startEcho();
    const nic = await VhostUserFrontend.connect({ path: folder.path, reconnect: true, retryMinMs: 1 });
    let isOver = false;
    let done = 0;
    const senders = Array.from({ length: 20 }, async (_, id) => {
      for (; !isOver; done++) await nic.sendFrame(frameOf(60 + 70 * id, id));
    });
    for (let i = 0; i < RESTARTS; i++) {
      const before = done;
      await nic.sendFrame(frameOf(60, 99));
      const [lost, found] = [once(nic, 'disconnect'), once(nic, 'connect')];
      await kill(child);
      await lost;
      child = await startEcho();
      await found;
      assert.ok(done > before);
    }
    isOver = true;
    await Promise.all(senders);
    assert.equal(nic.tx.outstanding, 0);
    assert.equal(nic.tx.room, 256);
    await nic.close();
    await kill(child);
  });
});
