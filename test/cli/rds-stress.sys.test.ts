/**
 * rds-stress end to end: two processes of the built tool on two loopback addresses, as a user starts them. The runs go
 * on side by side, each on addresses of its own, because each has four seconds of start-up.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Summary } from '../../src/cli/stress/summary.ts';

const tool = fileURLToPath(new URL('../../../dist/cli/rds-stress.js', import.meta.url));

const children = new Set<ChildProcess>();
after(() => {
  for (const child of children) child.kill('SIGKILL');
});

interface Tool {
  child: ChildProcess;
  /** Resolves when either stream has printed what matches; rejects when the tool ends first. */
  printed(pattern: RegExp): Promise<void>;
  ended: Promise<{ code: number | null; out: string; errors: string }>;
}

function start(...args: string[]): Tool {
  return startWith({}, ...args);
}

function startWith(env: NodeJS.ProcessEnv, ...args: string[]): Tool {
  const child = spawn(process.execPath, [tool, ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, ...env },
  });
  children.add(child);
  let out = '';
  let errors = '';
  const looks = new Set<() => void>();
  const look = (): void => {
    for (const one of [...looks]) one();
  };
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    out += text;
    look();
  });
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    errors += text;
    look();
  });
  const ended = once(child, 'close').then(([code]) => {
    children.delete(child);
    return { code: code as number | null, out, errors };
  });
  const printed = (pattern: RegExp): Promise<void> => {
    const found = new Promise<void>((resolve) => {
      const one = (): void => {
        if (!pattern.test(out) && !pattern.test(errors)) return;
        looks.delete(one);
        resolve();
      };
      looks.add(one);
      one();
    });
    const gone = ended.then(({ code }) => {
      if (!pattern.test(out) && !pattern.test(errors))
        throw new Error(`ended with ${code} before ${pattern}: ${out}${errors}`);
    });
    return Promise.race([found, gone]);
  };
  return { child, printed, ended };
}

/** A pair of processes; `shape` goes to the active one, `both` to each. */
async function pair(
  addresses: [passive: string, active: string],
  shape: string[],
  both: string[],
): Promise<{ passive: Tool; active: Tool }> {
  const passive = start('-r', addresses[0], ...both);
  await passive.printed(/waiting for incoming connection/);
  const active = start('-r', addresses[1], '-s', addresses[0], ...shape, ...both);
  return { passive, active };
}

function summaryOf(ended: { code: number | null; out: string; errors: string }): Summary {
  assert.equal(ended.code, 0, ended.errors);
  return JSON.parse(ended.out) as Summary;
}

function checkTraffic(active: Summary, passive: Summary, requestBytes: number): void {
  for (const [own, other] of [
    [active, passive],
    [passive, active],
  ] as const) {
    assert.ok(
      own.requestsSentPerSecond > 10,
      `${own.role} sent ${own.requestsSentPerSecond} requests a second`,
    );
    assert.ok(own.txUs > 0 && own.rttUs > 0 && own.kibPerSecond > 0);
    assert.equal(own.requestBytes, requestBytes);
    assert.equal(own.peer, other.address);
    assert.equal(own.strangers, 0);
  }
  assert.equal(active.endedBy, 'time');
  assert.equal(passive.endedBy, 'peer');
  assert.ok(active.seconds > 1.9 && active.seconds < 4, `${active.seconds} s`);
}

