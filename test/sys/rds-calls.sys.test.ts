/**
 * The calls for the kernel's own RDS where there is none: their arguments are checked, and they do no harm on sockets of another
 * kind. What they do on an RDS socket is tested in a guest.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { errnoName, errnoOf, ZerotxError } from '../../src/core/errors.ts';
import { native } from '../../src/sys/binding.ts';
import { AF_INET, MSG_PEEK, MSG_TRUNC, SOCK_DGRAM } from '../../src/sys/constants.ts';
import {
  RDS_RECEIVED_WORDS,
  rdsInfo,
  WORD_ADDRESS_BYTES,
  WORD_COOKIES,
  WORD_FLAGS,
  WORD_HAS_NEWS,
  WORD_HAS_TIME,
  WORD_TRACES,
} from '../../src/sys/rds.ts';
import { decodeSockaddr, encodeSockaddr, SOCKADDR_BYTES } from '../../src/wire/sockaddr.ts';
import { waitFor } from '../support/sockets.ts';

const EINVAL = -errnoOf('EINVAL');
const EBADF = -errnoOf('EBADF');
const EAGAIN = -errnoOf('EAGAIN');
const EPOLLIN = 1;

type Loose = Record<string, (...args: unknown[]) => unknown>;
const loose = native() as unknown as Loose;

/** Two datagram sockets of IPv4, the first connected to the second. */
function pair(): { from: number; to: number; name: Uint8Array; close(): void } {
  const [from, to] = [native().socket(AF_INET, SOCK_DGRAM, 0), native().socket(AF_INET, SOCK_DGRAM, 0)];
  for (const fd of [from, to]) native().bind(fd, encodeSockaddr('127.0.0.1', 0));
  const name = new Uint8Array(SOCKADDR_BYTES);
  const bytes = native().getsockname(to, name);
  return {
    ...{ from, to, name: name.slice(0, bytes) },
    close: () => {
      for (const fd of [from, to]) native().close(fd);
    },
  };
}

const words = (): Uint32Array => new Uint32Array(RDS_RECEIVED_WORDS).fill(0xffffffff);
const address = (): Uint8Array => new Uint8Array(SOCKADDR_BYTES);

