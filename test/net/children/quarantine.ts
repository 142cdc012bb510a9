/**
 * A descriptor that does not let go of lent memory even after an abort, as a device may do to us. Prints what a node says of
 * it; then nothing is left to do, and the process must end by itself.
 */
import { releases } from '../../../src/core/releases.ts';
import { Ubuf } from '../../../src/core/ubuf.ts';
import { lingerClosed } from '../../../src/net/closer.ts';
import { zerocopyCounters } from '../../../src/net/counters.ts';
import { ZerocopyPolicy } from '../../../src/net/policy.ts';
import { ZerocopyEngine } from '../../../src/net/zerocopy.ts';
import { type Native, native } from '../../../src/sys/binding.ts';
import * as calls from '../../../src/sys/calls.ts';
import { MSG_ZEROCOPY } from '../../../src/sys/constants.ts';
import { testNode } from '../../support/rds-nodes.ts';
import { udpSocket } from '../../support/sockets.ts';

const real = native();
/** No completion ever comes. */
const stubborn: Native = {
  ...real,
  sendv: (fd, buffers, count, flags) => real.sendv(fd, buffers, count, flags & ~MSG_ZEROCOPY),
  abort: () => 0,
  drainErrors: () => 0,
};

const { fd, port } = udpSocket();
calls.connect(fd, '127.0.0.1', port);
const policy = new ZerocopyPolicy({ mode: 'force', loopback: () => true, thresholdBytes: 1 });
const engine = new ZerocopyEngine({
  sys: stubborn,
  fd,
  policy,
  counters: zerocopyCounters(),
  now: Date.now,
});
const ubuf = new Ubuf([Buffer.alloc(1000)], () => process.exit(2), releases);
if (engine.send(ubuf, ubuf.iov, 1, 0) !== 1000) process.exit(3);
ubuf.unref();
lingerClosed(stubborn, fd, engine, 'abort');

const node = testNode('127.24.2.1');
process.stdout.write(JSON.stringify(node.stats().closing));
await node.close();
