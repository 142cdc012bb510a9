/**
 * The native surface, declared once: every function the addon exports, one per system call or batch.
 *
 * Rules: arguments are read, the call is made, and the value or `-errno` comes back; nothing throws for an operating
 * error (a wrong argument type throws TypeError, a bug of ours). No policy lives below this line. Importing this file
 * loads nothing; the first `native()` does.
 *
 * A descriptor is one that socket() or accept() of this environment returned and that is not closed; any other number
 * gives `-EBADF` without a system call, so that a stale one cannot hit a file of Node's or of another thread.
 *
 * `Bytes` is a Uint8Array or Buffer. A socket address is the bytes of `struct sockaddr_in` or `sockaddr_in6`
 * (see wire/sockaddr.ts).
 */
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { ZerotxError } from '../core/errors.ts';

export interface Native {
  // --- sockets: all descriptors are close-on-exec and non-blocking ---
  socket(domain: number, type: number, protocol: number): number;
  bind(fd: number, sockaddr: Uint8Array): number;
  /** Non-blocking: normally `-EINPROGRESS`. */
  connect(fd: number, sockaddr: Uint8Array): number;
  listen(fd: number, backlog: number): number;
  /** accept4(2); the peer's address is written to `sockaddrOut` (28 bytes or more). */
  accept(fd: number, sockaddrOut: Uint8Array): number;
  /** Return the length of the address written. */
  getsockname(fd: number, sockaddrOut: Uint8Array): number;
  getpeername(fd: number, sockaddrOut: Uint8Array): number;
  setsockoptInt(fd: number, level: number, name: number, value: number): number;
  /** The option's value (never negative for the options we read) or `-errno`. */
  getsockoptInt(fd: number, level: number, name: number): number;
  /** Raw forms, for structures such as TCP_INFO or SO_LINGER; get returns the length written. */
  setsockopt(fd: number, level: number, name: number, value: Uint8Array): number;
  getsockopt(fd: number, level: number, name: number, out: Uint8Array): number;
  shutdown(fd: number, how: number): number;
  /** `connect(AF_UNSPEC)`: stops the wire at once (RST on TCP); the descriptor stays readable for its error queue. */
  abort(fd: number): number;
  close(fd: number): number;
  /** SIOCOUTQ: bytes written but not yet acknowledged by the peer's TCP. */
  outq(fd: number): number;
  /** SIOCINQ: bytes received and not yet read. */
  inq(fd: number): number;

  // --- data ---
  /**
   * sendmsg(2) with the first `count` (at most 64, else RangeError) entries of `buffers` as its iovec list; `flags` as
   * given (the addon adds MSG_DONTWAIT and MSG_NOSIGNAL). With MSG_ZEROCOPY, on a socket whose SO_ZEROCOPY is on, a
   * result > 0 is one step of the socket's notification counter, and outstanding until drainErrors() returns it.
   */
  sendv(fd: number, buffers: readonly Uint8Array[], count: number, flags: number): number;
  /** readv(2) into the first `count` (at most 64) entries; 0 is end of stream. */
  readv(fd: number, buffers: readonly Uint8Array[], count: number): number;
  /**
   * Reads the error queue until it is empty or `out` is full. Each record takes errqueueWords (6) words of `out`:
   * ee_errno, ee_origin, ee_type, ee_code, ee_info, ee_data (see wire/errqueue.ts). Returns the number of records; as
   * many as `out` has room for means that there may be more. `-EINVAL` when there is room for none.
   * The control buffer is 512 bytes and its length is reset for every record: a short one would lose the record.
   */
  drainErrors(fd: number, out: Uint32Array): number;
  /**
   * Zero-copy calls of this descriptor whose completion has not been drained yet. A call that failed (but for EAGAIN) may have
   * taken a number all the same, and counts until drainErrors() has found the queue empty; for good, if another call was
   * made before that.
   */
  outstanding(fd: number): number;

  // --- datagrams ---
  /**
   * sendmsg(2) as sendv(), to `sockaddr` unless it is null; with `segmentBytes` other than 0 the kernel cuts the bytes into
   * datagrams of that size, the last one shorter (UDP_SEGMENT, udp(7)). One call is one notification, however many
   * datagrams it makes. EMSGSIZE (EINVAL before Linux 6.14): a segment exceeds the MTU of the path, or there are too many.
   */
  sendGso(
    fd: number,
    buffers: readonly Uint8Array[],
    count: number,
    flags: number,
    segmentBytes: number,
    sockaddr: Uint8Array | null,
  ): number;
  /**
   * recvmmsg(2) into consecutive slots of `slotBytes` in `buffer`. Message i fills words 4i of `info`: its length; the
   * size of the datagrams it was put together from, 0 if it is a single one (with UDP_GRO set); 1 if it was cut to fit;
   * the length of the sender's address, which is in bytes 28i of `sockaddrs`. Returns the number of messages: at most what
   * all three have room for, and at most 64; `-EINVAL` when they have room for none.
   */
  recvBatch(
    fd: number,
    buffer: Uint8Array,
    slotBytes: number,
    flags: number,
    info: Uint32Array,
    sockaddrs: Uint8Array,
  ): number;

