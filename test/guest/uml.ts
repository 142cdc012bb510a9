/**
 * Guests of User-Mode Linux: a kernel that is a program of this machine, near its native speed, which boots in a second or two. Its
 * network cards are vhost-user devices, which it reads everything from: features, MAC address, MTU, link.
 *
 *   const uml = await Uml.boot({ nics: [{ path, mac, address: '10.1.0.1/24' }] });
 *   await uml.run('uname -r');                                // as with a Vm
 *   await uml.stop();
 *
 * Only within namespaces of the tests' own (namespace.ts). The program comes with a C library of its own (scripts/debian-packages.mjs).
 * It cannot be started through that one's loader, as it takes the room up to its heap for its memory; so its loader is mounted over
 * this machine's, for it alone. Memory is a file in /dev/shm, without a name.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { debianPackages } from '../support/debian.ts';
import { initramfs } from './initramfs.ts';
import { moduleOrder } from './kernel.ts';
import { socketPaths } from './namespace.ts';
import { GuestConsole, type GuestJob } from './vm-console.ts';
import { lines } from './vm-qmp.ts';

export interface UmlNic {
  /** Where the device listens. */
  readonly path: string;
  /** As the device has it: the guest's card is found by it. */
  readonly mac: string;
  /** With prefix length; the guest has none without. */
  readonly address?: string;
}

export interface UmlOptions {
  readonly nics: readonly UmlNic[];
  readonly memoryMiB?: number;
}

/** What a guest is booted with. */
export interface UmlImage {
  /** Of its kernel's package. */
  readonly version: string;
  readonly program: string;
  readonly loader: string;
  readonly libraries: string;
  readonly archive: string;
}

/** A guest has a socket of its own in it, which one that is killed leaves behind. */
const home = socketPaths()('');
const BOOT_MS = 30_000;
const CONSOLE_CHARACTERS = 8000;
/** Virtio's number of a network device. */
const NETWORK = 1;

/** In a mount namespace: $0 is the loader, $1 the libraries, and then come the program and its arguments. */
const script = `mount --bind "$0" /lib64/ld-linux-x86-64.so.2 || exit
export LD_LIBRARY_PATH="$1"
shift
exec "$@"`;

/** Rejects with the reason if it cannot be had. */
export async function umlImage(): Promise<UmlImage> {
  const { folder, versions } = await debianPackages('uml');
  const version = versions['user-mode-linux'] ?? '';
  const modules = await moduleOrder(folder, ['virtio_net']);
  const program = join(folder, 'usr/bin/linux.uml');
  return {
    version,
    program,
    loader: join(folder, 'usr/lib64/ld-linux-x86-64.so.2'),
    libraries: join(folder, 'usr/lib/x86_64-linux-gnu'),
    archive: await initramfs({ version, image: program, modules }),
  };
}

export class Uml {
  readonly #child: ChildProcess;
  readonly #commands: GuestConsole;
  readonly #nics: readonly UmlNic[];
  #console = '';

  static async boot(options: UmlOptions): Promise<Uml> {
    const uml = new Uml(await umlImage(), options);
    try {
      await uml.#booted();
      return uml;
    } catch (error) {
      const console = uml.#console;
      await uml.stop();
      (error as Error).message += `\n${console}`;
      throw error;
    }
  }

  private constructor(image: UmlImage, { nics, memoryMiB = 256 }: UmlOptions) {
    this.#nics = nics;
    const words = [`mem=${memoryMiB}M`, `initrd=${image.archive}`, 'panic=-1', 'loglevel=4'];
    // The console is the kernel's; commands go through the second serial port, as in a Vm.
    words.push('con=null', 'con0=null,fd:2', 'ssl=null', 'ssl1=fd:0,fd:1');
    words.push(...nics.map(({ path }) => `virtio_uml.device=${path}:${NETWORK}`));
    const namespaces = ['--mount', '--pid', '--mount-proc', '--fork', '--kill-child'];
    const command = ['sh', '-c', script, image.loader, image.libraries, image.program];
    this.#child = spawn('unshare', [...namespaces, ...command, ...words], {
      stdio: ['pipe', 'pipe', 'pipe'],
      env: { PATH: process.env.PATH, HOME: home, TMPDIR: '/dev/shm' },
    });
    const { stdin, stdout, stderr } = this.#child;
    (stderr as Readable).setEncoding('utf8').on('data', (text: string) => {
      this.#console = (this.#console + text).slice(-CONSOLE_CHARACTERS);
    });
    this.#commands = new GuestConsole(
      (line) => stdin?.write(line),
      () => this.#console,
    );
    lines(stdout as Readable, (line) => this.#commands.line(line));
    stdin?.on('error', () => {});
    this.#child.on('error', (error) => this.#commands.close(error.message));
    this.#child.on('close', (code, signal) =>
      this.#commands.close(`User-Mode Linux ended (${signal ?? code})`),
    );
  }

  get running(): boolean {
    return this.#child.pid !== undefined && this.#child.exitCode === null && this.#child.signalCode === null;
  }

  /** What the kernel has said lately. */
  get console(): string {
    return this.#console;
  }

  /** Starts a shell command, which the guest ends after `seconds`. */
  start(command: string, seconds?: number): GuestJob {
    return this.#commands.start(command, seconds);
  }

  run(command: string, seconds?: number): Promise<string> {
    return this.start(command, seconds).done;
  }

  /** Boots it again: the same program from its beginning, which drops its devices and finds them anew. */
  async reboot(): Promise<void> {
    this.start('reboot -f');
    this.#commands.abandon('the guest was rebooted');
    await this.#booted();
  }

  /** As by a power cut: nothing in it hears of it. */
  async stop(): Promise<void> {
    if (!this.running) return;
    const closed = once(this.#child, 'close');
    this.#child.kill('SIGKILL');
    await closed;
  }

  async #booted(): Promise<void> {
    await this.#commands.booted(BOOT_MS);
    for (const nic of this.#nics) await this.#configure(nic);
  }

  async #configure({ mac, address }: UmlNic): Promise<void> {
    const commands = [
      `file=$(grep -l ${mac.toLowerCase()} /sys/class/net/*/address)`,
      'name=$(basename $(dirname $file))',
      ...(address === undefined ? [] : [`ip address add ${address} dev $name`]),
      'ip link set $name up',
    ];
    await this.run(`set -e; ${commands.join('; ')}`);
  }
}
