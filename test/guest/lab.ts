/**
 * What the tests with a kernel share: one guest, which stays up from one test to the next, and our nodes around its
 * address, some smaller (they dial), some larger (the kernel dials).
 */
import { once } from 'node:events';
import type { RdsNode } from '../../src/rds/node.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { receive, testNode } from '../support/rds-nodes.ts';
import { BYE, checkMessage, pattern } from './messages.ts';
import { makeTap, setLink } from './namespace.ts';
import { Vm } from './vm.ts';
import type { GuestJob } from './vm-console.ts';

export const GUEST = '10.77.0.100';

/** The kernel never forgets a peer, so that each kind of first contact needs an address of its own. */
export interface Role {
  readonly role: string;
  readonly address: string;
  readonly calledFirst: string;
  readonly bothAtOnce: string;
  readonly withoutPings: string;
  readonly restarted: string;
}

function addresses(first: number): Omit<Role, 'role'> {
  const address = (i: number): string => `10.77.0.${first + i}`;
  return {
    address: address(0),
    calledFirst: address(1),
    bothAtOnce: address(2),
    withoutPings: address(3),
    restarted: address(4),
  };
}

export const roles: readonly Role[] = [
  { role: 'as the smaller address', ...addresses(1) },
  { role: 'as the larger address', ...addresses(201) },
] as const;

const TAP = 'zt0';
const PROGRAM_BUFFER_BYTES = 4 * 1024 * 1024;

export interface Flow {
  readonly bytes: number;
  readonly count: number;
}

export class Lab {
  #guest: Vm | null = null;
  readonly #nodes = new Map<string, RdsNode>();
  #port = 5000;

  get guest(): Vm {
    if (this.#guest === null) throw new Error('no guest: it did not boot');
    return this.#guest;
  }

  async setUp(): Promise<void> {
    const ours = roles.flatMap(({ role: _, ...each }) => Object.values<string>(each));
    makeTap(
      TAP,
      ours.map((address) => `${address}/24`),
    );
    await this.boot();
  }

  async tearDown(): Promise<void> {
    await this.#guest?.stop();
    await Promise.all([...this.#nodes.values()].map((node) => node.close()));
  }

  /** Our node with this address, open from its first use on. */
  node(address: string): RdsNode {
    const open = this.#nodes.get(address);
    if (open !== undefined) return open;
    const node = testNode(address);
    this.#nodes.set(address, node);
    return node;
  }

  /** An RDS port that no test has used. */
  port(): number {
    return this.#port++;
  }

  /** A program of the guest that receives `flow`, bound already. */
  async receiver(
    flow: Flow,
    options: { port?: number; rcvbuf?: number; hold?: string; seconds?: number } = {},
  ): Promise<{ job: GuestJob; to: { address: string; port: number } }> {
    const { port = this.port(), rcvbuf = PROGRAM_BUFFER_BYTES, hold, seconds } = options;
    const flags = [`rcvbuf=${rcvbuf}`, ...(hold === undefined ? [] : [`hold=${hold}`])];
    const job = this.guest.start(
      `rds-guest recv at=${GUEST}:${port} ${flowFlags(flow)} ${flags.join(' ')}`,
      seconds,
    );
    await job.line('bound');
    return { job, to: { address: GUEST, port } };
  }

  /** A program of the guest that sends `flow` to `socket`. */
  sender(
    flow: Flow,
    socket: RdsSocket,
    options: { sndbuf?: number; nonblock?: boolean; zerocopy?: boolean } = {},
  ): GuestJob {
    const { sndbuf = PROGRAM_BUFFER_BYTES, nonblock = false, zerocopy = false } = options;
    const at = `at=${GUEST}:${this.port()} to=${socket.address}:${socket.port}`;
    const flags = `sndbuf=${sndbuf} nonblock=${Number(nonblock)} zerocopy=${Number(zerocopy)}`;
    return this.guest.start(`rds-guest send ${at} ${flowFlags(flow)} ${flags}`);
  }

  /** A counter of the guest's kernel. */
  async kernelCounter(name: string): Promise<number> {
    const lines = (await this.guest.run('rds-guest counters')).split('\n');
    const line = lines.find((text) => text.startsWith(`${name} `));
    if (line === undefined) throw new Error(`the kernel has no counter ${name}`);
    return Number(line.slice(name.length));
  }

  /** The cable between us and the guest. */
  link(state: 'up' | 'down'): void {
    setLink(TAP, state);
  }

  async boot(): Promise<void> {
    const nic = { mac: '52:54:00:77:00:02', address: `${GUEST}/24` };
    this.#guest = await Vm.boot({ nics: [{ ...nic, peer: { kind: 'tap', name: TAP } }] });
  }
}

function flowFlags({ bytes, count }: Flow): string {
  return `size=${bytes} count=${count}`;
}

/** Sends `flow` and a bye, each message as soon as there is room; resolves when every buffer is ours again. */
export async function sendFlow(
  socket: RdsSocket,
  flow: Flow,
  to: { address: string; port: number },
): Promise<void> {
  const sends: Promise<unknown>[] = [];
  for (let i = 0; i < flow.count; i++) {
    while (!socket.writable) await once(socket, 'writable');
    sends.push(socket.send(pattern(i, flow.bytes), to));
  }
  sends.push(socket.send(BYE, to));
  await Promise.all(sends);
}

/** Reads `flow`, insisting on order and content, and says bye to its sender; `between` runs before each message. */
export async function receiveFlow(
  socket: RdsSocket,
  flow: Flow,
  between: (index: number) => Promise<void> | void = () => {},
): Promise<void> {
  let from: { address: string; port: number } | null = null;
  for (let i = 0; i < flow.count; i++) {
    await between(i);
    const [message] = await receive(socket, 1);
    if (message === undefined) throw new Error('receive() returned nothing');
    checkMessage(message.data, i, flow.bytes);
    from ??= { address: message.address, port: message.port };
    message.recycle();
  }
  if (from !== null) await socket.send(BYE, from);
}
