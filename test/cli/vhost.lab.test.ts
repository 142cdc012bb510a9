/** `zerotx vhost` and `zerotx switch` with taps, as root: who they are afterwards, and what becomes of a tap that is removed. */
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, it } from 'node:test';
import { VhostUserFrontend } from '../../src/vhost/index.ts';
import { frame } from '../support/frames.ts';
import { ROOT } from '../support/sources.ts';

const skip = process.getuid?.() === 0 ? false : 'needs root, for taps in a network namespace';
const tool = join(ROOT, 'dist/cli/zerotx.js');
/** `nobody`, by number, on every Linux. */
const NOBODY = 65_534;

interface Running {
  readonly pid: number;
  printed(pattern: RegExp): Promise<string>;
  readonly ended: Promise<{ code: number | null; errors: string }>;
}

/** A tool in a network namespace of its own. */
function start(args: readonly string[], env: NodeJS.ProcessEnv = {}): Running {
  const child = spawn('unshare', ['--net', process.execPath, tool, ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, ...env },
  });
  // What is left of it ends with the test.
  process.on('exit', () => child.kill('SIGKILL'));
  let text = '';
  const looks = new Set<() => void>();
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (part: string) => {
      text += part;
      for (const look of [...looks]) look();
    });
  const ended = once(child, 'close').then(([code]) => ({ code: code as number | null, errors: text }));
  const printed = (pattern: RegExp): Promise<string> =>
    new Promise((resolve, reject) => {
      const look = (): void => {
        const match = pattern.exec(text);
        if (match !== null) resolve(match[0]);
      };
      looks.add(look);
      look();
      void ended.then(({ code }) => reject(new Error(`ended with ${code} before ${pattern}: ${text}`)));
    });
  return { pid: child.pid as number, printed, ended };
}

/** What each thread of a process is: user, capabilities. */
function threadsOf(pid: number): string[] {
  return readdirSync(`/proc/${pid}/task`).map((thread) => {
    const status = readFileSync(`/proc/${pid}/task/${thread}/status`, 'utf8');
    return /^Uid:\s*(.*)$/m.exec(status)?.[1] + (/^CapEff:\s*(.*)$/m.exec(status)?.[1] ?? '');
  });
}

function noNewPrivs(pid: number): string | undefined {
  return /^NoNewPrivs:\s*(\d)$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
}

function inside(pid: number, ...command: readonly string[]): string {
  return execFileSync('nsenter', ['-t', `${pid}`, '-n', ...command], { encoding: 'utf8' });
}

describe('tools that begin as root', { skip, timeout: 120_000 }, () => {
  const folder = mkdtempSync(join(tmpdir(), 'zerotx-lab-'));
  chmodSync(folder, 0o777);
  after(() => rmSync(folder, { recursive: true }));

  for (const workers of [[], ['--workers', '2']]) {
    it(`go on as another user ${workers.join(' ')}`, async () => {
      const sockets = ['a', 'b'].map((name) => join(folder, `${name}${workers.length}.sock`));
      const pairs = sockets.flatMap((socket, i) => ['--socket', socket, '--uplink', `tap:t${i}`]);
      const running = start(['vhost', ...pairs, '--user', 'nobody', ...workers]);
      await running.printed(/^# Append your disk/m);
      await running.printed(/^goes on as user 65534, group \d+$/m);
      const each = `${NOBODY}\t${NOBODY}\t${NOBODY}\t${NOBODY}0000000000000000`;
      assert.deepEqual([...new Set(threadsOf(running.pid))], [each]);
      assert.equal(noNewPrivs(running.pid), '1');
      for (const socket of sockets) assert.equal(statSync(socket).uid, NOBODY);
      inside(running.pid, 'ip', 'link', 'set', 't0', 'up');
      const nic = await VhostUserFrontend.connect({ path: sockets[0] as string });
      await nic.sendFrame(frame(1000, 1));
      const [{ stats64 }] = JSON.parse(inside(running.pid, 'ip', '-j', '-s', 'link', 'show', 't0'));
      assert.equal(stats64.rx.packets, 1);
      assert.equal(stats64.rx.bytes, 1000);
      await nic.close();
      inside(running.pid, 'ip', 'link', 'del', 't0');
      await running.printed(/^tap:t0: lost: its device is gone$/m);
      // The other pair goes on, until its own is gone.
      inside(running.pid, 'ip', 'link', 'del', 't1');
      const { code, errors } = await running.ended;
      assert.equal(code, 1, errors);
      assert.match(errors, /^zerotx: nothing is left that could work$/m);
      assert.deepEqual(
        readdirSync(folder).filter((name) => name.endsWith('.sock')),
        [],
      );
    });
  }

  it('say what refused them', async () => {
    const socket = join(folder, 'refused.sock');
    const mine = join(folder, 'mine');
    mkdirSync(mine, { mode: 0o755 });
    for (const [args, why] of [
      [['--socket', socket, '--uplink', 'tap:lo'], /lo: TUNSETIFF EINVAL lo: lo is not a tap$/m],
      [
        ['--socket', join(mine, 'a.sock'), '--uplink', 'tap:t0', '--user', 'nobody'],
        /bind EACCES .*; root was given up before, and user 65534 may not write there; --user says who$/m,
      ],
    ] as const) {
      const { code, errors } = await start(['vhost', ...args]).ended;
      assert.equal(code, 1);
      assert.match(errors, why);
    }
  });

  it('go on as who called sudo, and stay root if told', async () => {
    const file = join(folder, 'lab.yaml');
    writeFileSync(file, 'ports: { a: { vhost: s.sock }, t: { tap: t0 } }');
    for (const [args, uid] of [
      [[], NOBODY],
      [['--user', 'root'], 0],
    ] as const) {
      const running = start(['switch', file, ...args], { SUDO_UID: `${NOBODY}`, SUDO_GID: `${NOBODY}` });
      await running.printed(/^# Append your disk/m);
      assert.deepEqual([...new Set(threadsOf(running.pid).map((text) => Number.parseInt(text, 10)))], [uid]);
      assert.equal(noNewPrivs(running.pid), '1');
      // A switch goes on without one of its ports.
      inside(running.pid, 'ip', 'link', 'del', 't0');
      await running.printed(/^t: lost: its device is gone$/m);
      process.kill(running.pid, 'SIGTERM');
      assert.equal((await running.ended).code, 0);
    }
  });
});
