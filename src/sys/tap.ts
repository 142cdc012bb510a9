/**
 * Tap and macvtap devices: opening them and their settings, with errors that say what to do.
 *
 * A tap is a network device whose other end is a descriptor: what the host sends to it is read, a frame a time, what is written
 * it receives. With a vnet header each frame is preceded by a virtio_net_hdr, and may then be a segment of up to 64 KiB, or
 * lack its checksum, if the offloads say so. A macvtap is the same on top of another device (macvlan), through a file
 * /dev/tapN that bears its interface's number.
 *
 * A descriptor is one queue; whoever opens a tap again with `multiQueue` gets another one.
 */
import { closeSync, constants, existsSync, fstatSync, openSync, readFileSync } from 'node:fs';
import { errnoError, errnoName, ZerotxError } from '../core/errors.ts';
import { VNET_HEADER_BYTES } from '../wire/virtio.ts';
import { native } from './binding.ts';
import { adopt } from './fds.ts';

// linux/if_tun.h
const IFF_TAP = 0x2;
const IFF_NO_PI = 0x1000;
const IFF_VNET_HDR = 0x4000;
const IFF_MULTI_QUEUE = 0x100;

const IFNAMSIZ = 16;
/** Every tap is opened by it. */
const DEVICE_FILE = '/dev/net/tun';
/** These come from open(2), and not from TUNSETIFF. */
const FILE_CODES: ReadonlySet<string> = new Set(['EACCES', 'ENOENT', 'ENODEV', 'ENXIO']);

const hints: Readonly<Record<string, string>> = {
  EPERM:
    'needs CAP_NET_ADMIN, or a tap that was made for this user (ip tuntap add dev NAME mode tap user USER)',
  EACCES: 'needs read and write permission for the device file',
  EBUSY: 'another program has it open, or all its queues are taken',
  EINVAL: 'no such kind of device has this name, or its queues (multi_queue) are not as asked for',
  ENOENT:
    'the device file is not there; in a container, make it: its numbers are in /sys/class/net/NAME/tapN/dev',
  ENODEV: 'the kernel has no such device (CONFIG_TUN, CONFIG_MACVTAP)',
  ENXIO: 'the kernel has no such device (CONFIG_TUN, CONFIG_MACVTAP)',
};

export interface TapOptions {
  /** An existing tap, or one that is made now and goes with its last descriptor; `%d` in it is a number that is free. */
  readonly name: string;
  /** Opens one queue of several. All must be opened so. */
  readonly multiQueue?: boolean;
  /**
   * Of what the host sends us: OFFLOAD_... of core/port.ts, which are the kernel's TUN_F_... bits. OFFLOAD_CSUM goes with any of the others.
   * Default: none.
   */
  readonly offloads?: number;
}

export interface Tap {
  readonly fd: number;
  readonly name: string;
}

/** Opens a tap with a vnet header of 12 bytes. The caller closes the descriptor. */
export function openTap(options: TapOptions): Tap {
  const { name } = options;
  const flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | (options.multiQueue === true ? IFF_MULTI_QUEUE : 0);
  const bytes = new TextEncoder().encode(name);
  if (name === '' || bytes.length >= IFNAMSIZ || bytes.includes(0)) {
    throw new ZerotxError('EINVAL', `${JSON.stringify(name)} is no name of a network device`);
  }
  const chosen = new Uint8Array(IFNAMSIZ);
  const fd = native().tapOpen(bytes, flags, chosen);
  if (fd < 0) throw notOpened(fd, name);
  prepare(fd, name, options.offloads ?? 0);
  return { fd, name: new TextDecoder().decode(chosen.subarray(0, chosen.indexOf(0))) };
}

/**
 * Opens a queue of a macvtap with a vnet header of 12 bytes, by the name of the interface or of its file /dev/tapN. Each
 * opening is another queue of those that the interface has. The caller closes the descriptor.
 */
export function openMacvtap(device: string, options: { readonly offloads?: number } = {}): Tap {
  const { path, number } = device.startsWith('/') ? { path: device } : macvtapFile(device);
  let opened: number;
  try {
    opened = openSync(path, constants.O_RDWR | constants.O_NONBLOCK);
  } catch (error) {
    throw failed((error as NodeJS.ErrnoException).errno ?? 0, 'open', path);
  }
  if (number !== undefined && fstatSync(opened).rdev !== number) {
    closeSync(opened);
    throw new ZerotxError(
      'ENODEV',
      `${path} belongs to an interface of another network namespace; make a device file for ${device} and give its path`,
    );
  }
  const fd = adopt(opened);
  prepare(fd, path, options.offloads ?? 0);
  return { fd, name: device };
}

function prepare(fd: number, name: string, offloads: number): void {
  let call = 'TUNSETVNETHDRSZ';
  let result = native().tapSetVnetHeader(fd, VNET_HEADER_BYTES);
  if (result === 0) {
    call = 'TUNSETOFFLOAD';
    result = native().tapSetOffload(fd, offloads);
  }
  if (result >= 0) return;
  native().close(fd);
  throw failed(result, call, name);
}

/**
 * The file bears the number of the interface (macvtap_newlink), which another network namespace may have given, too: so the
 * device that the interface says it has is looked at as well.
 */
function macvtapFile(name: string): { readonly path: string; readonly number?: number } {
  const folder = `/sys/class/net/${name}`;
  if (!/^[^/\s]{1,15}$/.test(name) || name === '.' || name === '..' || !existsSync(folder)) {
    throw new ZerotxError('ENODEV', `no network device ${JSON.stringify(name)}`);
  }
  const file = `tap${readFileSync(`${folder}/ifindex`, 'utf8').trim()}`;
  if (!existsSync(`${folder}/${file}`)) throw new ZerotxError('ENODEV', `${name} is not a macvtap`);
  const [major = 0, minor = 0] = readFileSync(`${folder}/${file}/dev`, 'utf8').split(':').map(Number);
  // makedev(3)
  return { path: `/dev/${file}`, number: (minor & 0xff) | (major << 8) | ((minor & 0xfff00) << 12) };
}

/** What opening DEVICE_FILE met, or asking for the tap. */
function notOpened(errno: number, name: string): ZerotxError {
  const code = errnoName(errno);
  if (FILE_CODES.has(code)) return errnoError(errno, 'open', { address: DEVICE_FILE, hint: fileHint(code) });
  const folder = `/sys/class/net/${name}`;
  if (code === 'EINVAL' && existsSync(folder) && !existsSync(`${folder}/tun_flags`))
    return errnoError(errno, 'TUNSETIFF', { address: name, hint: `${name} is not a tap` });
  return failed(errno, 'TUNSETIFF', name);
}

function fileHint(code: string): string {
  if (code === 'EACCES') return 'taps are opened by this file, which this user may not read and write';
  return 'there are no taps without it (CONFIG_TUN); in a container, mknod /dev/net/tun c 10 200';
}

function failed(errno: number, call: string, name: string): ZerotxError {
  const hint = hints[errnoName(errno)];
  return errnoError(errno, call, hint === undefined ? { address: name } : { address: name, hint });
}
