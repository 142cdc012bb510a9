/**
 * A Linux guest in QEMU, without hardware help (-accel tcg), at the other end of a tap.
 *
 *   const guest = await Guest.boot({ kernel, initramfs, tap: 'zt0', address: '10.77.0.2/24' });
 *   await guest.run('cat /proc/version');                 // its output; throws if it fails
 *   const job = guest.start('rds-guest recv at=...');     // meanwhile
 *   await job.line('bound');                              // as soon as it prints such a line
 *   await job.done;
 *   await guest.stop();
 *
 * The first serial port is the kernel's console, kept for error messages; the second carries commands (initramfs.ts). A
 * guest is stopped as by a power cut: nothing in it hears of it.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';

export interface GuestOptions {
  readonly image: string;
  readonly initramfs: string;
  readonly tap: string;
  /** With prefix length. */
  readonly address: string;
}

const BOOT_MS = 60_000;
const COMMAND_SECONDS = 20;
/** The guest ends a command by itself; if it does not, it hangs. */
const GRACE_MS = 5000;
const CONSOLE_CHARACTERS = 4000;

/** A command that runs in the guest. */
export class GuestJob {
  readonly command: string;
  /** All it printed; rejects if its exit code is not 0, or it ran out of time. */
  readonly done: Promise<string>;
  readonly #lines: string[] = [];
  readonly #waiting = new Set<() => void>();
  #result: { readonly code: number; readonly why: string } | null = null;
  #finish: () => void = () => {};

  constructor(command: string) {
    this.command = command;
    this.done = new Promise((resolve, reject) => {
      this.#finish = () => (this.#result?.code === 0 ? resolve(this.output) : reject(this.#error()));
    });
    // Whoever waits for a line hears of a failure there; nobody has to wait for both.
    this.done.catch(() => {});
  }

  get output(): string {
    return this.#lines.join('\n');
  }

  /** Resolves with the first line, printed or to come, that begins with `prefix`. */
  async line(prefix: string): Promise<string> {
    for (;;) {
      const found = this.#lines.find((line) => line.startsWith(prefix));
      if (found !== undefined) return found;
      if (this.#result !== null) throw this.#error();
      await new Promise<void>((resolve) => this.#waiting.add(resolve));
    }
  }

  /** For the guest. */
  printed(line: string): void {
    this.#lines.push(line);
    this.#wake();
  }

  /** For the guest. */
  ended(code: number, why: string): void {
    if (this.#result !== null) return;
    this.#result = { code, why };
    this.#finish();
    this.#wake();
  }

  #wake(): void {
    for (const resolve of this.#waiting) resolve();
    this.#waiting.clear();
  }

  #error(): Error {
    return new Error(`guest: ${this.command}: ${this.#result?.why}\n${this.output}`);
  }
}

export class Guest {
  readonly #qemu: ChildProcess;
  readonly #jobs = new Map<number, { job: GuestJob; timer: NodeJS.Timeout }>();
  #console = '';
  #nextId = 1;

  static async boot(options: GuestOptions): Promise<Guest> {
    const guest = new Guest(options);
    try {
      await guest.#expect(0, new GuestJob('boot'), BOOT_MS).done;
      return guest;
    } catch (error) {
      await guest.stop();
      throw error;
    }
  }

  private constructor(options: GuestOptions) {
    const append = ['console=ttyS0', 'panic=-1', 'mitigations=off', 'loglevel=4'];
    append.push(`zerotx.address=${options.address}`);
    const device = 'virtio-net-pci,netdev=n0,romfile=,mac=52:54:00:77:00:02';
    const args = ['-accel', 'tcg', '-cpu', 'max', '-m', '512', '-nodefaults', '-no-reboot'];
    args.push('-display', 'none', '-monitor', 'none');
    // What spawn() calls a pipe is a connected socket.
    args.push('-chardev', 'socket,id=console,fd=3', '-serial', 'chardev:console', '-serial', 'stdio');
    args.push('-netdev', `tap,id=n0,ifname=${options.tap},script=no,downscript=no`, '-device', device);
    args.push('-kernel', options.image, '-initrd', options.initramfs, '-append', append.join(' '));
    this.#qemu = spawn('qemu-system-x86_64', args, { stdio: ['pipe', 'pipe', 'pipe', 'pipe'] });
    const [, stdout, stderr, serial] = this.#qemu.stdio as (Readable | null)[];
    for (const stream of [stderr, serial]) {
      stream?.setEncoding('utf8').on('data', (text: string) => {
        this.#console = (this.#console + text).slice(-CONSOLE_CHARACTERS);
      });
    }
    if (stdout) createInterface(stdout).on('line', (line) => this.#line(line));
    this.#qemu.stdin?.on('error', () => {});
    this.#qemu.on('error', (error) => this.#gone(error.message));
    this.#qemu.on('close', (code, signal) => this.#gone(`QEMU ended (${signal ?? code})`));
  }

  get running(): boolean {
    return this.#qemu.pid !== undefined && this.#qemu.exitCode === null && this.#qemu.signalCode === null;
  }

  /** Starts a shell command, which the guest ends after `seconds`. */
  start(command: string, seconds: number = COMMAND_SECONDS): GuestJob {
    const id = this.#nextId++;
    const job = this.#expect(id, new GuestJob(command), seconds * 1000 + GRACE_MS);
    if (this.running) this.#qemu.stdin?.write(`${id} ${seconds} ${command}\n`);
    else this.#gone('QEMU is not running');
    return job;
  }

  run(command: string, seconds: number = COMMAND_SECONDS): Promise<string> {
    return this.start(command, seconds).done;
  }

  async stop(): Promise<void> {
    if (!this.running) return;
    const closed = once(this.#qemu, 'close');
    this.#qemu.kill('SIGKILL');
    await closed;
  }

  #expect(id: number, job: GuestJob, limitMs: number): GuestJob {
    const timer = setTimeout(() => job.ended(-1, `not within ${limitMs} ms\n${this.#console}`), limitMs);
    this.#jobs.set(id, { job, timer });
    job.done.catch(() => {}).finally(() => clearTimeout(timer));
    return job;
  }

  #line(line: string): void {
    const [, id, text = ''] = /^(\d+) (.*)$/.exec(line) ?? [];
    const job = this.#jobs.get(Number(id))?.job;
    if (job === undefined) return;
    const code = /^exit (\d+)$/.exec(text)?.[1];
    if (code === undefined) job.printed(text);
    else {
      this.#jobs.delete(Number(id));
      job.ended(Number(code), `exit code ${code}`);
    }
  }

  #gone(why: string): void {
    for (const { job } of this.#jobs.values()) job.ended(-1, `${why}\n${this.#console}`);
    this.#jobs.clear();
  }
}
