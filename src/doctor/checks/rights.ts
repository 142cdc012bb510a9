/**
 * Rights that only some parts need: devices for guests and labs. Nothing is made: the kernel is asked whether it would
 * allow it, by calls that ask for the same capability and change nothing.
 */
import { execFile } from 'node:child_process';
import { closeSync, constants, openSync } from 'node:fs';
import { release } from 'node:os';
import { errnoName } from '../../core/errors.ts';
import { native } from '../../sys/binding.ts';
import * as calls from '../../sys/calls.ts';
import { AF_INET, AF_XDP, IPPROTO_TCP, SOCK_RAW, SOCK_STREAM, TCP_REPAIR } from '../../sys/constants.ts';
import { readNumber, readText } from '../files.ts';
import { type Check, type Result, result } from '../finding.ts';
import { withSockets } from '../loopback.ts';
import { hasCapability, hasDevice } from '../proc.ts';

const TUN = '/dev/net/tun';
const AS_ROOT = 'run as root, or in a namespace of its own: unshare -Urn';

/**
 * CAP_NET_ADMIN over the network namespace we are in, which a capability list does not tell of one made by somebody else:
 * TCP_REPAIR on a socket that goes nowhere asks just that (tcp_can_repair_sock), as TUNSETIFF does (tun_set_iff).
 */
function mayAdministerNetwork(): Promise<boolean> {
  return withSockets((keep) => {
    const fd = keep(calls.socket(AF_INET, SOCK_STREAM));
    return native().setsockoptInt(fd, IPPROTO_TCP, TCP_REPAIR, 1) === 0;
  });
}

async function tap(): Promise<Result> {
  // Opening the device loads its module, which would stay behind.
  if (!hasDevice(readText('/proc/misc') ?? '', 'tun')) {
    return result('warn', 'the tun module is not loaded', {
      remedy: 'modprobe tun',
      data: { allowed: false },
    });
  }
  const opened = openError(TUN);
  const admin = await mayAdministerNetwork();
  const data = { allowed: opened === undefined && admin, open: opened ?? null, netAdmin: admin };
  if (opened !== undefined) {
    const found = `${TUN}: ${opened}`;
    return result('warn', found, {
      remedy: opened === 'ENOENT' ? 'give the container the device: --device /dev/net/tun' : AS_ROOT,
      data,
    });
  }
  if (!admin) {
    const found = 'an existing device of this user can be opened; making one needs CAP_NET_ADMIN';
    return result('warn', found, {
      remedy: `ip tuntap add mode tap user $USER, as root; or ${AS_ROOT}`,
      data,
    });
  }
  return result('ok', 'TAP devices can be made and opened', { data });
}

function openError(path: string): string | undefined {
  try {
    closeSync(openSync(path, constants.O_RDWR));
    return undefined;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? 'EIO';
  }
}

async function macvtap(): Promise<Result> {
  const loaded = hasDevice(readText('/proc/devices') ?? '', 'macvtap');
  const modules = `/lib/modules/${release()}`;
  const loadable = ['modules.dep', 'modules.builtin'].some((name) =>
    /\/macvtap\.ko\b/.test(readText(`${modules}/${name}`) ?? ''),
  );
  const admin = await mayAdministerNetwork();
  const data = { allowed: (loaded || loadable) && admin, loaded, loadable, netAdmin: admin };
  if (!loaded && !loadable)
    return result('warn', 'no macvtap in this kernel', { remedy: 'modprobe macvtap', data });
  if (!admin) return result('warn', 'making one needs CAP_NET_ADMIN', { remedy: AS_ROOT, data });
  return result('ok', `macvtap devices can be made${loaded ? '' : ' (loads the module)'}`, { data });
}

function xdp(): Result {
  const fd = native().socket(AF_XDP, SOCK_RAW, 0);
  if (fd >= 0) {
    native().close(fd);
    return result('ok', 'AF_XDP sockets can be opened', { data: { allowed: true } });
  }
  const code = errnoName(fd);
  const remedy =
    code === 'EPERM' ? `needs CAP_NET_RAW: ${AS_ROOT}` : 'needs a kernel with CONFIG_XDP_SOCKETS';
  return result('warn', `socket(AF_XDP): ${code}`, { remedy, data: { allowed: false, code } });
}

/** A process of its own, as this one has threads and so may not change its user namespace. */
async function namespaces({ signal }: { signal: AbortSignal }): Promise<Result> {
  const capable = hasCapability(readText('/proc/self/status') ?? '', 'CAP_SYS_ADMIN');
  const error = await unshare(capable ? ['--net', 'true'] : ['--user', '--net', 'true'], signal);
  const most = readNumber('/proc/sys/user/max_user_namespaces');
  const data = { allowed: error === undefined, asRoot: capable, most: most ?? null };
  if (error === undefined) {
    return result('ok', `network namespaces can be made${capable ? '' : ', inside a user namespace'}`, {
      data,
    });
  }
  return result('warn', `unshare: ${error}`, {
    remedy:
      'sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; in docker a seccomp profile',
    data,
  });
}

function unshare(args: readonly string[], signal: AbortSignal): Promise<string | undefined> {
  return new Promise((resolve) => {
    execFile('unshare', args, { signal }, (error, _out, errors) => {
      if (error === null) resolve(undefined);
      else if (error.code === 'ENOENT') resolve('the program is not installed (util-linux)');
      else resolve(errors.trim().replace(/^unshare: /, '') || error.message);
    });
  });
}

export const rightChecks: readonly Check[] = [
  { id: 'rights.tap', title: 'TAP devices', run: tap },
  { id: 'rights.macvtap', title: 'macvtap devices', run: macvtap },
  { id: 'rights.xdp', title: 'AF_XDP sockets', run: xdp },
  { id: 'rights.namespaces', title: 'Network namespaces', withoutAddon: true, run: namespaces },
];