  // --- reactor: one private edge-triggered epoll set per environment, polled by one uv_poll ---
  /**
   * Creates the set. After each wait `callback(count)` runs with `count` pairs (token, events) in `out`, at most
   * out.length / 2 a turn. May be called once per environment (`-EBUSY` afterwards).
   */
  reactorStart(out: Uint32Array, callback: (count: number) => void): number;
  /** Adds `fd` with EPOLLET | `events`; `token` (u32) comes back with its events. */
  reactorAdd(fd: number, token: number, events: number): number;
  reactorRemove(fd: number): number;
  /** Whether the set keeps the event loop alive (it does not to begin with). */
  reactorRef(on: boolean): void;

  // --- memory ---
  /**
   * mmap(2)ed, page-aligned, zeroed memory as an external ArrayBuffer of whole pages; `huge` asks for MADV_HUGEPAGE, on
   * 2 MiB alignment and in whole 2 MiB. At most 1 GiB. Returns `-errno` on failure. The mapping goes when the
   * ArrayBuffer is collected, unless the environment ends with sends in flight: then it is left mapped (quarantine).
   */
  slabCreate(bytes: number, huge: boolean): ArrayBuffer | number;
  /**
   * Another ArrayBuffer over `bytes` from `offset` of a slab that slabCreate() returned. It keeps the mapping for as long as
   * its memory is in use anywhere. `-EINVAL` for other memory and outside of the slab.
   */
  slabWindow(slab: ArrayBuffer, offset: number, bytes: number): ArrayBuffer | number;
  /**
   * Detaches `buffer`, which is a window of `slab` or the slab itself: all its views have length 0 afterwards. 0, or
   * `-EINVAL` for other memory and what is detached already. Never for a buffer that the program may have marked as
   * untransferable: Node 24 and later abort the process (napi_detach_arraybuffer meets V8's detach key).
   */
  slabDetach(slab: ArrayBuffer, buffer: ArrayBuffer): number;
  /** Address modulo the page size, to assert alignment; and whether two views share memory is asked of JS, not here. */
  pageOffset(bytes: Uint8Array): number;

  // --- process ---
  /** RLIMIT_MEMLOCK's soft limit in bytes, or -1 when unlimited or the process has CAP_IPC_LOCK. */
  memlockLimit(): number;
  /**
   * The process-wide account of pinned pages, shared by all environments (an atomic counter): adds `pages` if the sum stays within
   * `limitPages` (negative: no limit) and returns 0, else `-ENOMEM`. What an environment still holds when it ends is given back.
   */
  budgetCharge(pages: number, limitPages: number): number;
  budgetUncharge(pages: number): void;
  /** Pages charged now, by all environments. */
  budgetUsed(): number;
  /** Slabs of ended environments that the kernel may still read: never unmapped. */
  quarantinedBytes(): number;
  pageSize(): number;

  // --- questions about the system; nothing stays behind ---
  /** 0 if this process may set up an io_uring, else `-errno`: EPERM (forbidden), ENOSYS (none, or hidden by a filter). */
  ioUringProbe(): number;
  /**
   * What the network device of this name (ASCII, at most 15 bytes) does for senders, by SIOCETHTOOL: bit 0 scatter-gather,
   * 1 transmit checksums, 2 TCP segmentation, 3 generic segmentation; or `-errno`.
   */
  ifFeatures(name: Uint8Array): number;
}

let loaded: Native | undefined;

/** Loads the addon on first use; throws `ZTX_NO_ADDON` with the way out when it is not there. */
export function native(): Native {
  loaded ??= load();
  return loaded;
}

/** The file that native() loads; throws what node-gyp-build throws when there is none. */
export function addonFile(): string {
  return process.env.ZEROTX_ADDON ?? createRequire(import.meta.url)('node-gyp-build').path(packageRoot());
}

/** npm builds nothing for a dependency without an install script, and `npm rebuild` does not either. */
export function addonBuildCommand(): string {
  const build = 'npm run build:native';
  return packageRoot().includes('/node_modules/') ? `npm explore zerotx -- ${build}` : build;
}

function load(): Native {
  const root = packageRoot();
  const require = createRequire(import.meta.url);
  // Another build of the addon, such as one with sanitizers.
  const override = process.env.ZEROTX_ADDON;
  try {
    return (override ? require(override) : require('node-gyp-build')(root)) as Native;
  } catch (cause) {
    throw new ZerotxError(
      'ZTX_NO_ADDON',
      `the native addon for ${process.platform}-${process.arch} is missing in ${root}; ` +
        `build it with "${addonBuildCommand()}" (needs a C and C++ compiler, make and Python)`,
      { cause },
    );
  }
}

/** The folder with our package.json: two or three levels up, by where the compiler put this file. */
function packageRoot(): string {
  let folder = dirname(fileURLToPath(import.meta.url));
  while (!existsSync(join(folder, 'package.json'))) {
    const parent = dirname(folder);
    if (parent === folder) break;
    folder = parent;
  }
  return folder;
}
