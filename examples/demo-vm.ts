/**
 * `npm run demo:vm`: frames from one guest to another, through vhost-user devices and switches, without a guest. No root, no
 * QEMU, under twenty seconds.
 *
 *   vm1 ══ socket ══╗                        ╔══ socket ══ vm3
 *                   zerotx switch ── TCP ── zerotx switch
 *   vm2 ══ socket ══╝   near      loopback      far
 *
 * vm1, vm2 and vm3 are driver sides in this process: they speak the protocol that QEMU speaks, with memory and rings as a
 * Linux guest has them. Both switches are `zerotx switch`, processes of their own. vm1 sends, first to vm2, then to vm3, and every
 * frame that arrives is compared with what was sent.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { VhostUserFrontend } from '../src/vhost/index.ts';

const measuredMs = 1000;
const runTimeoutMs = 10_000;
const tool = fileURLToPath(new URL('../../dist/cli/zerotx.js', import.meta.url));
const macs = { vm1: '52:54:00:00:00:01', vm2: '52:54:00:00:00:02', vm3: '52:54:00:00:00:03' } as const;
type Name = keyof typeof macs;

const headerBytes = 54;
const framesInSet = 64;

/** Bytes of a frame, how many are under way at most, and in how many pieces a Linux guest has them on average. */
const sizes = [
  { bytes: 64, window: 256, pieces: 1 },
  { bytes: 1500, window: 256, pieces: 1 },
  { bytes: 62_000, window: 16, pieces: 11 },
] as const;
type Size = (typeof sizes)[number];

interface Result {
  readonly way: string;
  readonly bytes: number;
  readonly framesPerSecond: number;
  readonly gbitPerSecond: number;
  /** Of the switches. */
  readonly cpuUs: number;
  /** Of the bytes: lent to the kernel, and copied, by the switch or by the kernel. */
  readonly lentPercent: number;
  readonly copiedPercent: number;
  readonly frames: number;
  readonly wrong: number;
}

async function main(folder: string): Promise<boolean> {
  const port = await freePort();
  writeFileSync(join(folder, 'far.yaml'), lab(['vm3'], `listen: 127.0.0.1:${port}`));
  for (const mode of ['off', 'force']) {
    const uplink = `connect: 127.0.0.1:${port}, zerocopy: ${mode}`;
    writeFileSync(join(folder, `near-${mode}.yaml`), lab(['vm1', 'vm2'], uplink));
  }
  console.log(`Two switches, three driver sides; ${measuredMs / 1000} s for each line.`);
  const far = await Lab.start(folder, 'far');
  const vm3 = await Guest.plug(folder, 'vm3');
  const results: Result[] = [];
  const copying = await Lab.start(folder, 'near-off');
  const [vm1, vm2] = [await Guest.plug(folder, 'vm1'), await Guest.plug(folder, 'vm2')];
  for (const size of sizes) results.push(await measure('guest to guest', size, vm1, vm2, [copying]));
  await joined(copying, far, vm3);
  for (const size of sizes) results.push(await measure('over TCP, copying', size, vm1, vm3, [copying, far]));
  await Promise.all([vm1.nic.close(), vm2.nic.close()]);
  await copying.stop();
  const lending = await Lab.start(folder, 'near-force');
  const again = await Guest.plug(folder, 'vm1');
  await joined(lending, far, vm3);
  // Small frames are cheaper to copy, wherever they go.
  results.push(await measure('over TCP, zerocopy: force', sizes[2], again, vm3, [lending, far]));
  await Promise.all([again.nic.close(), vm3.nic.close()]);
  await Promise.all([lending.stop(), far.stop()]);
  console.log(table(results));
  console.log(meaning);
  return results.every(({ wrong, frames }) => wrong === 0 && frames > 0);
}

/** A lab file: these guests, and a stream to the other switch. */
function lab(guests: readonly Name[], stream: string): string {
  return [
    'ports:',
    ...guests.map(
      (name) => `  ${name}: { vhost: { socket: ${name}.sock, mtu: 1500 }, macs: [${macs[name]}] }`,
    ),
    `  uplink: { stream: { ${stream}, vnet: true } }`,
    '',
  ].join('\n');
}