test('runs', { timeout: 60_000, concurrency: 3 }, async (t) => {
  const runs = [
    t.test('copying, several sockets, every byte verified', async () => {
      const shape = ['-q', '8K', '-a', '1K', '-t', '3', '-d', '4', '-T', '2', '-v'];
      const { passive, active } = await pair(['127.0.0.41', '127.0.0.42'], shape, ['--json']);
      const [a, p] = (await Promise.all([active.ended, passive.ended])).map(summaryOf);
      checkTraffic(a!, p!, 8192);
      assert.equal(a!.tasks, 3);
      assert.equal(p!.tasks, 3);
      assert.equal(a!.lending, undefined);
    }),
    t.test('lending on both sides, every byte verified', async () => {
      const shape = ['-q', '1M', '-a', '64K', '-d', '2', '-T', '2', '-v'];
      // The dialling side has the smaller address: here it is the active one.
      const { passive, active } = await pair(['127.0.0.44', '127.0.0.43'], shape, ['--json', '--zerocopy']);
      const [a, p] = (await Promise.all([active.ended, passive.ended])).map(summaryOf);
      checkTraffic(a!, p!, 1_048_576);
      for (const { lending } of [a!, p!]) {
        // Where hardly any memory may be pinned, messages are copied instead.
        assert.ok(lending !== undefined && lending.sends + lending.copiedInstead > 0);
        assert.equal(lending.completions, lending.sends);
        assert.ok(lending.copiedShare >= 0 && lending.copiedShare <= 1);
      }
    }),
    t.test('lending on one side only, requests one way', async () => {
      const passive = start('-r', '127.0.0.45', '--json');
      await passive.printed(/waiting for incoming connection/);
      const active = start(
        ...[
          '-r',
          '127.0.0.46',
          '-s',
          '127.0.0.45',
          '-o',
          '-q',
          '256K',
          '-T',
          '2',
          '-v',
          '--zerocopy',
          '--json',
        ],
      );
      const [a, p] = (await Promise.all([active.ended, passive.ended])).map(summaryOf);
      assert.ok(a!.requestsSentPerSecond > 10);
      assert.equal(p!.requestsSentPerSecond, 0);
      assert.equal(a!.requestsReceivedPerSecond, 0);
      assert.ok(a!.lending !== undefined && p!.lending === undefined);
    }),
    t.test('Ctrl-C on the active side ends both, with columns and summaries', async () => {
      const { passive, active } = await pair(['127.0.0.47', '127.0.0.48'], ['-c'], []);
      await active.printed(/^ {3}1 +\d+ +\d+ +[\d.]+ /m);
      active.child.kill('SIGINT');
      await checkSummaries(active, passive);
    }),
    t.test('Ctrl-C on the passive side ends both, with columns and summaries', async () => {
      const { passive, active } = await pair(
        ['127.0.0.49', '127.0.0.50'],
        ['-q', '4K', '--show-perfdata'],
        [],
      );
      await active.printed(/^::1,4096,63,0,\d+,/m);
      passive.child.kill('SIGINT');
      await checkSummaries(active, passive);
      assert.match((await active.ended).errors, /the peer ended the run/);
    }),
    t.test('a peer that is killed ends the run of the other', async () => {
      const { passive, active } = await pair(['127.0.0.53', '127.0.0.54'], ['-q', '1M'], ['--zerocopy']);
      await active.printed(/^ {3}1 +\d+ +\d+ +[\d.]+ /m);
      active.child.kill('SIGKILL');
      await checkSummaries(passive);
      assert.match(
        (await passive.ended).out,
        /^zerocopy: \d+ sends, \d+ completions, [\d.]+ % of the bytes/m,
      );
    }),
  ];
  await Promise.all(runs);
});

async function checkSummaries(...tools: Tool[]): Promise<void> {
  for (const tool of tools) {
    const { code, out, errors } = await tool.ended;
    assert.equal(code, 0, errors);
    assert.match(out, /^Starting up\.\.\.\.$/m);
    assert.match(
      out,
      /^-{45}\n {3}1 +\d+ +\d+ +[\d.]+ +0\.00 +0\.00 +[\d.]+ +[\d.]+ +-?[\d.]+ {2}\(average\)$/m,
    );
  }
}

test('an address whose RDS port is taken', { timeout: 20_000 }, async () => {
  const taken = createServer();
  taken.listen({ host: '127.0.0.52', port: 16_385 });
  await once(taken, 'listening');
  const { passive, active } = await pair(['127.0.0.51', '127.0.0.52'], [], []);
  const failed = await active.ended;
  assert.equal(failed.code, 1);
  assert.match(failed.errors, /RDS port 16385 is taken on 127\.0\.0\.52/);
  assert.equal((await passive.ended).code, 1);
  const early = await start('-r', '127.0.0.52').ended;
  assert.equal(early.code, 1);
  assert.match(early.errors, /^rds-stress: RDS port 16385 is taken on 127\.0\.0\.52, .*\n$/);
  assert.doesNotMatch(early.out, /waiting/);
  taken.close();
});

test('without the addon the passive side says so instead of waiting', { timeout: 20_000 }, async () => {
  for (const args of [[], ['-r', '127.0.0.55']]) {
    const { code, out, errors } = await startWith({ ZEROTX_ADDON: '/nonexistent.node' }, ...args).ended;
    assert.equal(code, 1);
    assert.match(errors, /^rds-stress: .*addon.*\n$/);
    assert.doesNotMatch(out, /waiting/);
  }
});

test('IPv6 addresses are refused', { timeout: 20_000 }, async () => {
  for (const args of [
    ['-r', '::1'],
    ['-s', '::1'],
    ['-s', '127.0.0.1', '-r', '::1'],
  ]) {
    const { code, errors } = await start(...args).ended;
    assert.equal(code, 1);
    assert.equal(errors, "rds-stress: '::1' is not an IPv4 address\n");
  }
});

test('usage', { timeout: 20_000 }, async () => {
  const rdma = await start('-s', '127.0.0.1', '-D', '1M').ended;
  assert.equal(rdma.code, 1);
  assert.match(rdma.errors, /RDMA is not possible over TCP/);
  const version = await start('--version').ended;
  assert.equal(version.code, 0);
  assert.match(version.out, /^\d+\.\d+\.\d+/);
  assert.equal((await start('--help').ended).code, 0);
});
