import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { errnoOf } from '../../src/core/errors.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { EPOLLIN, EPOLLOUT } from '../../src/sys/constants.ts';
import { type Registration, reactor } from '../../src/sys/reactor.ts';
import { encodeSockaddr } from '../../src/wire/sockaddr.ts';
import { DEADLINE_MS, tcpPair, udpSocket, waitFor } from '../support/sockets.ts';

describe('reactor over epoll', { timeout: 4 * DEADLINE_MS }, () => {
  it('is one per environment', () => {
    assert.equal(reactor(), reactor());
    assert.equal(
      native().reactorStart(new Uint32Array(2), () => {}),
      -errnoOf('EBUSY'),
    );
  });

  it('reports an edge once, and the next one again', async () => {
    const pair = await tcpPair();
    let events = 0;
    let turns = 0;
    const registration = reactor().add(pair.server, EPOLLIN, () => {
      events += 1;
    });
    native().sendv(pair.client, [Buffer.from('a')], 1, 0);
    await turnsUntil(() => events === 1);
    // Unread, and no new edge: any number of turns must stay silent.
    await turnsUntil(() => ++turns === 20);
    assert.equal(events, 1);
    native().sendv(pair.client, [Buffer.from('b')], 1, 0);
    await turnsUntil(() => events === 2);
    registration.remove();
    pair.close();
  });

  it('delivers more ready descriptors than one turn fetches', async () => {
    const sockets = Array.from({ length: 600 }, () => udpSocket());
    const seen = new Set<number>();
    const registrations: Registration[] = sockets.map(({ fd }) =>
      reactor().add(fd, EPOLLOUT, (events) => {
        if ((events & EPOLLOUT) !== 0) seen.add(fd);
      }),
    );
    await turnsUntil(() => seen.size === sockets.length);
    for (const registration of registrations) registration.remove();
    for (const { fd } of sockets) calls.close(fd);
  });

  it('delivers nothing to a removed registration', async () => {
    const { fd, port } = udpSocket();
    const other = udpSocket();
    let seen = 0;
    const registration = reactor().add(fd, EPOLLIN, () => {
      seen += 1;
    });
    const target = encodeSockaddr('127.0.0.1', port);
    native().sendGso(other.fd, [Buffer.of(1)], 1, 0, 0, target);
    registration.remove();
    registration.remove();
    await waitFor(fd, EPOLLIN, (events) => (events & EPOLLIN) !== 0);
    assert.equal(seen, 0);
    calls.close(fd);
    calls.close(other.fd);
  });

  it('refuses a second registration of a descriptor, and a foreign descriptor', () => {
    const { fd } = udpSocket();
    const registration = reactor().add(fd, EPOLLIN, () => {});
    assert.throws(() => reactor().add(fd, EPOLLIN, () => {}), { code: 'EEXIST' });
    assert.throws(() => reactor().add(0, EPOLLIN, () => {}), { code: 'EBADF' });
    registration.remove();
    calls.close(fd);
  });

  it('accepts close before remove, and the number again', async () => {
    const { fd } = udpSocket();
    const registration = reactor().add(fd, EPOLLOUT, () => {});
    calls.close(fd);
    registration.remove();
    const again = udpSocket();
    await waitFor(again.fd, EPOLLOUT, (events) => (events & EPOLLOUT) !== 0);
    calls.close(again.fd);
  });
});

/** Turns of the event loop until `done`; at most ten thousand. */
async function turnsUntil(done: () => boolean): Promise<void> {
  for (let turn = 0; turn < 10_000; turn++) {
    if (done()) return;
    await new Promise((resolve) => setImmediate(resolve));
  }
  assert.fail('not within 10000 turns');
}
