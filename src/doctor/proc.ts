/**
 * Files of /proc and /sys as values: pure, because their text can be given by a test. Formats are those of the kernel's
 * Documentation/filesystems/proc.rst and of the functions named at each.
 */

/** CAP_... by name, as far as checks ask (linux/capability.h). */
const capabilities = {
  CAP_NET_ADMIN: 12,
  CAP_NET_RAW: 13,
  CAP_IPC_LOCK: 14,
  CAP_SYS_ADMIN: 21,
} as const;

export type Capability = keyof typeof capabilities;

/** Whether /proc/self/status lists the capability as effective. */
export function hasCapability(status: string, name: Capability): boolean {
  const digits = /^CapEff:\s*([0-9a-f]+)$/m.exec(status)?.[1];
  return digits !== undefined && ((BigInt(`0x${digits}`) >> BigInt(capabilities[name])) & 1n) === 1n;
}

/** An open packet socket (packet_seq_show). */
export interface PacketSocket {
  /** SOCK_RAW 3, SOCK_DGRAM 2, SOCK_PACKET 10. */
  readonly type: number;
  /** ETH_P_...; ETH_P_ALL is 3. */
  readonly protocol: number;
  /** Index of the device, 0 for all. */
  readonly device: number;
  readonly running: boolean;
  readonly user: number;
  readonly inode: number;
}

const ETH_P_ALL = 3;

/** /proc/net/packet. Columns: sk RefCnt Type Proto Iface R Rmem User Inode. */
export function packetSockets(text: string): PacketSocket[] {
  return rows(text).flatMap((row) => {
    const [, , type, protocol, device, running, , user, inode] = row;
    if (inode === undefined) return [];
    return {
      type: Number(type),
      protocol: Number.parseInt(protocol!, 16),
      device: Number(device),
      running: running === '1',
      user: Number(user),
      inode: Number(inode),
    };
  });
}

/**
 * Whether it sees what this host sends on `device`: dev_queue_xmit_nit() hands outgoing packets to sockets for all
 * protocols only, and skb_orphan_frags() copies their lent pages for it.
 */
export function tapsSends(socket: PacketSocket, device: number): boolean {
  return socket.running && socket.protocol === ETH_P_ALL && (socket.device === 0 || socket.device === device);
}

export interface Listener {
  /** As in the file: hexadecimal, in the byte order of the machine. */
  readonly address: string;
  readonly user: number;
  readonly inode: number;
}

const TCP_LISTEN = 0x0a;

/** /proc/net/tcp or tcp6: who listens on `port` (get_tcp4_sock). */
export function listenersOn(text: string, port: number): Listener[] {
  return rows(text).flatMap((row) => {
    const [address = '', portText = ''] = (row[1] ?? '').split(':');
    if (Number.parseInt(portText, 16) !== port || Number.parseInt(row[3] ?? '', 16) !== TCP_LISTEN) return [];
    return { address, user: Number(row[7]), inode: Number(row[9]) };
  });
}

/** /proc/net/protocols: the families and protocols that are there now, loaded or built in (proto_seq_printf). */
export function protocols(text: string): string[] {
  return rows(text).map(([name = '']) => name);
}

/** /proc/misc or /proc/devices: whether a line is a number and `name`. */
export function hasDevice(text: string, name: string): boolean {
  return text.split('\n').some((line) => new RegExp(`^\\s*\\d+ ${name}$`).test(line));
}

/** The word in brackets of a choice, as in /sys/kernel/mm/transparent_hugepage/enabled. */
export function chosen(text: string): string | undefined {
  return /\[(\w+)\]/.exec(text)?.[1];
}

/** A line `name:  n kB` of smaps_rollup or meminfo, in bytes. */
export function kilobytes(text: string, name: string): number | undefined {
  const digits = new RegExp(`^${name}:\\s*(\\d+) kB$`, 'm').exec(text)?.[1];
  return digits === undefined ? undefined : Number(digits) * 1024;
}

/** `socket:[n]`, the target of a descriptor's link; undefined for anything else. */
export function socketInode(link: string): number | undefined {
  const digits = /^socket:\[(\d+)\]$/.exec(link)?.[1];
  return digits === undefined ? undefined : Number(digits);
}

/** Fields of all lines but the heading. */
function rows(text: string): string[][] {
  return text
    .split('\n')
    .slice(1)
    .map((line) => line.trim().split(/\s+/))
    .filter(([first]) => first !== '');
}
