/**
 * dpdk-testpmd at one end of a vhost-user socket, as front-end (virtio-user) or as back-end (vhost).
 *
 *   const testpmd = await Testpmd.start(await dpdk(), {
 *     role: 'front-end', path, core: 1, forward: 'txonly', packetBytes: 64,
 *   });
 *   const { txPackets } = await testpmd.counters();
 *   await testpmd.stop();
 *
 * It polls without a pause, so it takes a whole core. It is driven by its own prompt: whatever has a command there can be
 * asked. A front-end that dials ends at once if nobody listens.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { rmSync } from 'node:fs';
import { type Dpdk, runtimeFolder } from './dpdk.ts';

export interface TestpmdOptions {
  readonly role: 'front-end' | 'back-end';
  /** The vhost-user socket. */
  readonly path: string;
  /** Who listens: the back-end, unless this says otherwise. */
  readonly listens?: boolean;
  /** The processor it polls on. */
  readonly core: number;
  /** txonly sends, rxonly takes, io returns what comes, mac the same with addresses exchanged, as csum and icmpecho do. */
  readonly forward: 'txonly' | 'rxonly' | 'io' | 'macswap' | 'icmpecho' | 'flowgen';
  /** Of txonly's packets, whose source and destination are 198.18.0.1 and 198.18.0.2 over UDP. */
  readonly packetBytes?: number;
  readonly queuePairs?: number;
  /** Of a front-end. */
  readonly queueSize?: number;
  readonly packedRing?: boolean;
  readonly mac?: string;
  /** More of a virtual device's parameters, as ['mrg_rxbuf=0', 'in_order=0']. */
  readonly parameters?: readonly string[];
  /** More of testpmd's own arguments, as ['--eth-peer=0,02:00:00:00:00:01']. */
  readonly extra?: readonly string[];
}

/** Since it began or was last cleared. */
export interface TestpmdCounters {
  readonly rxPackets: number;
  readonly rxBytes: number;
  readonly rxMissed: number;
  readonly txPackets: number;
  readonly txBytes: number;
  readonly txErrors: number;
}

const MEMORY_MIB = 128;
const MBUFS = 4096;
const QUEUE_SIZE = 256;
const ANSWER_MS = 30_000;
const STOP_MS = 5000;
const OUTPUT_CHARACTERS = 20_000;

export class Testpmd {
  readonly #child: ChildProcess;
  readonly #looks = new Set<() => void>();
  #output = '';
  #commands = 0;

  /** Resolves when it forwards. */
  static async start(dpdk: Dpdk, options: TestpmdOptions): Promise<Testpmd> {
    const testpmd = new Testpmd(dpdk, options);
    try {
      await testpmd.command('start');
      return testpmd;
    } catch (error) {
      await testpmd.stop();
      throw error;
    }
  }

