/**
 * What the kernel has noted of the sockets of RDS connections, of both directions: an idle peer that is gone is found in half a minute
 * (rds_tcp_keepalive: 5 s, 5 s, 5 probes), small messages do not wait for each other, and 64 connections may wait to be accepted.
 */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import * as calls from '../../src/sys/calls.ts';
import {
  IPPROTO_TCP,
  SO_KEEPALIVE,
  SOL_SOCKET,
  TCP_KEEPCNT,
  TCP_KEEPIDLE,
  TCP_KEEPINTVL,
  TCP_NODELAY,
} from '../../src/sys/constants.ts';
import { RDS_TCP_PORT } from '../../src/wire/rds.ts';
import type { SocketAddress } from '../../src/wire/sockaddr.ts';
import { LANES } from '../support/raw-lanes.ts';
import { until } from '../support/raw-peer.ts';
import { TestNode } from '../support/tcp-nodes.ts';

/** The smaller address: it dials. */
const DIALLER = '127.79.7.1';
const ACCEPTOR = '127.79.7.2';
// linux/tcp.h: of a listening socket tcpi_sacked is the length of its queue.
const TCP_INFO = 11;
const TCPI_SACKED = 28;

interface Open {
  readonly fd: number;
  readonly local: SocketAddress;
  /** Null of one that listens. */
  readonly remote: SocketAddress | null;
}

function attempt<T>(call: () => T): T | null {
  try {
    return call();
  } catch {
    return null;
  }
}

/** The RDS sockets of this process. */
function rdsSockets(): Open[] {
  const open: Open[] = [];
  for (const name of readdirSync('/proc/self/fd')) {
    const fd = Number(name);
    const local = attempt(() => calls.localAddress(fd));
    const remote = attempt(() => calls.peerAddress(fd));
    if (local !== null && (local.port === RDS_TCP_PORT || remote?.port === RDS_TCP_PORT))
      open.push({ fd, local, remote });
  }
  return open;
}

function settings({ fd }: Open): Record<string, number> {
  return {
    keepAlive: calls.getOption(fd, SOL_SOCKET, SO_KEEPALIVE),
    idleS: calls.getOption(fd, IPPROTO_TCP, TCP_KEEPIDLE),
    intervalS: calls.getOption(fd, IPPROTO_TCP, TCP_KEEPINTVL),
    count: calls.getOption(fd, IPPROTO_TCP, TCP_KEEPCNT),
    noDelay: calls.getOption(fd, IPPROTO_TCP, TCP_NODELAY),
  };
}

const EXPECTED = { keepAlive: 1, idleS: 5, intervalS: 5, count: 5, noDelay: 1 };

describe('the sockets of RDS', () => {
  let dialler: TestNode;
  let acceptor: TestNode;

  before(async () => {
    dialler = new TestNode(DIALLER);
    acceptor = new TestNode(ACCEPTOR);
    await dialler.exchange(acceptor);
    for (const { node } of [dialler, acceptor])
      await until(
        'all lanes',
        () => node.peers[0]?.lanes.filter(({ connection }) => connection.settled).length === LANES,
      );
  });

  after(() => Promise.all([dialler.close(), acceptor.close()]));

  it('that were dialled have keepalive and no delay', () => {
    const dialled = rdsSockets().filter(({ local, remote }) => local.address === DIALLER && remote !== null);
    assert.equal(dialled.length, LANES);
    for (const one of dialled) assert.deepEqual(settings(one), EXPECTED);
  });

  it('that were accepted have them, too', () => {
    const accepted = rdsSockets().filter(
      ({ local, remote }) => local.address === ACCEPTOR && remote !== null,
    );
    assert.equal(accepted.length, LANES);
    for (const one of accepted) assert.deepEqual(settings(one), EXPECTED);
  });

  it('that listen have a queue of 64', () => {
    const listening = rdsSockets().filter(({ remote }) => remote === null);
    assert.equal(listening.length, 2);
    for (const { fd } of listening) {
      const info = new Uint8Array(64);
      calls.getOptionBytes(fd, IPPROTO_TCP, TCP_INFO, info);
      assert.equal(new DataView(info.buffer).getUint32(TCPI_SACKED, true), 64);
    }
  });
});
