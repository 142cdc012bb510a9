/**
 * What the kernel alone costs: a small C program sends 1 MiB messages to the wire peer, with and without MSG_ZEROCOPY,
 * in a blocking loop out of cold memory. A lower bound for what any program can gain on this machine, and the proof
 * that the peer works: nothing copied, nothing retransmitted.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface, type Interface } from 'node:readline';
import { progress } from '../harness.ts';
import { medianInterval, pairedRatio } from '../stats.ts';
import { measured, type Results, type Suite, type SuiteOptions, skipped } from '../suite.ts';
import { compiled } from '../wirepeer/compile.ts';
import { type WirePeer, wirePeerOrReason } from '../wirepeer/index.ts';

const MESSAGE_BYTES = 1 << 20;
const WORKING_SET_BYTES = 64 << 20;
const FIRST_BYTES = 8240;
const PORT = 16385;
const WARMUPS = 2;

interface Report {
  count: number;
  cpuNs: number;
  elapsedNs: number;
  zerocopyCalls: number;
  copiedCalls: number;
  retransmits: number;
}

async function run(options: SuiteOptions): Promise<Results> {
  const peer = await wirePeerOrReason({ greeting: Buffer.alloc(16, 'g'), expectBytes: FIRST_BYTES });
  if (typeof peer === 'string') return Object.fromEntries(suite.keys.map((key) => [key, skipped(peer)]));
  let sender: Sender | undefined;
  try {
    sender = await Sender.start(peer);
    await peer.armed;
    return await measure(options, peer, sender);
  } finally {
    sender?.stop();
    await peer.stop();
  }
}

async function measure(options: SuiteOptions, peer: WirePeer, sender: Sender): Promise<Results> {
  const count = options.quick ? 200 : 1500;
  const copy: Report[] = [];
  const zerocopy: Report[] = [];
  for (let pair = -WARMUPS; pair < options.pairs; pair++) {
    for (const zc of pair % 2 === 0 ? [false, true] : [true, false]) {
      const report = await sender.run(count, zc);
      if (pair >= 0) (zc ? zerocopy : copy).push(report);
    }
    progress(`wirepeer: pair ${Math.max(0, pair + 1)} of ${options.pairs}`);
  }
  const cpuUs = (report: Report): number => report.cpuNs / 1e3 / report.count;
  const copiedCalls = zerocopy.reduce((sum, report) => sum + report.copiedCalls, 0);
  const zerocopyCalls = zerocopy.reduce((sum, report) => sum + report.zerocopyCalls, 0);
  const { retransmits } = zerocopy.at(-1)!;
  const { packets, acks } = await peer.stats();
  return {
    'tcpCpu1M.zcVsCopy': measured(pairedRatio(zerocopy.map(cpuUs), copy.map(cpuUs)), {
      details: { zerocopyCalls, copiedCalls, retransmits, packets, acks },
    }),
    'tcpCpu1M.copy': measured(medianInterval(copy.map(cpuUs)), { unit: 'us' }),
    'tcpCpu1M.zerocopy': measured(medianInterval(zerocopy.map(cpuUs)), { unit: 'us' }),
  };
}

/** The C program, asked over its standard input. */
class Sender {
  readonly #child: ChildProcess;
  readonly #lines: Interface;
  readonly #ended: Promise<never>;

  static async start(peer: WirePeer): Promise<Sender> {
    const sender = new Sender(await compiled('tcp-sender'), peer);
    await sender.#line();
    return sender;
  }

  private constructor(program: string, peer: WirePeer) {
    const args = [peer.peerAddress, PORT, FIRST_BYTES, 16, MESSAGE_BYTES, WORKING_SET_BYTES].map(String);
    const command = [...peer.senderPrefix, program, ...args];
    this.#child = spawn(command[0]!, command.slice(1), { stdio: ['pipe', 'pipe', 'inherit'] });
    this.#child.stdin!.on('error', () => {}); // told by the lines that do not come
    this.#lines = createInterface({ input: this.#child.stdout! });
    this.#ended = once(this.#lines, 'close').then(() => {
      throw new Error('tcp-sender ended');
    });
    this.#ended.catch(() => {}); // told to whoever waits for a line
  }

  async run(count: number, zerocopy: boolean): Promise<Report> {
    this.#child.stdin!.write(`${count} ${zerocopy ? 1 : 0}\n`);
    return JSON.parse(await this.#line()) as Report;
  }

  stop(): void {
    this.#child.kill('SIGKILL');
  }

  async #line(): Promise<string> {
    const [line] = await Promise.race([once(this.#lines, 'line'), this.#ended]);
    return line as string;
  }
}

export const suite: Suite = {
  description: 'MSG_ZEROCOPY against copying, a C program into the wire peer',
  keys: ['tcpCpu1M.zcVsCopy', 'tcpCpu1M.copy', 'tcpCpu1M.zerocopy'],
  run,
};
