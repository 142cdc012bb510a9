/**
 * Two network namespaces joined by a veth: one for the sender, one for the wire peer or for nobody.
 *
 * Names carry the pid of their maker and a number, so that several can exist at once; `remove` is synchronous, so that
 * it can run in an 'exit' handler. A maker that was killed leaves its namespaces behind: the next one removes those
 * whose pid is gone.
 *
 * Neighbours are permanent entries, because the peer hears nothing once it has been armed, ARP included. TCP timestamps
 * are off, so that an ACK can be made without knowing the sender's clock. Congestion control is `reno`: it paces
 * nothing. Pacing (`bbr`) would leave the sending to timers on any CPU and the sender waiting, and both would be in the
 * CPU time that is to be measured.
 */
import { execFileSync } from 'node:child_process';

export interface NetnsPair {
  senderNetns: string;
  peerNetns: string;
  senderAddress: string;
  peerAddress: string;
  senderMac: string;
  peerMac: string;
  peerIfname: string;
  /** Command that starts a program in the sender's namespace. */
  senderPrefix: readonly string[];
  remove(): void;
}

const PREFIX = 'ztx-wire';
/** RFC 2544's block for benchmarks; the sender has the smaller address, so that it is the one that dials. */
const senderAddress = '198.18.0.1';
const peerAddress = '198.18.0.2';
const senderMac = '02:00:00:00:00:01';
const peerMac = '02:00:00:00:00:02';
const senderIfname = 'wire0';
const peerIfname = 'wire1';

let made = 0;

/** Needs CAP_NET_ADMIN and CAP_SYS_ADMIN. On failure nothing is left behind. */
export function makeNetnsPair(): NetnsPair {
  removeStale();
  const name = `${PREFIX}-${process.pid}-${made++}`;
  const senderNetns = `${name}-s`;
  const peerNetns = `${name}-p`;
  let removed = false;
  const remove = (): void => {
    if (removed) return;
    removed = true;
    process.off('exit', remove);
    for (const netns of [senderNetns, peerNetns]) tryIp(['netns', 'del', netns]);
  };
  process.once('exit', remove);
  try {
    ip(['netns', 'add', senderNetns]);
    ip(['netns', 'add', peerNetns]);
    ip([
      ...['link', 'add', senderIfname, 'netns', senderNetns, 'address', senderMac, 'type', 'veth'],
      ...['peer', 'name', peerIfname, 'netns', peerNetns, 'address', peerMac],
    ]);
    configure(senderNetns, senderIfname, senderAddress, peerAddress, peerMac);
    configure(peerNetns, peerIfname, peerAddress, senderAddress, senderMac);
  } catch (error) {
    remove();
    throw error;
  }
  return {
    ...{ senderNetns, peerNetns, senderAddress, peerAddress, senderMac, peerMac, peerIfname },
    senderPrefix: ['ip', 'netns', 'exec', senderNetns],
    remove,
  };
}

/**
 * Drops every IPv4 packet on the peer's ingress, before the moment where a lent page would be copied. The filter is
 * classic BPF ("return TC_ACT_SHOT"), which needs no compiler, and no action module that a kernel may lack.
 */
export function dropOnPeer({ peerNetns, peerIfname }: NetnsPair): void {
  tc(['-n', peerNetns, 'qdisc', 'add', 'dev', peerIfname, 'clsact']);
  tc([
    ...['-n', peerNetns, 'filter', 'add', 'dev', peerIfname, 'ingress', 'protocol', 'ip'],
    ...['bpf', 'da', 'bytecode', '1,6 0 0 2'],
  ]);
}

function configure(netns: string, ifname: string, own: string, other: string, otherMac: string): void {
  ip([
    'netns',
    'exec',
    netns,
    'sysctl',
    '-qw',
    'net.ipv4.tcp_timestamps=0',
    'net.ipv4.tcp_congestion_control=reno',
  ]);
  ip(['-n', netns, 'addr', 'add', `${own}/30`, 'dev', ifname]);
  ip(['-n', netns, 'link', 'set', 'lo', 'up']);
  ip(['-n', netns, 'link', 'set', ifname, 'up']);
  ip(['-n', netns, 'neigh', 'replace', other, 'lladdr', otherMac, 'dev', ifname, 'nud', 'permanent']);
}

function removeStale(): void {
  for (const line of ip(['netns', 'list']).split('\n')) {
    const match = /^(ztx-wire-(\d+)-\d+-[sp])\b/.exec(line);
    if (match !== null && !alive(Number(match[2]))) tryIp(['netns', 'del', match[1]!]);
  }
}

function alive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ESRCH';
  }
}

function ip(args: readonly string[]): string {
  return run('ip', args);
}

function tc(args: readonly string[]): string {
  return run('tc', args);
}

function run(command: 'ip' | 'tc', args: readonly string[]): string {
  return execFileSync(command, args, {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: 10_000,
  });
}

function tryIp(args: readonly string[]): void {
  try {
    ip(args);
  } catch {
    // Already gone, or never made.
  }
}
