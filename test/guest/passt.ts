/**
 * passt as the vhost-user back-end of one guest, for comparison: Debian's package, run with the C library of its suite.
 *
 *   const passt = await Passt.start(await passtPackage(), { path, tcpPorts: [5001] });
 *   const vm = await Vm.boot({ nics: [{ peer: { kind: 'vhost-user', path }, mac, address: PASST.guest }] });
 *   await vm.run(`tcp-blast send to=${PASST.host}:5000 ...`);     // arrives at 127.0.0.1:5000 here
 *   // and 127.0.0.1:5001 here leads to port 5001 of the guest
 *   await passt.stop();
 *
 * Nothing is taken over from this machine's addresses: the guest has those of PASST.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { type DebianPackages, debianPackages } from '../support/debian.ts';

export const PASST: { readonly guest: string; readonly host: string } = {
  guest: '169.254.2.1/16',
  host: '169.254.2.2',
};

export interface PasstOptions {
  /** Of the socket where it listens. */
  readonly path: string;
  /** Ports of this machine that lead to the same ports of the guest. */
  readonly tcpPorts?: readonly number[];
}

const START_MS = 10_000;
const OUTPUT_CHARACTERS = 8000;

/** Rejects with the reason if it cannot be had. */
export function passtPackage(): Promise<DebianPackages> {
  return debianPackages('passt');
}

export class Passt {
  readonly #child: ChildProcess;
  #output = '';

  /** Resolves when a guest can be started. */
  static async start({ folder }: DebianPackages, options: PasstOptions): Promise<Passt> {
    const [triplet = ''] = (await readdir(join(folder, 'usr/lib'))).filter((name) =>
      name.endsWith('-linux-gnu'),
    );
    const libraries = join(folder, 'usr/lib', triplet);
    const [loader = ''] = (await readdir(libraries)).filter((name) => name.startsWith('ld-linux'));
    // It would find its faster build by its own name, which is the loader's here.
    const program = /^flags\t.*\bavx2\b/m.test(readFileSync('/proc/cpuinfo', 'latin1'))
      ? 'passt.avx2'
      : 'passt';
    const command = [join(libraries, loader), '--library-path', libraries, join(folder, 'usr/bin', program)];
    const passt = new Passt(command, options);
    await passt.#listens();
    return passt;
  }

  private constructor([loader = '', ...program]: readonly string[], { path, tcpPorts = [] }: PasstOptions) {
    const [address = '', prefix = ''] = PASST.guest.split('/');
    const args = [...program, '--vhost-user', '--foreground', '--socket', path, '--ipv4-only'];
    args.push('--address', address, '--netmask', prefix, '--gateway', PASST.host);
    args.push('--map-host-loopback', PASST.host);
    if (tcpPorts.length > 0) args.push('--tcp-ports', tcpPorts.join(','));
    const child = spawn(loader, args, { stdio: ['ignore', 'pipe', 'pipe'] });
    this.#child = child;
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding('utf8').on('data', (text: string) => {
        this.#output = (this.#output + text).slice(-OUTPUT_CHARACTERS);
      });
    }
    child.on('error', (error) => {
      this.#output += error.message;
    });
    const end = (): void => void child.kill('SIGKILL');
    process.once('exit', end);
    child.on('close', () => process.off('exit', end));
  }

  get pid(): number {
    return this.#child.pid ?? -1;
  }

  /** What it has said lately. */
  get output(): string {
    return this.#output;
  }

  async stop(): Promise<void> {
    const { pid, exitCode, signalCode } = this.#child;
    if (pid === undefined || exitCode !== null || signalCode !== null) return;
    const closed = once(this.#child, 'close');
    this.#child.kill('SIGKILL');
    await closed;
  }

  /** It says how to start a guest when it is ready for one. */
  #listens(): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        reject(new Error(`passt did not listen within ${START_MS} ms:\n${this.#output}`));
        void this.stop();
      }, START_MS);
      this.#child.once('close', () => {
        clearTimeout(timer);
        reject(new Error(`passt ended:\n${this.#output}`));
      });
      this.#child.stderr?.on('data', () => {
        if (!this.#output.includes('You can start qemu')) return;
        clearTimeout(timer);
        resolve();
      });
    });
  }
}
