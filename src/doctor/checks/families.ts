/** Whether lending works, per kind of socket: a real flagged send, and the kernel's word that it is done. */
import { ZerotxError } from '../../core/errors.ts';
import { type Family, tryFamily } from '../families.ts';
import { type Check, type Result, result } from '../finding.ts';
import { Absent } from '../loopback.ts';

const titles: Readonly<Record<Family, string>> = {
  tcp4: 'MSG_ZEROCOPY on TCP over IPv4',
  tcp6: 'MSG_ZEROCOPY on TCP over IPv6',
  udp4: 'MSG_ZEROCOPY on UDP over IPv4',
  udp6: 'MSG_ZEROCOPY on UDP over IPv6',
  unix: 'MSG_ZEROCOPY on local sockets',
  vsock: 'MSG_ZEROCOPY on vsock',
};

export const familyChecks: readonly Check[] = (Object.keys(titles) as Family[]).map((family) => ({
  id: `zerocopy.${family}`,
  title: titles[family],
  run: async ({ signal }) => {
    try {
      const { lends, copied, bytes } = await tryFamily(family, signal);
      const data = { lends, copied, bytes };
      if (!lends) return result('ok', 'takes the flag, copies and never confirms, as expected', { data });
      return result('ok', `lent ${bytes} bytes and had them back; ${fate(copied)}`, { data });
    } catch (error) {
      return explain(family, error);
    }
  },
}));

function fate(copied: boolean): string {
  return copied ? 'the kernel copied them (COPIED), as it does on loopback' : 'the kernel did not copy them';
}

/** Versions of Linux in which the flag came. */
const since: Readonly<Record<Family, string>> = {
  tcp4: '4.14',
  tcp6: '4.14',
  udp4: '5.0',
  udp6: '5.0',
  unix: 'any',
  vsock: '6.7',
};

/** What gives the family a loopback. */
const loopbackRemedies: Readonly<Record<Family, string>> = {
  tcp4: 'ip link set lo up',
  tcp6: 'ip link set lo up; sysctl -w net.ipv6.conf.lo.disable_ipv6=0',
  udp4: 'ip link set lo up',
  udp6: 'ip link set lo up; sysctl -w net.ipv6.conf.lo.disable_ipv6=0',
  unix: 'none is needed',
  vsock: 'modprobe vsock_loopback, if vsock is of interest',
};

function explain(family: Family, error: unknown): Result {
  if (error instanceof Absent) {
    return result('skip', error.message, { remedy: loopbackRemedies[family], data: { lends: false } });
  }
  if (!(error instanceof ZerotxError)) throw error;
  const data = { lends: false, code: error.code };
  switch (error.code) {
    case 'ENOBUFS':
      return result('fail', `${error.message}: a limit leaves no room for one send`, {
        remedy: 'raise what memlock or optmem warns of',
        data,
      });
    case 'ETIMEDOUT':
      return result('fail', 'lent memory was not given back in time', {
        remedy: 'report it with the kernel version: a lost confirmation is a bug',
        data,
      });
    // ENOTSUPP (524) is what kernels before 5.0 returned.
    case 'ENOPROTOOPT':
    case 'EOPNOTSUPP':
    case 'E524':
      return result('fail', `the kernel refuses: ${error.message}`, {
        remedy: `needs Linux ${since[family]} or later; sandboxes such as gVisor have none`,
        data,
      });
    default:
      return result('fail', error.message, { data });
  }
}
