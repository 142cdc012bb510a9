/** What a stream does when the owner of frames lends no more of them: what is left goes in runs, and not each frame by itself. */
import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import { portCounters } from '../../src/core/port.ts';
import { zerocopyCounters } from '../../src/net/counters.ts';
import { ZerocopyPolicy } from '../../src/net/policy.ts';
import { systemClock } from '../../src/ports/clock.ts';
import { StreamSender } from '../../src/ports/stream-tx.ts';
import { type Native, native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { EPOLLERR, MSG_ZEROCOPY, SO_SNDBUF, SOL_SOCKET } from '../../src/sys/constants.ts';
import { frame, type GuestFrames } from '../support/frames.ts';
import { all } from '../support/guest-memory.ts';
import { atEnd, closePorts, guest, settled } from '../support/ports.ts';
import { tcpPair, waitFor } from '../support/sockets.ts';

afterEach(closePorts);

interface Scene {
  readonly sender: StreamSender;
  readonly source: GuestFrames;
  /** Frames of each call: positive if it lends, negative if it copies. */
  readonly calls: number[];
  /** Ends when nothing is lent; the bytes that came. */
  drained(): Promise<Buffer>;
}

async function scene(): Promise<Scene> {
  const { client: fd, server: peer } = await tcpPair({ zerocopy: true });
  atEnd(() => {
    calls.close(fd);
    calls.close(peer);
  });
  calls.setOption(fd, SOL_SOCKET, SO_SNDBUF, 4 << 20);
  const made: number[] = [];
  const sys: Native = {
    ...native(),
    framesStream(...args) {
      const count = args[4] - args[3];
      made.push((args[8] & MSG_ZEROCOPY) !== 0 ? count : -count);
      return native().framesStream(...args);
    },
  };
  const sender = new StreamSender({
    ...{ sys, fd, vnet: false, borrower: {}, clock: systemClock, chooser: null },
    policy: new ZerocopyPolicy({ mode: 'force', thresholdBytes: 512, loopback: () => false }),
    zerocopy: zerocopyCounters(),
    counters: portCounters(),
    failed: (errno) => assert.fail(`failed with ${errno}`),
  });
  const source = guest();
  const got: Uint8Array[] = [];
  const buffer = new Uint8Array(1 << 20);
  const read = (): void => {
    for (let n = native().readv(peer, [buffer], 1); n > 0; n = native().readv(peer, [buffer], 1))
      got.push(buffer.slice(0, n));
  };
  return {
    ...{ sender, source, calls: made },
    async drained() {
      await waitFor(fd, EPOLLERR, () => {
        read();
        sender.engine.drain();
        return sender.engine.outstanding === 0;
      });
      await settled(source);
      read();
      return Buffer.concat(got);
    },
  };
}

function stream(frames: readonly Uint8Array[]): Buffer {
  return Buffer.concat(
    frames.flatMap((bytes) => {
      const prefix = Buffer.alloc(4);
      prefix.writeUInt32BE(bytes.length);
      return [prefix, bytes];
    }),
  );
}

describe('frames that are not lent after all', { timeout: 30_000 }, () => {
  const frames = Array.from({ length: 30 }, (_, i) => frame(3000 + i, i));

  for (const [name, loans, expected] of [
    ['from the first on', 0, [-8, -22]],
    ['from the middle of a batch on', 3, [3, -27]],
    ['from the middle of a later batch on', 12, [8, 4, -18]],
    ['from the end of a batch on', 8, [8, -8, -14]],
    ['never', 30, [8, 8, 8, 6]],
  ] as const) {
    it(`${name}: go in runs, in order`, async () => {
      const { sender, source, calls: made, drained } = await scene();
      source.loansLeft = loans;
      assert.equal(sender.send(source.table(frames), all(30), 0, 30), 30);
      assert.deepEqual(made, expected);
      assert.equal(Buffer.compare(await drained(), stream(frames)), 0);
      assert.equal(source.loans.length, loans);
      // The next time it is asked again.
      source.loansLeft = 2;
      made.splice(0);
      assert.equal(sender.send(source.table(frames.slice(0, 2)), all(2), 0, 2), 2);
      assert.deepEqual(made, [2]);
      await drained();
    });
  }
});
