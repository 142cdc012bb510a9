/**
 * The guest of the tests of the kernel transport: Node runs inside it, from this machine's own tree, which it sees through 9p,
 * with sockets of the guest's kernel. One process serves all tests (children/rds-transport-guest.ts).
 */
import { connect, type Socket } from 'node:net';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { splitZone } from '../../src/wire/sockaddr.ts';
import { hasIpv6 } from './lab.ts';
import { makeTap, setLink } from './namespace.ts';
import type { GuestCalls } from './rds-transport-calls.ts';
import { SECOND } from './rds-transport-checks.ts';
import { Vm } from './vm.ts';

export const GUEST = '10.88.0.100';
/** One below the guest's address, which dials, and one above, which the guest dials. */
export const OURS = { smaller: '10.88.0.1', larger: '10.88.0.201' } as const;

/** IPv6, global and of the link; of the latter each end has a zone of its own. */
export const IPV6 = {
  global: { ours: 'fd88::1', guest: 'fd88::100', theirView: 'fd88::1' },
  'link-local': { ours: 'fe80::1%zk0', guest: 'fe80::100%eth0', theirView: 'fe80::1%eth0' },
} as const;

const TAP = 'zk0';
/** What the tests say to the guest goes over a cable of its own, so that the other one can be pulled. */
const CONTROL_TAP = 'zk1';
const CONTROL = { ours: '10.89.0.1', guest: '10.89.0.100', port: 7000 } as const;
const MEMORY_MIB = 1024;
const NODE_SECONDS = 400;
const program = fileURLToPath(new URL('./children/rds-transport-guest.js', import.meta.url));

interface Answer {
  readonly id: number;
  readonly value?: unknown;
  readonly error?: { readonly message: string; readonly code?: string; readonly stack?: string };
}

/** What a call failed with, in the guest. */
export class GuestError extends Error {
  readonly code: string | undefined;

  constructor({ message, code, stack }: NonNullable<Answer['error']>) {
    super(`in the guest: ${message}\n${stack}`);
    this.code = code;
  }
}

export class TransportGuest {
  #vm: Vm | null = null;
  #socket: Socket | null = null;
  #nextId = 1;
  readonly #waiting = new Map<number, (answer: Answer) => void>();

  get vm(): Vm {
    if (this.#vm === null) throw new Error('no guest: it did not boot');
    return this.#vm;
  }

  async setUp(): Promise<void> {
    const ours = Object.values(OURS).map((address) => `${address}/24`);
    if (hasIpv6) ours.push(...Object.values(IPV6).map((each) => `${splitZone(each.ours).host}/64`));
    makeTap(TAP, ours);
    makeTap(CONTROL_TAP, [`${CONTROL.ours}/24`]);
    this.#vm = await Vm.boot({
      nics: [
        { mac: '52:54:00:88:00:02', address: `${GUEST}/24`, peer: { kind: 'tap', name: TAP } },
        {
          mac: '52:54:00:88:00:03',
          address: `${CONTROL.guest}/24`,
          peer: { kind: 'tap', name: CONTROL_TAP },
        },
      ],
      memoryMiB: MEMORY_MIB,
      share: '/',
    });
    const mount = 'mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,ro,cache=loose share /host';
    const binds = ['proc', 'dev'].map((folder) => `mount --bind /${folder} /host/${folder}`);
    const addresses = [`ip address add ${SECOND}/24 dev eth0`];
    if (hasIpv6)
      for (const { guest } of Object.values(IPV6))
        addresses.push(`/sbin/ip address add ${splitZone(guest).host}/64 dev eth0 nodad`);
    await this.vm.run(['set -e', 'mkdir /host', mount, ...binds, ...addresses].join('; '));
    const command = [process.execPath, ...process.execArgv, program, GUEST, `${CONTROL.port}`];
    const job = this.vm.start(`chroot /host ${command.join(' ')}`, NODE_SECONDS);
    await job.line('listening');
    await this.#connect();
  }

  async tearDown(): Promise<void> {
    this.#socket?.destroy();
    await this.#vm?.stop();
  }

  /** The cable between the two RDS. */
  link(state: 'up' | 'down'): void {
    setLink(TAP, state);
  }

  /** What the function of this name returns in the guest; rejects with a GuestError. */
  async call<Name extends keyof GuestCalls>(
    name: Name,
    ...args: Parameters<GuestCalls[Name]>
  ): Promise<Awaited<ReturnType<GuestCalls[Name]>>> {
    const id = this.#nextId++;
    const answer = await new Promise<Answer>((resolve) => {
      this.#waiting.set(id, resolve);
      this.#socket?.write(`${JSON.stringify({ id, call: name, args })}\n`);
    });
    if (answer.error !== undefined) throw new GuestError(answer.error);
    return answer.value as Awaited<ReturnType<GuestCalls[Name]>>;
  }

  #connect(): Promise<void> {
    return new Promise((resolve, reject) => {
      const socket = connect({ host: CONTROL.guest, port: CONTROL.port }, () => resolve());
      this.#socket = socket;
      socket.on('error', (error) => {
        reject(error);
        for (const [id, answer] of this.#waiting) answer({ id, error: { message: error.message } });
      });
      createInterface(socket).on('line', (line) => {
        const answer = JSON.parse(line) as Answer;
        this.#waiting.get(answer.id)?.(answer);
        this.#waiting.delete(answer.id);
      });
    });
  }
}
