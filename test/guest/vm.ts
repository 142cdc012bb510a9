/**
 * Linux guests in QEMU, without hardware help (-accel tcg). Two that boot at the same time take about ten seconds.
 *
 *   const vm = await Vm.boot({ nics: [{ peer: { kind: 'vhost-user', path }, mac, address: '10.1.0.1/24' }] });
 *   await vm.run('cat /proc/version');                       // its output; throws if it fails
 *   const job = vm.start('tcp-blast receive at=...');        // meanwhile
 *   await job.line('listening');                             // as soon as it prints such a line
 *   await job.done;
 *   await vm.qmp.execute('query-status');
 *   await vm.stop();
 *
 * The guest's memory is a memfd, which a vhost-user back-end is given. The first serial port is the kernel's console, kept
 * for error messages; the second carries commands (vm-console.ts). A guest is stopped as by a power cut: nothing in it
 * hears of it. With `hotMemoryMiB` memory can be added while it runs, which goes to programs rather than to the kernel, so
 * that it can be taken away again.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import type { Duplex, Readable } from 'node:stream';
import { initramfs } from './initramfs.ts';
import { guestKernel, SHARE_MODULES } from './kernel.ts';
import { GuestConsole, type GuestJob } from './vm-console.ts';
import { type Nic, nicObjects } from './vm-nics.ts';
import { lines, Qmp } from './vm-qmp.ts';

export interface VmOptions {
  readonly nics: readonly Nic[];
  readonly memoryMiB?: number;
  /** How much memory may be added in all, in at most 8 pieces. */
  readonly hotMemoryMiB?: number;
  readonly processors?: number;
  /** A folder of this machine, which the guest may read: `mount -t 9p -o trans=virtio,ro share /somewhere`. */
  readonly share?: string;
}

const MEMORY_MIB = 512;
const HOT_PIECES = 8;
const BOOT_MS = 90_000;
const CONSOLE_CHARACTERS = 4000;

export class Vm {
  readonly qmp: Qmp;
  readonly #qemu: ChildProcess;
  readonly #commands: GuestConsole;
  readonly #nics = new Map<string, Nic>();
  readonly #booted: Promise<void>;
  #console = '';

  static async boot(options: VmOptions): Promise<Vm> {
    const vm = await Vm.start(options);
    await vm.booted();
    return vm;
  }

  /** Resolves when the guest has all its cards and is about to boot: what QEMU listens on can then be connected to. */
  static async start(options: VmOptions): Promise<Vm> {
    const kernel = await guestKernel(options.share === undefined ? [] : SHARE_MODULES);
    const vm = new Vm(options, kernel.image, await initramfs(kernel));
    return vm.#orStop(vm.qmp.execute('query-status').then(() => vm));
  }

