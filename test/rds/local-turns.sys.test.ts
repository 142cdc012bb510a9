/** Traffic between nodes of one process leaves the event loop its turns. On the real loop: a simulated one has others. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { RdsAddress } from '../../src/rds/options.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { deferred, testNode } from '../support/rds-nodes.ts';

/** If nothing else has had a turn by then, nothing ever will. */
const MESSAGES_MAX = 200_000;

describe('sockets of one process', { timeout: 60_000 }, () => {
  it('that answer each other at once do not keep timers and input waiting', async (t) => {
    const nodes = new Map();
    const [a, b] = [testNode('127.24.1.1', { nodes }), testNode('127.24.1.2', { nodes })];
    t.after(() => Promise.all([a.close(), b.close()]));
    const [from, to] = [a.bind(4000), b.bind(4000)];
    let count = 0;
    let stopped = false;
    const starved = deferred<string>();
    const echo = (socket: RdsSocket, other: RdsAddress): void => {
      socket.on('readable', () => {
        for (let m = socket.recvmsg(); m !== null; m = socket.recvmsg()) {
          if (m.kind !== 'data' || stopped) continue;
          count += 1;
          if (count < MESSAGES_MAX) socket.sendmsg(m.data, other);
          else starved.resolve('starved');
        }
      });
    };
    echo(from, to);
    echo(to, from);
    from.sendmsg(Buffer.from('x'), to);
    const timers = deferred<string>();
    let fired = 0;
    const interval = setInterval(() => {
      fired += 1;
      // Both went on: three turns of the timer, and some of the echo.
      if (fired >= 3 && count > 3) timers.resolve('in time');
    }, 1);
    t.after(() => clearInterval(interval));
    assert.equal(await Promise.race([timers.promise, starved.promise]), 'in time');
    stopped = true;
  });

  it('a send() that follows the one before it leaves them their turn, too', async (t) => {
    const a = testNode('127.24.1.3');
    t.after(() => a.close());
    const socket = a.bind(4000, { zerocopy: true });
    let count = 0;
    let fired = false;
    setTimeout(() => {
      fired = true;
    }, 1);
    while (!fired && count < MESSAGES_MAX) {
      await socket.send(Buffer.from('x'), socket);
      socket.recvmsg();
      count += 1;
    }
    assert.equal(fired, true);
  });
});