  private constructor(dpdk: Dpdk, options: TestpmdOptions) {
    // One that was killed leaves its socket behind, and the next could not bind it.
    if (listens(options)) rmSync(options.path, { force: true });
    const runtime = runtimeFolder();
    const args = testpmdArguments(dpdk, options);
    // Its answers to what it is asked must not wait for a full buffer.
    this.#child = spawn('stdbuf', ['-oL', dpdk.testpmd, ...args], {
      stdio: ['pipe', 'pipe', 'pipe'],
      env: { ...process.env, ...dpdk.env, ...runtime.env },
    });
    const end = (): void => {
      this.#child.kill('SIGKILL');
      runtime.remove();
    };
    process.once('exit', end);
    for (const stream of [this.#child.stdout, this.#child.stderr]) {
      stream?.setEncoding('utf8').on('data', (text: string) => {
        this.#output = (this.#output + text).slice(-OUTPUT_CHARACTERS);
        this.#look();
      });
    }
    this.#child.stdin?.on('error', () => {});
    this.#child.on('error', (error) => {
      this.#output += error.message;
      this.#look();
    });
    this.#child.on('close', () => {
      process.off('exit', end);
      runtime.remove();
      this.#look();
    });
  }

  get pid(): number {
    return this.#child.pid ?? -1;
  }

  get running(): boolean {
    const { pid, exitCode, signalCode } = this.#child;
    return pid !== undefined && exitCode === null && signalCode === null;
  }

  /** All it has printed lately, and not as the answer to a command. */
  get output(): string {
    return this.#output;
  }

  /** What it answers to a command at its prompt. A comment after it is echoed when the command is through. */
  async command(line: string): Promise<string> {
    const comment = `# ${++this.#commands}`;
    this.#output = '';
    this.#child.stdin?.write(`${line}\n${comment}\n`);
    return await this.#before(`testpmd> ${comment}`);
  }

  async counters(): Promise<TestpmdCounters> {
    const answer = await this.command('show port stats 0');
    const number = (name: string): number => {
      const found = new RegExp(`${name}: +(\\d+)`).exec(answer)?.[1];
      if (found === undefined) throw new Error(`testpmd shows no ${name}:\n${answer}`);
      return Number(found);
    };
    return {
      rxPackets: number('RX-packets'),
      rxBytes: number('RX-bytes'),
      rxMissed: number('RX-missed'),
      txPackets: number('TX-packets'),
      txBytes: number('TX-bytes'),
      txErrors: number('TX-errors'),
    };
  }

  /** As a program that ends: the queues are stopped and the socket closed. */
  async stop(): Promise<void> {
    if (!this.running) return;
    const closed = once(this.#child, 'close');
    const late = setTimeout(() => this.#child.kill('SIGKILL'), STOP_MS);
    this.#child.stdin?.end('quit\n');
    await closed;
    clearTimeout(late);
  }

  /** As a program that crashes. */
  async kill(): Promise<void> {
    if (!this.running) return;
    const closed = once(this.#child, 'close');
    this.#child.kill('SIGKILL');
    await closed;
  }

  async #before(words: string): Promise<string> {
    let look: () => void = () => {};
    let timer: NodeJS.Timeout | undefined;
    try {
      return await new Promise<string>((resolve, reject) => {
        const fail = (why: string): void => reject(new Error(`testpmd ${why}:\n${this.#output}`));
        timer = setTimeout(() => fail(`gave no answer within ${ANSWER_MS} ms`), ANSWER_MS);
        look = () => {
          const end = this.#output.indexOf(words);
          if (end >= 0) resolve(this.#output.slice(0, end));
          else if (!this.running) fail('ended');
        };
        this.#looks.add(look);
        look();
      });
    } finally {
      clearTimeout(timer);
      this.#looks.delete(look);
    }
  }

  #look(): void {
    for (const look of [...this.#looks]) look();
  }
}

function testpmdArguments(dpdk: Dpdk, options: TestpmdOptions): string[] {
  const { core, forward, packetBytes, queuePairs = 1, queueSize = QUEUE_SIZE, extra = [] } = options;
  const args = [`--lcores=0@${core},1@${core}`, '--no-huge', '-m', `${MEMORY_MIB}`, '--no-pci'];
  args.push('--no-telemetry', '--no-shconf', ...dpdk.drivers, `--vdev=${device(options)}`, '--');
  args.push('-i', `--total-num-mbufs=${MBUFS}`, '--nb-cores=1', '--no-lsc-interrupt', '--disable-link-check');
  args.push(`--forward-mode=${forward}`, `--rxq=${queuePairs}`, `--txq=${queuePairs}`);
  if (options.role === 'front-end') args.push(`--rxd=${queueSize}`, `--txd=${queueSize}`);
  if (packetBytes !== undefined) args.push(`--txpkts=${packetBytes}`);
  return [...args, ...extra];
}

function listens({ role, listens = role === 'back-end' }: TestpmdOptions): boolean {
  return listens;
}

function device(options: TestpmdOptions): string {
  const { role, path, queuePairs = 1, queueSize = QUEUE_SIZE, packedRing = false, mac } = options;
  const { parameters = [] } = options;
  const words =
    role === 'back-end'
      ? ['net_vhost0', `iface=${path}`, `queues=${queuePairs}`, ...(listens(options) ? [] : ['client=1'])]
      : [
          ...['net_virtio_user0', `path=${path}`, `queues=${queuePairs}`, `queue_size=${queueSize}`],
          `packed_vq=${Number(packedRing)}`,
          ...(listens(options) ? ['server=1'] : []),
          ...(mac === undefined ? [] : [`mac=${mac}`]),
        ];
  return [...words, ...parameters].join(',');
}