  async booted(): Promise<void> {
    await this.#orStop(this.#booted);
    for (const nic of this.#nics.values()) await this.#orStop(this.#configure(nic));
  }

  private constructor(options: VmOptions, image: string, archive: string) {
    const append = ['console=ttyS0', 'panic=-1', 'mitigations=off', 'loglevel=4'];
    append.push('memhp_default_state=online_movable');
    const args = machineArguments(options);
    args.push('-kernel', image, '-initrd', archive, '-append', append.join(' '));
    // What spawn() calls a pipe is a connected socket.
    args.push('-chardev', 'socket,id=console,fd=3', '-serial', 'chardev:console', '-serial', 'stdio');
    args.push('-chardev', 'socket,id=qmp,fd=4', '-mon', 'chardev=qmp,mode=control');
    for (const [index, nic] of options.nics.entries()) {
      this.#nics.set(`n${index}`, nic);
      const { chardev, netdev, device } = nicObjects(`n${index}`, nic);
      if (chardev !== null) args.push('-chardev', chardev.flags);
      args.push('-netdev', JSON.stringify(netdev), '-device', JSON.stringify(device));
    }
    this.#qemu = spawn('qemu-system-x86_64', args, { stdio: ['pipe', 'pipe', 'pipe', 'pipe', 'pipe'] });
    const [, stdout, stderr, serial, monitor] = this.#qemu.stdio as (Readable | null)[];
    for (const stream of [stderr, serial]) {
      stream?.setEncoding('utf8').on('data', (text: string) => {
        this.#console = (this.#console + text).slice(-CONSOLE_CHARACTERS);
      });
      stream?.on('error', () => {});
    }
    this.qmp = new Qmp(monitor as Duplex);
    this.#commands = new GuestConsole(
      (line) => this.#qemu.stdin?.write(line),
      () => this.#console,
    );
    if (stdout) lines(stdout, (line) => this.#commands.line(line));
    this.#qemu.stdin?.on('error', () => {});
    this.#qemu.on('error', (error) => this.#commands.close(error.message));
    this.#qemu.on('close', (code, signal) => this.#commands.close(`QEMU ended (${signal ?? code})`));
    this.#booted = this.#commands.booted(BOOT_MS);
    this.#booted.catch(() => {});
  }

  get running(): boolean {
    return this.#qemu.pid !== undefined && this.#qemu.exitCode === null && this.#qemu.signalCode === null;
  }

  /** What the guest's kernel and QEMU have said lately. */
  get console(): string {
    return this.#console;
  }

  /** Of QEMU. */
  get pid(): number {
    return this.#qemu.pid ?? -1;
  }

  /** Starts a shell command, which the guest ends after `seconds`. */
  start(command: string, seconds?: number): GuestJob {
    return this.#commands.start(command, seconds);
  }

  run(command: string, seconds?: number): Promise<string> {
    return this.start(command, seconds).done;
  }

  /** As by the reset button: the guest boots again, and its cards get their addresses. */
  async reset(): Promise<void> {
    this.#commands.abandon('the guest was reset');
    const booted = this.#commands.booted(BOOT_MS);
    // Any other reset, a panic's say, ends QEMU.
    await this.qmp.execute('set-action', { reboot: 'reset' });
    await this.qmp.execute('system_reset');
    await this.qmp.event('RESET');
    await booted;
    await this.qmp.execute('set-action', { reboot: 'shutdown' });
    for (const nic of this.#nics.values()) await this.#configure(nic);
  }

  /** Plugs a card in, which is called `id` from now on. Resolves with the name of its interface. */
  async addNic(id: string, nic: Nic): Promise<string> {
    const { chardev, netdev, device } = nicObjects(id, nic);
    if (chardev !== null) await this.qmp.execute('chardev-add', chardev.json);
    await this.qmp.execute('netdev_add', netdev);
    await this.qmp.execute('device_add', device);
    this.#nics.set(id, nic);
    return this.#configure(nic);
  }

  /** Pulls a card out; those of boot() are called n0, n1 ... */
  async removeNic(id: string): Promise<void> {
    await this.#removeDevice(id);
    // The socket of a vhost-user card goes with it.
    await this.qmp.execute('netdev_del', { id: `b-${id}` });
    this.#nics.delete(id);
  }

  /** Plugs memory in, at least 128 MiB, a memfd of its own; resolves when the guest has it. */
  async addMemory(id: string, mebibytes: number): Promise<void> {
    const before = await this.memoryMiB();
    const size = mebibytes * 2 ** 20;
    const backend = { 'qom-type': 'memory-backend-memfd', id: `m-${id}`, size, share: true };
    await this.qmp.execute('object-add', backend);
    await this.qmp.execute('device_add', { driver: 'pc-dimm', id, memdev: `m-${id}` });
    const enough = before + Math.floor(mebibytes / 2);
    await this.run(
      `until [ $(free -m | sed -n 's/^Mem: *\\([0-9]*\\).*/\\1/p') -gt ${enough} ]; do sleep 0.05; done`,
    );
  }

  async removeMemory(id: string): Promise<void> {
    await this.#removeDevice(id);
    await this.qmp.execute('object-del', { id: `m-${id}` });
  }

  /** As the guest's kernel counts it, which is less than it was given. */
  async memoryMiB(): Promise<number> {
    const lines = await this.run('free -m');
    return Number(/^Mem: *(\d+)/m.exec(lines)?.[1]);
  }

  async stop(): Promise<void> {
    if (!this.running) return;
    const closed = once(this.#qemu, 'close');
    this.#qemu.kill('SIGKILL');
    await closed;
  }

  /** A guest that does not come up is not left behind, and its console tells why. */
  async #orStop<T>(what: Promise<T>): Promise<T> {
    try {
      return await what;
    } catch (error) {
      const console = this.#console;
      await this.stop();
      (error as Error).message += `\n${console}`;
      throw error;
    }
  }

  /** The guest has let go of the device when this resolves. */
  async #removeDevice(id: string): Promise<void> {
    await this.qmp.execute('device_del', { id });
    await this.qmp.event('DEVICE_DELETED', (data) => data.device === id);
  }

  /** Waits for the interface, and resolves with its name. */
  async #configure({ mac, address }: Nic): Promise<string> {
    const commands = [
      `until file=$(grep -l ${mac.toLowerCase()} /sys/class/net/*/address); do sleep 0.05; done`,
      'name=$(basename $(dirname $file))',
      ...(address === undefined ? [] : [`ip address add ${address} dev $name`]),
      'ip link set $name up',
      'echo $name',
    ];
    return await this.run(`set -e; ${commands.join('; ')}`);
  }
}

function machineArguments(options: VmOptions): string[] {
  const { memoryMiB = MEMORY_MIB, hotMemoryMiB = 0, processors = 1 } = options;
  const size = memoryMiB * 2 ** 20;
  const memory = { 'qom-type': 'memory-backend-memfd', id: 'memory', size, share: true };
  const hot = hotMemoryMiB === 0 ? '' : `,slots=${HOT_PIECES},maxmem=${memoryMiB + hotMemoryMiB}M`;
  const args = ['-accel', 'tcg', '-cpu', 'max', '-smp', `${processors}`, '-m', `${memoryMiB}M${hot}`];
  args.push('-object', JSON.stringify(memory), '-machine', 'pc,memory-backend=memory');
  args.push('-nodefaults', '-no-reboot', '-display', 'none', '-monitor', 'none');
  if (options.share !== undefined) {
    // Files of several file systems may have the same number, by which a guest tells them apart.
    const share = `local,path=${options.share},mount_tag=share,security_model=none,multidevs=remap,readonly=on`;
    args.push('-virtfs', share);
  }
  return args;
}
