/**
 * What the tests with a kernel share: one guest, which stays up from one test to the next, and our nodes around its
 * address, some smaller (they dial), some larger (the kernel dials).
 */
import { once } from 'node:events';
import type { RdsNode } from '../../src/rds/node.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { receive, testNode } from '../support/rds-nodes.ts';
import { Guest, type GuestJob } from './guest.ts';
import { initramfs } from './initramfs.ts';
import { guestKernel } from './kernel.ts';
import { BYE, checkMessage, pattern } from './messages.ts';
import { makeTap } from './namespace.ts';

export const GUEST = '10.77.0.100';

/** For each role two addresses: the kernel never forgets a peer, so that first contact needs one of its own. */
export const roles = [
  { role: 'as the smaller address', address: '10.77.0.1', calledFirst: '10.77.0.2', restarted: '10.77.0.3' },
  { role: 'as the larger address', address: '10.77.0.201', calledFirst: '10.77.0.202', restarted: '10.77.0.203' },
] as const;

const TAP = 'zt0';

export interface Flow {
  readonly bytes: number;
  readonly count: number;
}

export class Lab {
  #guest: Guest | null = null;
  readonly #nodes = new Map<string, RdsNode>();
  #port = 5000;

  get guest(): Guest {
    if (this.#guest === null) throw new Error('no guest: it did not boot');
    return this.#guest;
  }

  async setUp(): Promise<void> {
    makeTap(
      TAP,
      roles.flatMap(({ address, calledFirst, restarted }) =>
        [address, calledFirst, restarted].map((text) => `${text}/24`),
      ),
    );
    await this.#boot();
  }

  async tearDown(): Promise<void> {
    await this.#guest?.stop();
    await Promise.all([...this.#nodes.values()].map((node) => node.close()));
  }

  /** The power goes, and comes back: nothing of the old kernel says good-bye. */
  async reboot(): Promise<void> {
    await this.guest.stop();
    await this.#boot();
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
  async receiver(flow: Flow, more = ''): Promise<{ job: GuestJob; to: { address: string; port: number } }> {
    const port = this.port();
    const { bytes, count } = flow;
    const command = `rds-guest recv at=${GUEST}:${port} size=${bytes} count=${count} rcvbuf=4194304 ${more}`;
    const job = this.guest.start(command);
    await job.line('bound');
    return { job, to: { address: GUEST, port } };
  }

  /** A program of the guest that sends `flow` to `socket`. */
  sender(flow: Flow, socket: RdsSocket, more = ''): GuestJob {
    const { bytes, count } = flow;
    const at = `at=${GUEST}:${this.port()} to=${socket.address}:${socket.port}`;
    return this.guest.start(`rds-guest send ${at} size=${bytes} count=${count} sndbuf=4194304 ${more}`);
  }

  /** A counter of the guest's kernel. */
  async kernelCounter(name: string): Promise<number> {
    const lines = (await this.guest.run('rds-guest counters')).split('\n');
    const line = lines.find((text) => text.startsWith(`${name} `));
    if (line === undefined) throw new Error(`the kernel has no counter ${name}`);
    return Number(line.slice(name.length));
  }

  async #boot(): Promise<void> {
    const kernel = await guestKernel();
    const archive = await initramfs(kernel);
    const address = `${GUEST}/24`;
    this.#guest = await Guest.boot({ image: kernel.image, initramfs: archive, tap: TAP, address });
  }
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
