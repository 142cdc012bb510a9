/**
 * Calls every native function with arguments of any kind, in sequences, in a process of its own: the process must
 * survive. Descriptors are only ever our own (the addon refuses others); families and addresses are such that nothing
 * leaves this machine, and nothing stays behind on it.
 */
import { mkdtempSync, openSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { FrameTable, frameTableBytes } from '../../../src/core/frames.ts';
import { native } from '../../../src/sys/binding.ts';
import { encodeSockaddr } from '../../../src/wire/sockaddr.ts';

type Functions = Record<string, (...args: unknown[]) => unknown>;
const sys = native() as unknown as Functions;
const names = Object.keys(sys);

/** What calls returned: descriptors among it, so that later calls meet open ones. */
const descriptors: number[] = [];
/** Numbers of spaces, live and destroyed. */
const spaces: number[] = [];
const loopback = [encodeSockaddr('127.0.0.1', 0), encodeSockaddr('::1', 0), encodeSockaddr('127.0.0.1', 9)];

const bytes = fc.oneof(
  fc.uint8Array({ maxLength: 40 }).map((array) => {
    // No address of an internet family but ours, and none of AF_UNIX, which would leave sockets in the file system.
    if (array[0] === 1 || array[0] === 2 || array[0] === 10) array[0] = 99;
    return array;
  }),
  fc.constantFrom(...loopback),
  fc.nat(100_000).map((size) => Buffer.alloc(size)),
);
const detached = (() => {
  const array = new Uint8Array(100);
  structuredClone(array.buffer, { transfer: [array.buffer] });
  return array;
})();
const number = fc.oneof(
  fc.constantFrom(-1, 0, 1, 2, 3, 6, 41, 60, 64, 0x4000000, 2 ** 31, 2 ** 32, 2 ** 53, 0.5, -1e300),
  fc.constantFrom(Number.NaN, Number.POSITIVE_INFINITY, -0),
  fc.nat(100),
);
const oddities = fc.constantFrom<unknown>(
  ...[undefined, null, true, false, '', 'text', Symbol('s'), 10n, {}, [], () => {}, detached],
  ...[new ArrayBuffer(8), new SharedArrayBuffer(8), new DataView(new ArrayBuffer(8)), new Float64Array(4)],
  ...[new Proxy([], {}), new Uint8Array(new SharedArrayBuffer(64))],
);
const words = fc.oneof(fc.uint32Array({ maxLength: 24 }), fc.constant(new Uint32Array(0)));
const list = fc.array(fc.oneof({ weight: 8, arbitrary: bytes }, { weight: 1, arbitrary: oddities }), {
  maxLength: 70,
});
const goodList = fc.array(bytes, { maxLength: 64 });
/** A list that passes, and a count of it. */
const counted = goodList.chain((buffers) => fc.tuple(fc.constant(buffers), fc.nat(buffers.length)));
const trap = fc.constant(undefined).map(() => {
  const array: unknown[] = [new Uint8Array(50), new Uint8Array(50)];
  Object.defineProperty(array, 1, {
    get() {
      const first = array[0] as Uint8Array;
      if (first.byteLength > 0) structuredClone(first.buffer, { transfer: [first.buffer as ArrayBuffer] });
      return new Uint8Array(50);
    },
  });
  return array;
});
const descriptor = fc.nat(1000).map((n) => descriptors[n % Math.max(1, descriptors.length)] ?? n);
const argument = fc.oneof(
  { weight: 4, arbitrary: descriptor },
  { weight: 3, arbitrary: number },
  { weight: 3, arbitrary: bytes },
  { weight: 2, arbitrary: words },
  { weight: 2, arbitrary: list },
  { weight: 1, arbitrary: trap },
  { weight: 2, arbitrary: oddities },
);

const space = fc.nat(1000).map((n) => spaces[n % Math.max(1, spaces.length)] ?? n);
const address = fc.oneof(
  fc.nat(64).map((page) => page * 4096),
  fc.nat(1 << 20),
  number,
);
/** A frame table, filled at random where it is not its layout. */
const table = fc.uint32Array({ minLength: 0, maxLength: 128 }).map((list) => {
  const owner = { lend: () => null, gather: () => 0 };
  const options = { frames: 8, segments: 16, headBytes: 64 };
  const made = new FrameTable(new ArrayBuffer(frameTableBytes(options)), options, owner);
  made.records.set(list.subarray(0, made.records.length).map((word) => word % 32));
  made.segments.set(list.subarray(0, made.segments.length));
  return made.bytes;
});

/** Argument lists that get past the type checks, for the calls where only these reach the system call. */
const shapes: Record<string, fc.Arbitrary<unknown[]>> = {
  socket: fc.tuple(
    fc.constantFrom(1, 2, 10, -1, 99),
    fc.constantFrom(1, 2, 5, 99),
    fc.constantFrom(0, 6, 17, -1),
  ),
  bind: fc.tuple(descriptor, bytes),
  connect: fc.tuple(descriptor, bytes),
  accept: fc.tuple(descriptor, bytes),
  setsockoptInt: fc.tuple(descriptor, fc.constantFrom(0, 1, 6, 17, 41), fc.nat(110), number),
  getsockopt: fc.tuple(descriptor, fc.constantFrom(0, 1, 6, 17, 41), fc.nat(110), bytes),
  sendv: fc
    .tuple(descriptor, counted, number)
    .map(([fd, [buffers, count], flags]) => [fd, buffers, count, flags]),
  sendGso: fc
    .tuple(descriptor, counted, number, fc.oneof(number, fc.nat(70_000)), fc.oneof(bytes, fc.constant(null)))
    .map(([fd, [buffers, count], flags, segment, address]) => [fd, buffers, count, flags, segment, address]),
  readv: fc.tuple(descriptor, counted).map(([fd, [buffers, count]]) => [fd, buffers, count]),
  recvBatch: fc.tuple(descriptor, bytes, fc.oneof(number, fc.nat(100)), number, words, bytes),
  drainErrors: fc.tuple(descriptor, words),
  rdsSendmsg: fc
    .tuple(descriptor, counted, fc.oneof(bytes, fc.constant(null)), number, number)
    .map(([fd, [buffers, count], address, flags, cookie]) => [fd, buffers, count, address, flags, cookie]),
  rdsRecvmsg: fc
    .tuple(
      descriptor,
      counted,
      number,
      fc.boolean(),
      bytes,
      fc.oneof(words, fc.constant(new Uint32Array(40))),
    )
    .map(([fd, [buffers, count], flags, control, address, out]) => [
      ...[fd, buffers, count, flags, control, address, out],
    ]),
  rdsInfo: fc.tuple(descriptor, fc.oneof(number, fc.integer({ min: 10_000, max: 10_017 })), bytes, words),
  reactorAdd: fc.tuple(descriptor, number, number),
  setsockopt: fc.tuple(descriptor, fc.constantFrom(0, 1, 6, 17, 41), fc.nat(110), bytes),
  getsockname: fc.tuple(descriptor, bytes),
  getpeername: fc.tuple(descriptor, bytes),
  listen: fc.tuple(descriptor, number),
  shutdown: fc.tuple(descriptor, fc.nat(3)),
  slabCreate: fc.tuple(number, fc.boolean()),
  // Any other descriptor would be one of Node's own, which close() would then take away from it.
  adopt: fc.constant(undefined).map(() => [openSync('/dev/null', 'r+')]),
  memfdCreate: fc.tuple(bytes, fc.nat(1 << 20), fc.constantFrom(0, 2, 4, 7)),
  spaceDestroy: fc.tuple(space),
  spaceMap: fc.tuple(
    space,
    descriptor,
    address,
    address,
    address,
    fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
  ),
  spaceUnmap: fc.tuple(space, address, address),
  spaceFind: fc.tuple(space, fc.bigInt({ min: 0n, max: 2n ** 20n }), address),
  spaceView: fc.tuple(space, address, address),
  spacePoisoned: fc.tuple(space),
  spaceRead: fc.tuple(space, address, bytes),
  spaceWrite: fc.tuple(space, address, bytes),
  framesPeek: fc.tuple(table, fc.nat(9), fc.constantFrom(0, 10, 12), number),
  framesDeliver: fc.tuple(table, table, fc.nat(9)),
  framesGather: fc.tuple(table, fc.nat(9), bytes),
  framesChecksum: fc.tuple(table, words, fc.nat(9)),
  framesWrite: fc.tuple(descriptor, table, words, fc.nat(3), fc.nat(9), bytes, fc.nat(20)),
  framesSendmmsg: fc.tuple(descriptor, table, words, fc.nat(3), fc.nat(9), bytes, fc.nat(20)),
  framesStream: fc.tuple(descriptor, table, words, fc.nat(3), fc.nat(9), bytes, fc.nat(20), number, number),
  framesGso: fc.tuple(descriptor, table, words, fc.nat(3), fc.nat(9), bytes, fc.nat(20), number, number),
  framesRead: fc.tuple(descriptor, table, number, fc.constantFrom(0, 10, 12)),
  framesRecvmmsg: fc.tuple(descriptor, table, number, bytes, fc.nat(20), bytes),
};
const openers = ['socket', 'accept', 'adopt', 'memfdCreate', 'eventfdCreate'];
/** Not to be called with just any arguments: they could name what is not ours. */
const careful = ['socket', 'adopt'];
const call = fc.constantFrom(...names).chain((name) => {
  const any = fc.array(argument, { maxLength: 9 });
  const shaped = shapes[name];
  // Families are not left to chance: a raw or netlink socket of a privileged run could do harm.
  const args = careful.includes(name) ? (shaped ?? any) : shaped ? fc.oneof(any, shaped) : any;
  return args.map((list) => ({ name, args: list }));
});

const seed = process.env.FC_SEED === undefined ? Date.now() : Number(process.env.FC_SEED);
const runs = Number(process.argv[2] ?? '300');
process.stdout.write(`seed ${seed}\n`);
// bind() of a local socket makes a file, here of a random name.
const folder = mkdtempSync(join(tmpdir(), 'zerotx-fuzz-'));
process.chdir(folder);
process.on('exit', () => rmSync(folder, { recursive: true, force: true }));
sys.reactorStart?.(new Uint32Array(20), () => {});

/** A connected pair of TCP sockets and one of UDP, so that the data path has somewhere to go. */
function openPairs(): void {
  const [a, b, listening, c] = [2, 2, 1, 1].map((type) => native().socket(2, type, 0)) as [
    number,
    number,
    number,
    number,
  ];
  const name = new Uint8Array(28);
  for (const fd of [a, b, listening]) native().bind(fd, encodeSockaddr('127.0.0.1', 0));
  for (const [from, to] of [
    [a, b],
    [b, a],
  ] as const) {
    native().connect(from, name.subarray(0, native().getsockname(to, name)));
  }
  native().setsockoptInt(c, 1, 60, 1);
  native().listen(listening, 1);
  native().connect(c, name.subarray(0, native().getsockname(listening, name)));
  descriptors.push(...[a, b, listening, c, native().accept(listening, name)].filter((fd) => fd >= 0));
}

await fc.assert(
  fc.asyncProperty(fc.array(call, { minLength: 20, maxLength: 80, size: 'max' }), async (calls) => {
    openPairs();
    for (const { name, args } of calls) {
      try {
        const result = sys[name]?.(...args);
        if (typeof result !== 'number' || result < 0) continue;
        if (openers.includes(name)) descriptors.push(result);
        if (name === 'spaceCreate') spaces.push(result);
      } catch (error) {
        if (!(error instanceof TypeError || error instanceof RangeError)) throw error;
      }
    }
    await new Promise((resolve) => setImmediate(resolve));
    while (descriptors.length > 10) sys.close?.(descriptors.shift());
    while (spaces.length > 10) sys.spaceDestroy?.(spaces.shift());
  }),
  { numRuns: runs, seed, endOnFailure: true },
);
sys.reactorRef?.(false);
process.stdout.write('survived\n');
