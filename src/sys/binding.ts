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

  // --- sockets of the kernel's own RDS (rds.ts has the numbers and the layout of what is told) ---
  /**
   * sendmsg(2) of one message to `sockaddr` (null: the connected peer), non-blocking, with a RDS_CMSG_ZCOPY_COOKIE unless `cookie` is
   * -1; `flags` are 0 or MSG_ZEROCOPY, the kernel takes no others. `-EINVAL` for a cookie that is no u32. One
   * that was sent with both counts in outstanding() until its cookie was received.
   */
  rdsSendmsg(
    fd: number,
    buffers: readonly Uint8Array[],
    count: number,
    sockaddr: Uint8Array | null,
    flags: number,
    cookie: number,
  ): number;
  /**
   * recvmsg(2), non-blocking, of the next message into the first `count` entries of `buffers`; returns bytes, the full length with
   * MSG_TRUNC in `flags`. `control` false asks for no control messages, which then stay. The source goes to `sockaddrOut`
   * (28 bytes or more), all else to `out` (RDS_RECEIVED_WORDS or more); `-EINVAL` when they are too short.
   */
  rdsRecvmsg(
    fd: number,
    buffers: readonly Uint8Array[],
    count: number,
    flags: number,
    control: boolean,
    sockaddrOut: Uint8Array,
    out: Uint32Array,
  ): number;
  /**
   * getsockopt(2) of one of RDS_INFO_...: returns the bytes of a record. `needed[0]` is set to those of all records, also with
   * `-ENOSPC`, when `out` is too short for them.
   */
  rdsInfo(fd: number, name: number, out: Uint8Array, needed: Uint32Array): number;

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

  // --- guest memory: spaces, which are of the environment that made them ---
  /**
   * A space without regions: a small positive number, never given again as long as it matters, or `-errno`. `-EBADF` wherever a
   * number is none, or none any more.
   */
  spaceCreate(): number;
  /** Unmaps all of it; views are detached first. */
  spaceDestroy(space: number): number;
  /** Another space with the same regions, at the same memory: what is unmapped in one of them is still there in the other. Its number, or `-errno`. */
  spaceCopy(space: number): number;
  /**
   * Maps `bytes` of the file `fd` from `fdOffset`, shared, as guest addresses from `guestAddress`; `userAddress` is what the
   * front-end calls the start. The descriptor may be closed afterwards. `-EINVAL`: nothing, a range that wraps, is beyond
   * 2^52 or overlaps a region (in either kind of address), a guest address that is no multiple of 16, an offset that is
   * no multiple of the file's page size. `-EACCES`: no regular file on tmpfs or hugetlbfs, or not open for both
   * reading and writing. `-EFBIG`: the file is shorter. `-ENOSPC`: there are 512 regions.
   */
  spaceMap(
    space: number,
    fd: number,
    guestAddress: number,
    bytes: number,
    fdOffset: number,
    userAddress: bigint,
  ): number;
  /** Unmaps exactly one region, after detaching its views; `-EINVAL` when there is none with these ends. */
  spaceUnmap(space: number, guestAddress: number, bytes: number): number;
  /** The guest address of `bytes` at a front-end's address, within one region; else `-EFAULT`. */
  spaceFind(space: number, userAddress: bigint, bytes: number): number;
  /**
   * An ArrayBuffer over a range within one region, at most 1 GiB; else `-EFAULT`, `-EFBIG`. Not to be marked as untransferable: it could
   * not be detached then.
   */
  spaceView(space: number, guestAddress: number, bytes: number): ArrayBuffer | number;
  /** Detaches what spaceView() gave; `-EINVAL` for other memory and what is detached already. */
  spaceViewDetach(space: number, view: ArrayBuffer): number;
  /** 1 when a file turned out to be shorter than it was, and zeros were put in place of its mapping; else 0. */
  spacePoisoned(space: number): number;
  /** Copies, across adjacent regions too: the whole range, or `-EFAULT`. */
  spaceRead(space: number, guestAddress: number, out: Uint8Array): number;
  spaceWrite(space: number, guestAddress: number, bytes: Uint8Array): number;

  // --- frames: `table` is FrameTable.bytes (core/frames.ts), `which` has indexes of its frames ---
  // `-EINVAL`: the table's layout, an index or a count does not fit the memory given. What is wrong with one frame is
  // its FRAME_STATUS: EINVAL (its record names what the table has not got), EFAULT (a segment is not in its space), ...
  /**
   * Frames [0, count) have segments (TAIL_START, TAIL_COUNT) that hold all of a chain, its virtio_net_hdr of `headerBytes` (0, 10 or 12)
   * first. Copies the header to VNET_*, and the first `headMax` bytes, or as many as there is room for, to the head
   * slot; what is left is the tail (its first segment is trimmed). Sets HEAD_*, TAIL_*, FRAME_BYTES, VNET_* and FRAME_STATUS: 0;
   * EMSGSIZE for a frame shorter than 14 or longer than 65,566 bytes; EFAULT. With a status other than 0 the frame has no
   * bytes. Returns the number of frames with status 0.
   */
  framesPeek(table: Uint8Array, count: number, headerBytes: number, headMax: number): number;
  /**
   * Copies to guest memory: record `j` in [0, count) of `target` has FRAME_SLOT, the index of a frame of `source`; a header to
   * write before it (HEAD_AT, HEAD_BYTES, in the memory of `target`); segments to write to (TAIL_START, TAIL_COUNT). Its
   * FRAME_STATUS: 0, EFAULT (some of it may have been written), or EMSGSIZE: the segments are too small, nothing was written.
   * Returns the number of those with 0.
   */
  framesDeliver(source: Uint8Array, target: Uint8Array, count: number): number;
  /** Copies head and tail to `out`: the bytes, `-EFAULT`, or `-EMSGSIZE` when `out` is too short. */
  framesGather(table: Uint8Array, frame: number, out: Uint8Array): number;
  /** The sum of all bytes of these frames, modulo 2^32; a frame with a FRAME_STATUS afterwards is not, or only in part, in it. */
  framesChecksum(table: Uint8Array, which: Uint32Array, count: number): number;
  /**
   * writev(2) for each of the frames which[from..count), to a tap: bytes [i * prefixBytes, (i + 1) * prefixBytes) of
   * `prefixes`, i being the position in `which`, then the frame. Returns the position where it stopped: at EAGAIN or ENOBUFS,
   * or `count`. Those before have a FRAME_STATUS: 0 or an errno.
   */
  framesWrite(
    fd: number,
    table: Uint8Array,
    which: Uint32Array,
    from: number,
    count: number,
    prefixes: Uint8Array,
    prefixBytes: number,
  ): number;
  /** The same with sendmmsg(2), to a connected datagram socket, a datagram each. */
  framesSendmmsg(
    fd: number,
    table: Uint8Array,
    which: Uint32Array,
    from: number,
    count: number,
    prefixes: Uint8Array,
    prefixBytes: number,
  ): number;
  /**
   * One sendmsg(2) of these frames, each with its prefix, to a connected datagram socket, which the kernel cuts into datagrams of
   * `segmentBytes` (UDP_SEGMENT): that is the length of each of them, prefix included, but for the last, which may be shorter. Bytes
   * taken: all; or `-errno`. EIO: the device, or a socket option (SO_NO_CHECK), does not let it. EINVAL, EMSGSIZE: too many, too long. EFAULT:
   * a frame cannot be read, and has its FRAME_STATUS. `flags` as in framesStream().
   */
  framesGso(
    fd: number,
    table: Uint8Array,
    which: Uint32Array,
    from: number,
    count: number,
    prefixes: Uint8Array,
    prefixBytes: number,
    segmentBytes: number,
    flags: number,
  ): number;
  /**
   * One sendmsg(2) of the bytes of these frames, each with its prefix, without the first `skipBytes`, to a stream; at most 1 MiB in 1024
   * pieces. Returns the bytes taken, or `-errno`. A frame that cannot be read is not begun: its FRAME_STATUS is set, and
   * when it is the first, that is the result. `flags` as in sendv(), MSG_ZEROCOPY too: heads and prefixes must then
   * stay as they are until the kernel is done.
   */
  framesStream(
    fd: number,
    table: Uint8Array,
    which: Uint32Array,
    from: number,
    count: number,
    prefixes: Uint8Array,
    prefixBytes: number,
    skipBytes: number,
    flags: number,
  ): number;
  /**
   * readv(2) until EAGAIN, at most `max` times, frame `i` to head slot `i` from 0 on: a virtio_net_hdr of `headerBytes`
   * (0, 10 or 12) to VNET_*, then the frame. All words of the records are written; FRAME_STATUS is EMSGSIZE for less than
   * 14 bytes, and for what fills its slot, because it may have been cut. Returns the number of frames, or `-errno` if none came.
   */
  framesRead(fd: number, table: Uint8Array, max: number, headerBytes: number): number;
  /**
   * recvmmsg(2) of at most `max` datagrams (and 64): the first `prefixBytes` of datagram `i` to `prefixOut` at i * prefixBytes, the rest to head
   * slot `i`, its source to `sockaddrs` at 28i (which may be empty instead). Records as framesRead() does; EMSGSIZE
   * for datagrams that were cut. Returns the number of frames, or `-errno`.
   */
  framesRecvmmsg(
    fd: number,
    table: Uint8Array,
    max: number,
    prefixOut: Uint8Array,
    prefixBytes: number,
    sockaddrs: Uint8Array,
  ): number;

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

  // --- descriptors from elsewhere, and such as are made to be handed on; all become ours ---
  /**
   * recvmsg(2): bytes into `buffer`, descriptors into `fds`: fds[0] is their number, fds[1] the first. Returns the bytes, 0 at the
   * end of the stream (a datagram or packet may be empty and carry descriptors all the same). When more came than
   * `fds` has room for, or than the process may open, all are closed and fds[0] is -1. Closing them here may wait (see
   * closeReceived()), so have room for all that a message can carry, 253. They are close-on-exec; their other flags are
   * shared with the sender and stay as they are. `-EINVAL` when `buffer` or `fds` is empty.
   */
  recvFds(fd: number, buffer: Uint8Array, fds: Int32Array): number;
  /**
   * sendmsg(2) of `bytes` with the first `count` (at most 253) of `fds`, all ours; returns the bytes taken. A stream takes
   * descriptors with its first byte: without any byte they are lost.
   */
  sendFds(fd: number, bytes: Uint8Array, fds: Int32Array, count: number): number;
  /** Both ends in `out`; 0. */
  socketpair(domain: number, type: number, out: Int32Array): number;
  /** A memory file of `bytes` zeroes, sealed with `seals` (F_SEAL_... bits, 0 for none); its name has at most 249 bytes. */
  memfdCreate(name: Uint8Array, bytes: number, seals: number): number;
  /** An eventfd of count 0. */
  eventfdCreate(): number;
  /**
   * Signals the eventfd `fd` without ever waiting, whatever the other holder did to its counter and flags; 0. A Unix socket
   * or a pipe gets eight bytes instead; one that is full has been signalled (0), one without a reader gives an error
   * (EPIPE, ECONNREFUSED, no SIGPIPE). A pipe can be made to wait after all, by another holder who writes to it from memory
   * that does not come (FUSE). Anything else is `-EINVAL`, for good. Else as signalsReady().
   */
  eventfdSignal(fd: number): number;
  /**
   * Prepares eventfdSignal(), which does it itself at the first call: 0, or `-EAGAIN` when the host's limit fs.aio-max-nr is
   * used up, `-ENOSYS` when the kernel has no asynchronous I/O, `-EPERM` or so when a filter forbids it, or what open(2) says of
   * /dev/null. There is no other way to signal an eventfd that cannot wait.
   */
  signalsReady(): number;
  /** 1 for an eventfd, 0 for anything else; else as signalsReady(). */
  isEventfd(fd: number): number;
  /** The S_IFMT bits of what `fd` is open on; 0 for what has no such kind, like an eventfd. */
  fdStat(fd: number): number;
  /**
   * Has `fd` closed by another thread: 0. For what a peer has, too, and can make us wait for. It is closed when this returns, unless it
   * is a large file in memory, or somebody has made this process wait 250 ms for a close before; it is no longer ours in any case.
   */
  closeReceived(fd: number): number;
  /**
   * Makes a descriptor that Node opened (fs.openSync) ours, close-on-exec and non-blocking, and returns it. Only close() here
   * may close it then.
   */
  adopt(fd: number): number;
  /**
   * Opens /dev/net/tun and attaches it to the tap `name` (ASCII, at most 15 bytes; empty, or with %d in it: the kernel
   * chooses) with `flags` (IFF_...); the name goes to `nameOut` (16 bytes or more), ended by a zero byte.
   */
  tapOpen(name: Uint8Array, flags: number, nameOut: Uint8Array): number;
  /** TUNSETOFFLOAD (TUN_F_... bits), TUNSETVNETHDRSZ, TUNSETQUEUE: of a tap, or of a macvtap that was adopted. */
  tapSetOffload(fd: number, flags: number): number;
  tapSetVnetHeader(fd: number, bytes: number): number;
  tapSetQueue(fd: number, on: boolean): number;

  // --- privileges: of the calling thread, and of those it starts later ---
  /** PR_SET_NO_NEW_PRIVS. */
  noNewPrivs(): number;
  /** Empties the permitted, effective, inheritable and (so) ambient set; the bounding set stays. */
  dropCapabilities(): number;

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
