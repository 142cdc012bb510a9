import assert from 'node:assert/strict';
import { constants } from 'node:os';
import { describe, it } from 'node:test';
import { assert as bug } from '../../src/core/assert.ts';
import { errnoError, errnoName, errnoOf, type Next, ZerotxError } from '../../src/core/errors.ts';

describe('ZerotxError', () => {
  it('carries what errors of Node carry: name, code, negative errno, syscall, address, port', () => {
    const error = new ZerotxError('EADDRINUSE', 'taken', { syscall: 'bind', address: '127.0.0.1', port: 80 });
    assert.ok(error instanceof Error);
    assert.equal(String(error), 'ZerotxError: taken');
    const { code, errno, syscall, address, port, next } = error;
    assert.deepEqual(
      { code, errno, syscall, address, port, next },
      {
        code: 'EADDRINUSE',
        errno: -constants.errno.EADDRINUSE,
        syscall: 'bind',
        address: '127.0.0.1',
        port: 80,
        next: 'retry',
      },
    );
  });

  it('has errno 0 for codes of ours, and keeps the cause only if there is one', () => {
    const plain = new ZerotxError('ZTX_NO_ADDON', 'gone');
    assert.equal(plain.errno, 0);
    assert.equal(plain.next, 'fatal');
    assert.equal('cause' in plain, false);
    const cause = new Error('below');
    assert.equal(new ZerotxError('EIO', 'io', { cause }).cause, cause);
  });

  const answers: [code: string, next: Next][] = [
    ['EAGAIN', 'retry'],
    ['ENOBUFS', 'retry'],
    ['ENOMEM', 'retry'],
    ['ETIMEDOUT', 'retry'],
    ['ABORT_ERR', 'retry'],
    ['ECONNRESET', 'reconnect'],
    ['ECONNREFUSED', 'reconnect'],
    ['EPIPE', 'reconnect'],
    ['EHOSTUNREACH', 'reconnect'],
    ['EINVAL', 'fatal'],
    ['EACCES', 'fatal'],
    ['ZTX_STILL_LENT', 'fatal'],
  ];
  for (const [code, next] of answers) {
    it(`says ${next} for ${code}, unless told otherwise`, () => {
      assert.equal(new ZerotxError(code, '').next, next);
      assert.equal(new ZerotxError(code, '', { next: 'fatal' }).next, 'fatal');
    });
  }
});

describe('errnoError', () => {
  it('names the call, the error and the address', () => {
    const error = errnoError(-constants.errno.ECONNREFUSED, 'connect', { address: '::1', port: 5 });
    assert.equal(error.message, 'connect ECONNREFUSED ::1:5');
    assert.equal(error.syscall, 'connect');
    assert.equal(error.errno, -constants.errno.ECONNREFUSED);
    assert.equal(errnoError(-2, 'open', { hint: 'no such device' }).message, 'open ENOENT: no such device');
    assert.equal(errnoError(-13, 'bind', { address: '10.0.0.1' }).message, 'bind EACCES 10.0.0.1');
  });
});

describe('errno names', () => {
  it('go both ways, for either sign', () => {
    for (const [name, value] of Object.entries(constants.errno)) {
      assert.equal(errnoOf(name), value);
      assert.equal(errnoOf(errnoName(value)), value, 'aliases share a number');
      assert.equal(errnoName(-value), errnoName(value));
    }
  });

  it('prefer the usual one of two names with one number', () => {
    assert.equal(errnoName(constants.errno.EWOULDBLOCK), 'EAGAIN');
    assert.equal(errnoName(constants.errno.ENOTSUP), 'EOPNOTSUPP');
  });

  it('have a form for numbers that libc does not know, and none for unknown names', () => {
    assert.equal(errnoName(-524), 'E524');
    assert.throws(() => errnoOf('ENOSUCH'), /RangeError: unknown errno name ENOSUCH/);
  });
});

it('assert() throws nothing but bugs', () => {
  bug(1 + 1 === 2, 'arithmetic');
  assert.throws(() => bug(null, 'nothing there'), /^Error: zerotx bug: nothing there$/);
});
