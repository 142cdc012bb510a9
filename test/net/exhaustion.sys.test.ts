/** What runs out, in processes of their own: descriptors while connections come, and the patience of a closed connection. */
import assert from 'node:assert/strict';
import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { createInterface } from 'node:readline';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { runChild } from '../support/children.ts';

const ADDRESS = '127.24.3.1';
const PORT = 16_386;
const CONNECTIONS = 5;

interface Child {
  readonly process: ChildProcessWithoutNullStreams;
  ask(line: string): void;
  next(): Promise<Record<string, unknown>>;
}

function underFileLimit(limit: number): Child {
  const module = fileURLToPath(new URL('./children/out-of-descriptors.js', import.meta.url));
  const script = `ulimit -n ${limit}; exec "$0" "$@"`;
  const child = spawn('sh', ['-c', script, process.execPath, module, ADDRESS, String(PORT)], {
    timeout: 20_000,
    killSignal: 'SIGKILL',
  });
  child.stderr.pipe(process.stderr);
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  return {
    process: child,
    ask: (line) => child.stdin.write(`${line}\n`),
    next: async () => {
      const { value, done } = await lines.next();
      assert.ok(done !== true, 'the child ended');
      return JSON.parse(value as string) as Record<string, unknown>;
    },
  };
}

describe('a process without free descriptors', { timeout: 60_000 }, () => {
  it('asks again by one clock, however many connections come, and accepts them all when it can', async () => {
    const child = underFileLimit(64);
    const sockets: Socket[] = [];
    try {
      assert.deepEqual(await child.next(), { full: 'EMFILE' });
      for (let i = 0; i < CONNECTIONS; i++) {
        const socket = connect({ host: ADDRESS, port: PORT });
        socket.on('error', () => {});
        sockets.push(socket);
        await once(socket, 'connect');
        child.ask('connected');
        assert.deepEqual(await child.next(), { timers: 1, accepted: 0 });
      }
      child.ask('retried');
      assert.deepEqual(await child.next(), { accepted: 0 });
      child.ask('free');
      for (let i = 1; i <= CONNECTIONS; i++) assert.deepEqual(await child.next(), { accepted: i });
      const late = connect({ host: ADDRESS, port: PORT });
      late.on('error', () => {});
      sockets.push(late);
      assert.deepEqual(await child.next(), { accepted: CONNECTIONS + 1 });
      child.ask('close');
      assert.deepEqual(await once(child.process, 'close'), [0, null]);
    } finally {
      child.process.kill('SIGKILL');
      for (const socket of sockets) socket.destroy();
    }
  });
});

describe('a closed connection whose memory never comes back', { timeout: 60_000 }, () => {
  it('is shown by its node, and does not keep the process from ending', async () => {
    const child = new URL('./children/quarantine.js', import.meta.url);
    const { code, signal, stdout, stderr } = await runChild(child, [], { deadlineMs: 10_000 });
    assert.deepEqual({ code, signal, stderr }, { code: 0, signal: null, stderr: '' });
    assert.deepEqual(JSON.parse(stdout), { lingering: 1, quarantinedSockets: 1, quarantinedBytes: 1000 });
  });
});
