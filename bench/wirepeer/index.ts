/**
 * The wire peer: a remote host that acknowledges, so that a zero-copy send over TCP is not copied after all on a machine
 * without a network card. wire-peer.c says how; this starts it in a namespace of its own and talks to it.
 *
 *   const peer = await startWirePeer({ greeting, expectBytes: 8240 });
 *   // run the sender with `ip netns exec ${peer.senderNetns}`; it dials ${peer.peerAddress} port 16385
 *   await peer.armed;          // the connection is up, the greeting has been exchanged, data is now dropped
 *   const { packets } = await peer.stats();
 *   await peer.stop();
 *
 * It serves one connection. From the greeting on it acknowledges every byte and keeps none. The namespaces go away with
 * `stop`, and also when the process exits; a process that wants them gone after SIGINT must turn that into an exit.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { compiled } from './compile.ts';
import { makeNetnsPair, type NetnsPair } from './netns.ts';

export interface WirePeerOptions {
  /** What the peer sends after the sender's first bytes; may be empty. */
  greeting: Buffer;
  /** How many bytes the sender sends before it needs the greeting; they are read by a real TCP and thrown away. */
  expectBytes: number;
  /** TCP port to listen on; 16385 if not given. */
  port?: number;
}

export interface WirePeerStats {
  /** Packets dropped on the peer's ingress: data the sender put on the wire, and its bare ACKs. */
  packets: number;
  payloadBytes: number;
  acks: number;
  /** CPU of the peer process since its start. */
  cpuUs: number;
}

export interface WirePeer {
  senderNetns: string;
  senderAddress: string;
  peerAddress: string;
  /** Command to start the sender with: its namespace, and the CPUs that the peer does not use, if there are any. */
  senderPrefix: readonly string[];
  /** Resolves with the sender's TCP port once its data is dropped and acknowledged; rejects when that cannot be. */
  armed: Promise<number>;
  stats(): Promise<WirePeerStats>;
  stop(): Promise<void>;
}

type Event =
  | { event: 'listening' }
  | { event: 'armed'; senderPort: number }
  | ({ event: 'stats' } & WirePeerStats)
  | { event: 'error'; call: string; errno: number; message: string };

const RDS_TCP_PORT = 16385;
const ANSWER_TIMEOUT_MS = 10_000;

/** Starts a wire peer, or says why none can be had here: no root, no compiler, an old kernel. */
export async function wirePeerOrReason(options: WirePeerOptions): Promise<WirePeer | string> {
  if (process.getuid?.() !== 0) return 'needs root: network namespaces, a packet socket and a BPF program';
  try {
    return await startWirePeer(options);
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

export async function startWirePeer(options: WirePeerOptions): Promise<WirePeer> {
  const program = await compiled('wire-peer');
  const netns = makeNetnsPair();
  try {
    const peer = new PeerProcess(program, netns, options);
    await peer.listening;
    return {
      senderNetns: netns.senderNetns,
      senderAddress: netns.senderAddress,
      peerAddress: netns.peerAddress,
      senderPrefix: [...netns.senderPrefix, ...besidesLastCpu()],
      armed: peer.armed,
      stats: () => peer.stats(),
      async stop() {
        await peer.stop();
        netns.remove();
      },
    };
  } catch (error) {
    netns.remove();
    throw error;
  }
}

class PeerProcess {
  readonly listening: Promise<void>;
  readonly armed: Promise<number>;
  readonly #child: ChildProcess;
  readonly #exited: Promise<void>;
  readonly #waiting: { resolve: (stats: WirePeerStats) => void; reject: (error: Error) => void }[] = [];
  #isListening: () => void = () => {};
  #isArmed: (senderPort: number) => void = () => {};
  #failed: (error: Error) => void = () => {};
  #ended: Error | undefined;

  constructor(program: string, netns: NetnsPair, options: WirePeerOptions) {
    const failed = new Promise<never>((_, reject) => {
      this.#failed = reject;
    });
    this.listening = Promise.race([
      failed,
      new Promise<void>((resolve) => {
        this.#isListening = resolve;
      }),
    ]);
    this.armed = Promise.race([
      failed,
      new Promise<number>((resolve) => {
        this.#isArmed = resolve;
      }),
    ]);
    // Whoever waits hears of it; a peer that is stopped before it is armed is no unhandled rejection.
    this.listening.catch(() => {});
    this.armed.catch(() => {});
    this.#child = spawn(
      'ip',
      [
        ...['netns', 'exec', netns.peerNetns, program, netns.peerIfname, netns.peerMac, netns.senderMac],
        ...[netns.peerAddress, String(options.port ?? RDS_TCP_PORT)],
        ...[String(options.expectBytes), String(options.greeting.length)],
      ],
      { stdio: ['pipe', 'pipe', 'inherit'] },
    );
    this.#exited = new Promise((resolve) => this.#child.once('close', () => resolve()));
    this.#child.on('error', (error) => this.#end(error));
    this.#child.on('close', (code, signal) =>
      this.#end(new Error(`wire peer ended: ${signal ?? `exit code ${code}`}`)),
    );
    this.#child.stdin!.on('error', () => {}); // told by 'close'
    createInterface({ input: this.#child.stdout! }).on('line', (line) =>
      this.#take(JSON.parse(line) as Event),
    );
    this.#child.stdin!.write(options.greeting);
  }

  async stats(): Promise<WirePeerStats> {
    if (this.#ended !== undefined) throw this.#ended;
    let timer: NodeJS.Timeout | undefined;
    try {
      return await new Promise<WirePeerStats>((resolve, reject) => {
        timer = setTimeout(() => reject(new Error('wire peer does not answer')), ANSWER_TIMEOUT_MS);
        this.#waiting.push({ resolve, reject });
        this.#child.stdin!.write('\n');
      });
    } finally {
      clearTimeout(timer);
    }
  }

  async stop(): Promise<void> {
    this.#child.kill('SIGKILL');
    await this.#exited;
  }

  #take(event: Event): void {
    if (event.event === 'listening') this.#isListening();
    else if (event.event === 'armed') this.#isArmed(event.senderPort);
    else if (event.event === 'stats') {
      const { packets, payloadBytes, acks, cpuUs } = event;
      this.#waiting.shift()?.resolve({ packets, payloadBytes, acks, cpuUs });
    } else this.#end(new Error(`wire peer: ${event.call}: ${event.message}`));
  }

  #end(error: Error): void {
    this.#ended ??= error;
    this.#failed(error);
    for (const { reject } of this.#waiting.splice(0)) reject(error);
  }
}

/** The peer pins itself to the last CPU it may use; the sender gets the others. */
function besidesLastCpu(): string[] {
  const cpus = allowedCpus();
  return cpus.length < 2 ? [] : ['taskset', '-c', cpus.slice(0, -1).join(',')];
}

/** CPUs of Cpus_allowed_list in /proc/self/status, e.g. `0-2,5`. */
function allowedCpus(): number[] {
  const status = readFileSync('/proc/self/status', 'utf8');
  const list = /^Cpus_allowed_list:\s*(\S+)$/m.exec(status)?.[1] ?? '0';
  return list.split(',').flatMap((range) => {
    const [first, last] = range.split('-').map(Number);
    return Array.from({ length: (last ?? first!) - first! + 1 }, (_, i) => first! + i);
  });
}