async function freePort(): Promise<number> {
  const server = createServer();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

/** The far switch knows where vm3 is from what it sends; and the near one. */
async function joined(near: Lab, far: Lab, vm3: Guest): Promise<void> {
  await Promise.all([near.linked, far.linked]);
  // To nobody: an address that no guest has, which the switches pass on to all.
  await vm3.nic.sendFrame(makeFrame(64, 0, macs.vm3, '52:54:00:00:00:ff'));
}

// --- switches ---

interface Counters {
  readonly cpuUserUs: number;
  readonly cpuSystemUs: number;
  readonly ports: Readonly<
    Record<string, { txBytes: number; txLentBytes: number; txKernelCopiedBytes: number }>
  >;
}

const children = new Set<ChildProcess>();

/** A `zerotx switch --json`. */
class Lab {
  readonly #child: ChildProcess;
  readonly #ended: Promise<unknown>;
  /** Told when its stream is connected; again when it was connected anew. */
  linked: Promise<void> = Promise.resolve();
  #link: () => void = () => {};
  #counters: (counters: Counters) => void = () => {};
  #errors = '';

  static async start(folder: string, name: string): Promise<Lab> {
    const made = new Lab(join(folder, `${name}.yaml`));
    await made.#begun();
    return made;
  }

  private constructor(file: string) {
    const child = spawn(process.execPath, [tool, 'switch', file, '--json'], {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    children.add(child);
    this.#child = child;
    this.#ended = once(child, 'close').then(() => children.delete(child));
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      this.#errors += text;
    });
    this.#unlink();
  }

  /** Counters as they are now. */
  counters(): Promise<Counters> {
    this.#child.kill('SIGUSR1');
    return new Promise((resolve) => {
      this.#counters = resolve;
    });
  }

  async stop(): Promise<void> {
    this.#child.kill('SIGTERM');
    await this.#ended;
  }

  /** Resolves when its sockets are there. */
  #begun(): Promise<void> {
    return new Promise((resolve, reject) => {
      createInterface({ input: this.#child.stdout as NodeJS.ReadableStream }).on('line', (line) => {
        const said = JSON.parse(line) as { event: string; port?: string; up?: boolean } & Counters;
        if (said.event === 'guest') resolve();
        if (said.event === 'counters') this.#counters(said);
        if (said.event !== 'link' || said.port !== 'uplink') return;
        if (said.up === true) this.#link();
        else this.#unlink();
      });
      void this.#ended.then(() => reject(new Error(`a switch ended: ${this.#errors}`)));
    });
  }

  #unlink(): void {
    this.linked = new Promise((resolve) => {
      this.#link = resolve;
    });
  }
}

// --- guests ---

/** A driver side: one that sends, or one that receives and compares. */
class Guest {
  readonly name: Name;
  readonly nic: VhostUserFrontend;

  static async plug(folder: string, name: Name): Promise<Guest> {
    const nic = await VhostUserFrontend.connect({
      path: join(folder, `${name}.sock`),
      mac: macs[name],
      queueSize: 1024,
      memoryBytes: 8 * 1024 * 1024,
    });
    return new Guest(name, nic);
  }

  private constructor(name: Name, nic: VhostUserFrontend) {
    this.name = name;
    this.nic = nic;
  }
}

/** An Ethernet frame with IPv4 and TCP in it, and bytes that no other frame of its set has. */
function makeFrame(bytes: number, index: number, from: string, to: string): Uint8Array {
  const frame = new Uint8Array(bytes);
  const view = new DataView(frame.buffer);
  const address = (mac: string): number[] => mac.split(':').map((byte) => Number.parseInt(byte, 16));
  frame.set([...address(to), ...address(from), 0x08, 0x00, 0x45]);
  view.setUint16(16, bytes - 14);
  frame.set([64, 6], 22);
  frame.set([192, 0, 2, 1, 192, 0, 2, 2], 26);
  frame[46] = 5 << 4;
  for (let i = headerBytes; i < bytes; i++) frame[i] = i * 31 + (i >> 8) * 7 + index * 17;
  return frame;
}

/** The header of a segment that somebody else is to cut: NEEDS_CSUM, TCPV4 (virtio 1.2, section 5.1.6). */
const uncut = { flags: 1, gsoType: 1, hdrLen: headerBytes, gsoSize: 1446, csumStart: 34, csumOffset: 16 };

/** Sends for a while, and compares what comes. */
async function measure(
  way: string,
  { bytes, window, pieces }: Size,
  from: Guest,
  to: Guest,
  switches: readonly Lab[],
): Promise<Result> {
  const expected = Array.from({ length: framesInSet }, (_, i) =>
    makeFrame(bytes, i, macs[from.name], macs[to.name]),
  );
  const set = from.nic.prepare({
    frameBytes: bytes,
    count: framesInSet,
    pieces,
    ...(bytes > 1514 ? { vnet: uncut } : {}),
    fill: (frame, i) => frame.set(expected[i] as Uint8Array),
  });
  const before = await Promise.all(switches.map((one) => one.counters()));
  const startMs = performance.now();
  const { frames, wrong } = await withinTime(
    pump(from, to, expected, (n) => from.nic.tx.sendBatch(set, n), window),
  );
  const seconds = (performance.now() - startMs) / 1000;
  const after = await Promise.all(switches.map((one) => one.counters()));
  const spent = (counters: readonly Counters[]): number =>
    counters.reduce((sum, { cpuUserUs, cpuSystemUs }) => sum + cpuUserUs + cpuSystemUs, 0);
  return {
    way,
    bytes,
    framesPerSecond: frames / seconds,
    gbitPerSecond: (frames * bytes * 8) / seconds / 1e9,
    cpuUs: (spent(after) - spent(before)) / frames,
    ...shares(switches.length > 1, before[0], after[0]),
    frames,
    wrong,
  };
}