describe('calls for RDS sockets', () => {
  it('carry a datagram of any socket, with its source and flags', async () => {
    const { from, to, name, close } = pair();
    const pieces = [Buffer.from('one '), Buffer.alloc(0), Buffer.from('message')];
    assert.equal(native().rdsSendmsg(from, pieces, 3, name, 0, -1), 11);
    const source = address();
    const out = words();
    const into = [Buffer.alloc(3), Buffer.alloc(4)];
    await waitFor(
      to,
      EPOLLIN,
      () => native().rdsRecvmsg(to, [], 0, MSG_PEEK | MSG_TRUNC, true, source, out) >= 0,
    );
    assert.equal(native().rdsRecvmsg(to, into, 2, MSG_TRUNC, true, source, out), 11);
    assert.equal(Buffer.concat(into).toString(), 'one mes');
    assert.equal(decodeSockaddr(source, out[WORD_ADDRESS_BYTES] ?? 0).address, '127.0.0.1');
    assert.equal((out[WORD_FLAGS] ?? 0) & MSG_TRUNC, MSG_TRUNC);
    for (const word of [WORD_COOKIES, WORD_HAS_NEWS, WORD_HAS_TIME, WORD_TRACES]) assert.equal(out[word], 0);
    assert.equal(native().rdsRecvmsg(to, into, 2, 0, true, source, out), EAGAIN);
    close();
  });

  it('do not count a message as lent that was sent without a cookie, or refused', () => {
    const { from, name, close } = pair();
    native().rdsSendmsg(from, [Buffer.alloc(10)], 1, name, 0, -1);
    native().rdsSendmsg(from, [Buffer.alloc(10)], 1, Buffer.alloc(3), 0x4000000, 5);
    assert.equal(native().outstanding(from), 0);
    close();
  });

  it('refuse descriptors that are not open here', () => {
    for (const fd of [-1, 0, 1, 1 << 20]) {
      assert.equal(native().rdsSendmsg(fd, [], 0, null, 0, -1), EBADF);
      assert.equal(native().rdsRecvmsg(fd, [], 0, 0, true, address(), words()), EBADF);
      assert.equal(native().rdsInfo(fd, 10_000, new Uint8Array(0), new Uint32Array(1)), EBADF);
    }
  });

  it('refuse room that is too small for what they tell', () => {
    const { to, close } = pair();
    const short = new Uint32Array(RDS_RECEIVED_WORDS - 1);
    assert.equal(native().rdsRecvmsg(to, [], 0, 0, true, address(), short), EINVAL);
    assert.equal(native().rdsRecvmsg(to, [], 0, 0, true, address(), new Uint32Array(0)), EINVAL);
    assert.equal(native().rdsRecvmsg(to, [], 0, 0, true, address().subarray(1), words()), EINVAL);
    assert.equal(native().rdsRecvmsg(to, [], 0, 0, true, new Uint8Array(0), words()), EINVAL);
    assert.equal(native().rdsInfo(to, 10_000, new Uint8Array(40), new Uint32Array(0)), EINVAL);
    close();
  });

  it('refuse cookies that are no numbers of 32 bits', () => {
    const { from, name, close } = pair();
    for (const cookie of [-2, 2 ** 32, Number.MAX_SAFE_INTEGER, -(2 ** 53)]) {
      assert.equal(native().rdsSendmsg(from, [Buffer.alloc(1)], 1, name, 0, cookie), EINVAL, `${cookie}`);
    }
    close();
  });

  it('throw for arguments of another kind', () => {
    const { from, close } = pair();
    const buffers = [Buffer.alloc(1)];
    const wrong: [string, unknown[]][] = [
      ['rdsSendmsg', ['1', buffers, 1, null, 0, -1]],
      ['rdsSendmsg', [from, Buffer.alloc(1), 1, null, 0, -1]],
      ['rdsSendmsg', [from, [new Uint16Array(1)], 1, null, 0, -1]],
      ['rdsSendmsg', [from, buffers, 2, null, 0, -1]],
      ['rdsSendmsg', [from, buffers, 1, undefined, 0, -1]],
      ['rdsSendmsg', [from, buffers, 1, 'address', 0, -1]],
      ['rdsSendmsg', [from, buffers, 1, null, 0]],
      ['rdsRecvmsg', [from, buffers, 1, 0, 1, address(), words()]],
      ['rdsRecvmsg', [from, buffers, 1, 0, true, words(), words()]],
      ['rdsRecvmsg', [from, buffers, 1, 0, true, address(), address()]],
      ['rdsInfo', [from, 10_000, new ArrayBuffer(40), new Uint32Array(1)]],
      ['rdsInfo', [from, 10_000, new Uint8Array(40), [0]]],
    ];
    for (const [name, args] of wrong) {
      assert.throws(() => loose[name]?.(...args), TypeError, `${name} ${args.length}`);
    }
    assert.throws(() => native().rdsSendmsg(from, buffers, 65, null, 0, -1), RangeError);
    assert.throws(() => native().rdsRecvmsg(from, buffers, -1, 0, true, address(), words()), RangeError);
    close();
  });

  it('take detached memory for what it is, nothing', () => {
    const { from, to, name, close } = pair();
    const gone = new Uint8Array(100);
    structuredClone(gone.buffer, { transfer: [gone.buffer] });
    assert.equal(native().rdsSendmsg(from, [gone], 1, name, 0, -1), 0);
    assert.equal(native().rdsRecvmsg(to, [], 0, 0, true, gone, words()), EINVAL);
    close();
  });

  it('tell that other sockets have no such tables', () => {
    const { to, close } = pair();
    const result = native().rdsInfo(to, 10_000, new Uint8Array(0), new Uint32Array(1));
    // UDP and TCP disagree on how to say it.
    assert.ok(['ENOPROTOOPT', 'EOPNOTSUPP'].includes(errnoName(result)), `${result}`);
    close();
    assert.throws(
      () => rdsInfo(to, 10_000),
      (error) => error instanceof ZerotxError && error.code === 'EBADF',
    );
  });
});
