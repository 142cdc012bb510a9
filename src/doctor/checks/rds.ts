/** What the RDS part meets here: the kernel's own RDS, and whoever has its port. */
import { errnoName, ZerotxError } from '../../core/errors.ts';
import { native } from '../../sys/binding.ts';
import * as calls from '../../sys/calls.ts';
import {
  AF_INET,
  AF_RDS,
  SO_REUSEADDR,
  SOCK_SEQPACKET,
  SOCK_STREAM,
  SOL_SOCKET,
} from '../../sys/constants.ts';
import { RDS_TCP_PORT } from '../../wire/rds.ts';
import { readText, socketOwners } from '../files.ts';
import { type Check, type Result, result } from '../finding.ts';
import { withSockets } from '../loopback.ts';
import { type Listener, listenersOn, protocols } from '../proc.ts';

function module(): Result {
  // Only if it is there already: socket() of a family that is not makes the kernel load the module, for any user.
  if (!protocols(readText('/proc/net/protocols') ?? '').includes('RDS')) {
    return result('ok', 'the kernel has no RDS loaded, and the library needs none', {
      data: { loaded: false },
    });
  }
  const fd = native().socket(AF_RDS, SOCK_SEQPACKET, 0);
  if (fd >= 0) native().close(fd);
  const code = fd < 0 ? errnoName(fd) : null;
  const data = { loaded: true, socket: fd >= 0, code };
  if (fd < 0) return result('warn', `the module is loaded, but socket(AF_RDS) says ${code}`, { data });
  return result('ok', 'the kernel has RDS loaded: its sockets and the library may talk to each other', {
    data,
  });
}

function port(): Promise<Result> {
  return withSockets((keep) => {
    const fd = keep(calls.socket(AF_INET, SOCK_STREAM));
    // Closed connections that linger are no obstacle.
    calls.setOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    try {
      calls.bind(fd, '0.0.0.0', RDS_TCP_PORT);
      return result('ok', `TCP port ${RDS_TCP_PORT} is free on all addresses`, { data: { free: true } });
    } catch (error) {
      if (!(error instanceof ZerotxError) || error.code !== 'EADDRINUSE') throw error;
      return taken();
    }
  });
}

function taken(): Result {
  const listeners = ['/proc/net/tcp', '/proc/net/tcp6'].flatMap((path) =>
    listenersOn(readText(path) ?? '', RDS_TCP_PORT),
  );
  const owners = socketOwners(listeners.map(({ inode }) => inode));
  const named = listeners.map((listener) => {
    const owner = owners.get(listener.inode);
    return owner === undefined ? stranger(listener) : `${owner.command} (pid ${owner.pid})`;
  });
  const by = named.length === 0 ? 'a socket that does not listen' : [...new Set(named)].join(', ');
  return result('warn', `TCP port ${RDS_TCP_PORT} is taken, by ${by}`, {
    remedy: 'end it (or rmmod rds_tcp), or open the node on an address that it does not listen on',
    data: { free: false, owners: [...owners.values()] },
  });
}

function stranger({ user }: Listener): string {
  return `a socket of uid ${user} whose process is not ours to see (root's is, and the kernel's has none)`;
}

export const rdsChecks: readonly Check[] = [
  { id: 'rds.module', title: 'RDS in the kernel', run: module },
  { id: 'rds.port', title: 'RDS port', run: port },
];