/** Keeps `window` frames under way until the time is over, and waits for the last ones. */
function pump(
  from: Guest,
  to: Guest,
  expected: readonly Uint8Array[],
  send: (count: number) => number,
  window: number,
): Promise<{ frames: number; wrong: number }> {
  const bytes = (expected[0] as Uint8Array).length;
  const room = Buffer.alloc(65_536);
  const got = room.subarray(0, bytes);
  const endMs = performance.now() + measuredMs;
  let sent = 0;
  let frames = 0;
  let wrong = 0;
  return new Promise((resolve) => {
    const more = (): void => {
      from.nic.poll();
      if (performance.now() < endMs) sent += send(window - (sent - frames));
      else if (frames === sent) {
        to.nic.port.receiver = null;
        resolve({ frames, wrong });
      }
    };
    to.nic.port.receiver = (received) => {
      for (let i = 0; i < received.count; i++) {
        const isWhole = received.owner.gather(i, room) === bytes;
        if (!isWhole || got.compare(expected[frames % framesInSet] as Uint8Array) !== 0) wrong += 1;
        frames += 1;
      }
      more();
      return received.count;
    };
    more();
  });
}

function shares(
  lends: boolean,
  before: Counters | undefined,
  after: Counters | undefined,
): { lentPercent: number; copiedPercent: number } {
  const [was, is] = [before?.ports.uplink, after?.ports.uplink];
  const bytes = (is?.txBytes ?? 0) - (was?.txBytes ?? 0);
  if (!lends || bytes === 0) return { lentPercent: 0, copiedPercent: 100 };
  const lent = (is?.txLentBytes ?? 0) - (was?.txLentBytes ?? 0);
  const copied = (is?.txKernelCopiedBytes ?? 0) - (was?.txKernelCopiedBytes ?? 0);
  return { lentPercent: (100 * lent) / bytes, copiedPercent: (100 * (bytes - lent + copied)) / bytes };
}

async function withinTime<T>(work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () => reject(new Error(`frames got lost: no end after ${runTimeoutMs} ms`)),
      runTimeoutMs,
    );
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}

// --- what is shown ---

function table(results: readonly Result[]): string {
  const columns: readonly (readonly [title: string, value: (result: Result) => string])[] = [
    ['frame', ({ bytes }) => `${bytes} B`],
    ['frames/s', ({ framesPerSecond }) => framesPerSecond.toFixed(0)],
    ['Gbit/s', ({ gbitPerSecond }) => gbitPerSecond.toFixed(2)],
    ['CPU us/frame', ({ cpuUs }) => cpuUs.toFixed(2)],
    ['lent', ({ lentPercent }) => `${lentPercent.toFixed(0)} %`],
    ['copied', ({ copiedPercent }) => `${copiedPercent.toFixed(0)} %`],
    ['compared', ({ frames, wrong }) => (wrong === 0 ? `${frames}` : `${wrong} WRONG`)],
  ];
  const line = (first: string, cells: readonly string[]): string =>
    `  ${first.padEnd(28)}${cells.map((cell, i) => cell.padStart(i === 0 ? 9 : 13)).join('')}`;
  return [
    '',
    line(
      '',
      columns.map(([title]) => title),
    ),
    ...results.map((result) =>
      line(
        result.way,
        columns.map(([, value]) => value(result)),
      ),
    ),
  ].join('\n');
}

const meaning = `
CPU is that of the switches, one or two of them, for each frame; the driver sides, which send, receive and compare, are another process.
62000 B is a TCP segment that nobody has cut: the guest asks for it to be cut later, and it goes through whole.

Guest to guest is one copy, from the memory of one guest to that of the other: there is no way to lend there.

Over TCP, copying: the bytes are copied into the kernel, by the kernel to the other switch, and to the guest.
Over TCP, zerocopy: force: the guest's own memory is lent to the kernel, wherever it goes. But this is loopback, where the receiver is on
this host, and the kernel copies what was lent when it is delivered. The device sees that, and soon lends no more than a frame now
and then, to find out whether it is still so: what is lent stays small, and all of it is copied. Lending pays where a network card
reads the pages itself: frames of 16 KiB and more, to another machine. Nothing here shows that it does.

One run each, and two cores or more are shared with whatever else runs here: good for a look, not for a claim.

Next: zerotx switch --help, docs/vm-lab.md, examples/lab.yaml.`;

function endChildren(): void {
  for (const child of children) child.kill('SIGKILL');
}

process.on('exit', endChildren);
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => process.exit(130));
const folder = mkdtempSync(join(tmpdir(), 'zerotx-demo-'));
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
try {
  if (!(await main(folder))) {
    console.error('frames arrived that are not what was sent');
    process.exitCode = 1;
  }
} catch (error) {
  console.error((error as Error).message);
  process.exitCode = 1;
} finally {
  endChildren();
}
