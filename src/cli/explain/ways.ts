/** The ways to the peers of sockets, as doctor() sees them: each is looked at once, and only where something was copied. */
import { readFileSync, readlinkSync } from 'node:fs';
import { isIP } from 'node:net';
import { basename } from 'node:path';
import { doctor, type Finding } from '../../index.ts';
import type { SocketStats } from '../../net/index.ts';
import type { Way } from './reasons.ts';

/** A server has thousands of peers, and looking costs some milliseconds each. */
const WAYS_MAX = 32;
const NAME_MAX = 64;

/** The other end of a socket, or of a node of RDS, and what was sent there. */
export interface End extends Pick<SocketStats, 'remote' | 'zerocopy'> {
  readonly kind: SocketStats['kind'] | 'rds';
}

/** The findings for each `remote`; for others why there are none. */
export class Ways {
  readonly #ways = new Map<string, Way>();

  async look(sockets: readonly End[], pid: number): Promise<void> {
    const elsewhere = inOtherNamespace(pid);
    for (const { remote, kind, zerocopy } of sockets) {
      if (kind === 'unix' || remote === '' || this.#ways.has(remote)) continue;
      if (zerocopy.fallbackBytes + zerocopy.kernelCopiedBytes === 0) continue;
      if (this.#ways.size === WAYS_MAX) return;
      this.#ways.set(remote, elsewhere ?? (await wayTo(remote)));
    }
  }

  to({ remote, kind }: Omit<End, 'zerocopy'>): Way {
    if (remote === '' && kind === 'udp') {
      return {
        unknown: 'the socket is not connected: zerotx doctor --to <host> tells of the way to each peer',
      };
    }
    return this.#ways.get(remote) ?? { unknown: 'the way was not looked at: it is not among the first' };
  }
}

async function wayTo(remote: string): Promise<Way> {
  // It is what the other program says: a name in it would be a question to the DNS in our name.
  if (isIP(remote.replace(/:\d+$/, '').replace(/^\[|\]$/g, '')) === 0) {
    return { unknown: 'the other end is no IP address' };
  }
  const findings: Finding[] = [];
  try {
    for await (const finding of doctor({ to: remote, only: ['device'] })) findings.push(finding);
  } catch (error) {
    // A link-local address, whose zone doctor() does not take.
    return { unknown: `the way to ${remote} cannot be looked at (${(error as Error).message})` };
  }
  return { findings };
}

/** A way seen from here is not that of a program in a container. */
function inOtherNamespace(pid: number): Way | undefined {
  try {
    if (readlinkSync(`/proc/${pid}/ns/net`) === readlinkSync('/proc/self/ns/net')) return undefined;
  } catch {
    // Gone meanwhile, or not for us to see: taken as ours.
    return undefined;
  }
  return {
    unknown: `the program is in another network namespace: look from there (nsenter -t ${pid} -n zerotx explain ${pid})`,
  };
}

/** The program and its script, without their folders: `node server.js`. Not the name in `comm`: Node calls it its main thread. */
export function commandOf(pid: number): string {
  try {
    const [program = '', script = '-'] = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
    return [program, script]
      .filter((word) => word !== '' && !word.startsWith('-'))
      .map((word) => basename(word).slice(0, NAME_MAX))
      .join(' ');
  } catch {
    return 'process';
  }
}
