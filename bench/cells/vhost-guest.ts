/**
 * A Linux guest that sends TCP to this host by several ways, each a network card of its own: our device, which another
 * process has; QEMU's own tap; passt.
 *
 * It runs in a network namespace that has the taps, and as the first process of a namespace of processes, so that nothing it
 * started outlives it. Options: `ways`, of `zerotx tap passt` those that are there; `sockets`, the beginning
 * of the names of sockets.
 *
 * A slice is one connection: `count` bytes in writes of 64 KiB by the way `variant`. It tells how long the receiver had for
 * them, and the CPU of QEMU, of passt and of the receiver.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { PASST, Passt, passtPackage } from '../../test/guest/passt.ts';
import { Vm } from '../../test/guest/vm.ts';
import type { Nic } from '../../test/guest/vm-nics.ts';
import { figures, guestProgram } from '../../test/guest/vm-programs.ts';
import { type CellSide, type Counters, type Options, textOption } from './cell.ts';

export type Way = 'zerotx' | 'tap' | 'passt';

const WRITE_BYTES = 65_536;
const PORT = 5000;
const SEND_SECONDS = 100;
const CONNECTIONS = 10_000;
/** _SC_CLK_TCK of every Linux that node runs on. */
const TICK_MS = 10;

/** Addresses of this host at the other end of each way; those of passt are its own. */
export const HOST_ADDRESSES: Readonly<Record<'zerotx' | 'tap', string>> = {
  zerotx: '10.1.0.100',
  tap: '10.1.1.100',
};

function nicOf(way: Way, path: string): Nic {
  switch (way) {
    case 'zerotx':
      return {
        peer: { kind: 'vhost-user', path: `${path}-zerotx` },
        ...{ mac: '52:54:00:01:00:01', address: '10.1.0.1/24' },
      };
    case 'tap':
      return { peer: { kind: 'tap', name: 'tap1' }, mac: '52:54:00:01:01:01', address: '10.1.1.1/24' };
    case 'passt':
      return {
        peer: { kind: 'vhost-user', path: `${path}-passt` },
        ...{ mac: '52:54:00:01:02:01', address: PASST.guest },
      };
  }
}

/** tcp-blast on this host: one connection after the other. */
class Receiver {
  readonly #child: ChildProcess;
  readonly #lines: AsyncIterator<string>;

  static async start(address: string): Promise<Receiver> {
    const program = await guestProgram('tcp-blast');
    const args = ['receive', `at=${address}:${PORT}`, `count=${CONNECTIONS}`, 'crc=0'];
    const child = spawn(program, args, { stdio: ['ignore', 'pipe', 2] });
    const receiver = new Receiver(child);
    await receiver.line();
    return receiver;
  }

  private constructor(child: ChildProcess) {
    this.#child = child;
    if (child.stdout === null) throw new Error('tcp-blast has no output');
    this.#lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  async line(): Promise<string> {
    const { value, done } = await this.#lines.next();
    if (done === true) throw new Error('tcp-blast ended');
    return value;
  }

  async stop(): Promise<void> {
    const closed = once(this.#child, 'close');
    this.#child.kill('SIGKILL');
    await closed;
  }
}

class Guest {
  #vm: Vm | null = null;
  #passt: Passt | null = null;
  readonly #receivers = new Map<Way, Receiver>();

  async boot(ways: readonly Way[], path: string): Promise<void> {
    if (ways.includes('passt'))
      this.#passt = await Passt.start(await passtPackage(), { path: `${path}-passt` });
    for (const way of ways) {
      const address = way === 'passt' ? '127.0.0.1' : HOST_ADDRESSES[way];
      this.#receivers.set(way, await Receiver.start(address));
    }
    this.#vm = await Vm.boot({ nics: ways.map((way) => nicOf(way, path)) });
  }

  async send(way: Way, bytes: number): Promise<Counters> {
    const [vm, receiver] = [this.#vm, this.#receivers.get(way)];
    if (vm === null || receiver === undefined) throw new Error(`no way ${way}`);
    const pids = { qemuCpuMs: vm.pid, passtCpuMs: this.#passt?.pid ?? 0, receiverCpuMs: receiver.pid };
    const before = cpuOf(pids);
    const to = way === 'passt' ? PASST.host : HOST_ADDRESSES[way];
    const flags = `bytes=${bytes} write=${WRITE_BYTES} crc=0`;
    const [line] = await Promise.all([
      receiver.line(),
      vm.run(`tcp-blast send to=${to}:${PORT} ${flags}`, SEND_SECONDS),
    ]);
    const after = cpuOf(pids);
    const received = figures(line);
    if (received.bytes !== `${bytes}` || received.wrong !== '-1') throw new Error(`by ${way}: ${line}`);
    const spent = Object.keys(pids).map((name) => [name, after[name]! - before[name]!]);
    return { bytes, ms: Number(received.ms), ...(Object.fromEntries(spent) as Counters) };
  }

  async stop(): Promise<void> {
    await this.#vm?.stop();
    await this.#passt?.stop();
    for (const receiver of this.#receivers.values()) await receiver.stop();
  }
}

/** User and system time of processes; 0 of none. */
function cpuOf(pids: Readonly<Record<string, number>>): Counters {
  const entries = Object.entries(pids).map(([name, pid]): [string, number] => {
    if (pid === 0) return [name, 0];
    // Behind the name in brackets, which may have spaces: fields 14 and 15 of proc(5).
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return [name, (Number(fields[11]) + Number(fields[12])) * TICK_MS];
  });
  return Object.fromEntries(entries);
}

function guest(): CellSide {
  const guest = new Guest();
  /** It takes longer than a request may: the first slice waits for it. */
  let booted: Promise<void>;
  return {
    async open(options: Options): Promise<Options> {
      const ways = textOption(options, 'ways').split(' ') as Way[];
      booted = guest.boot(ways, textOption(options, 'sockets'));
      booted.catch(() => {}); // told to the slice
      return {};
    },
    async run({ count, variant }) {
      await booted;
      return guest.send(variant as Way, count);
    },
    close: () => guest.stop(),
  };
}

export const sides: Record<string, () => CellSide> = { guest };
