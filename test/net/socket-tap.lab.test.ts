/**
 * A packet tap that is opened and closed in the middle of a stream (tcpdump does it): the kernel copies for it what was lent, the
 * content stays right, and the statistics say so. Over a veth to a real receiver, and to the wire peer, which takes no copy itself.
 */
import assert from 'node:assert/strict';
import { type ChildProcessWithoutNullStreams, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { describe, it, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { wirePeerOrReason } from '../../bench/wirepeer/index.ts';
import { makeNetnsPair } from '../../bench/wirepeer/netns.ts';
import type { ZerocopyStats } from '../../src/net/index.ts';

const MIB = 1 << 20;
const PHASE_BYTES = 10 * MIB;
const TOTAL = 8 + 4 * PHASE_BYTES;
const PORT = 16_390;
const program = fileURLToPath(new URL('./children/socket-tap.js', import.meta.url));
const skip = process.getuid?.() === 0 ? false : 'needs root, for network namespaces';

interface Phase extends ZerocopyStats {
  readonly lending: boolean;
}

interface Child {
  readonly process: ChildProcessWithoutNullStreams;
  next(): Promise<Record<string, unknown>>;
}

function start(t: TestContext, prefix: readonly string[], ...args: string[]): Child {
  const [command, ...rest] = [...prefix, process.execPath, program, ...args] as [string, ...string[]];
  const child = spawn(command, rest, { timeout: 30_000, killSignal: 'SIGKILL' });
  t.after(() => child.kill('SIGKILL'));
  child.stderr.pipe(process.stderr);
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  return {
    process: child,
    next: async () => {
      const { value, done } = await lines.next();
      assert.ok(done !== true, 'the child ended');
      return JSON.parse(value as string) as Record<string, unknown>;
    },
  };
}

/** Before the tap; while it comes; with it; while, and after, it goes. */
async function phases(sender: Child): Promise<[Phase, Phase, Phase, Phase]> {
  sender.process.stdin.write('begin\n');
  const all: unknown[] = [];
  for (let i = 0; i < 4; i++) all.push(await sender.next());
  const [code, signal] = await once(sender.process, 'close');
  assert.deepEqual([code, signal], [0, null]);
  const last = all.at(-1) as Phase;
  assert.equal(last.lentBytes + last.fallbackBytes, TOTAL);
  assert.deepEqual([last.pinnedBytes, last.unexpectedCompletions], [0, 0]);
  return all as [Phase, Phase, Phase, Phase];
}

describe('a packet tap in the middle of a stream', { skip, timeout: 120_000 }, () => {
  it('changes nothing for a receiver behind a veth, for whom the kernel copies anyhow', async (t) => {
    const netns = makeNetnsPair();
    t.after(() => netns.remove());
    const receiver = start(t, ['ip', 'netns', 'exec', netns.peerNetns], 'receive', String(TOTAL));
    const { port } = await receiver.next();
    const sender = start(t, netns.senderPrefix, 'send', 'force', netns.peerAddress, String(port));
    const [, , , last] = await phases(sender);
    assert.deepEqual(await receiver.next(), { total: TOTAL });
    assert.ok(last.lentBytes > TOTAL / 2);
    assert.equal(last.kernelCopiedBytes, last.lentBytes);
  });

  it('makes the kernel copy what goes out on a wire, and `auto` stop lending', async (t) => {
    const peer = await wirePeerOrReason({ greeting: Buffer.alloc(8, 'g'), expectBytes: 8, port: PORT });
    if (typeof peer === 'string') return t.skip(peer);
    t.after(() => peer.stop());
    const sender = start(t, peer.senderPrefix, 'send', 'auto', peer.peerAddress, String(PORT));
    await peer.armed;
    const [before, , during, last] = await phases(sender);
    assert.ok(before.lentBytes > PHASE_BYTES / 2);
    assert.deepEqual([before.kernelCopiedBytes, before.lending], [0, true]);
    assert.ok(during.kernelCopiedBytes > 0);
    assert.equal(during.lending, false);
    assert.ok(during.copied.kernel > 0);
    // It tries again later, not at once.
    assert.equal(last.lentBytes, during.lentBytes);
  });
});
