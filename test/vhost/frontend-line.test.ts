import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ZerotxError } from '../../src/core/errors.ts';
import { type Request, RequestLine, type Talk } from '../../src/vhost/frontend-line.ts';
import { decodeHeader, VHOST_USER_HEADER_BYTES, VHOST_USER_NEED_REPLY } from '../../src/wire/vhost-user.ts';

const NOTHING = new Uint8Array(0);
const OK = { flags: 5, size: 0 };

function line(): { line: RequestLine; sent: { request: number; flags: number; fds: readonly number[] }[] } {
  const sent: { request: number; flags: number; fds: readonly number[] }[] = [];
  return {
    sent,
    line: new RequestLine((bytes, fds) => {
      const { request, flags, size } = decodeHeader(bytes);
      assert.equal(bytes.length, VHOST_USER_HEADER_BYTES + size);
      sent.push({ request, flags, fds });
    }),
  };
}

function asking(request: number, bytesMin = 0, bytesMax = 8, isAck = false): Request {
  return { request, payload: NOTHING, fds: [], reply: { bytesMin, bytesMax, isAck } };
}

function* telling(request: number): Talk<string> {
  yield { request, payload: NOTHING, fds: [7], reply: null };
  return `told ${request}`;
}

function* talking(...requests: readonly number[]): Talk<number> {
  let bytes = 0;
  for (const request of requests) bytes += (yield asking(request)).length;
  return bytes;
}

describe('the line to a back-end', () => {
  it('sends what needs no reply at once, and waits where one is due', async () => {
    const { line: to, sent } = line();
    const first = to.run(telling(1));
    const second = to.run(talking(2, 3));
    const third = to.run(telling(4));
    assert.deepEqual(
      sent.map(({ request }) => request),
      [1, 2],
    );
    assert.deepEqual(sent[0]?.fds, [7]);
    assert.equal(to.isWaiting, true);
    assert.equal(to.receive({ request: 2, ...OK }, new Uint8Array(8), 0), null);
    assert.equal(to.receive({ request: 3, ...OK }, new Uint8Array(4), 0), null);
    assert.equal(to.isWaiting, false);
    assert.deepEqual(
      sent.map(({ request }) => request),
      [1, 2, 3, 4],
    );
    assert.deepEqual(await Promise.all([first, second, third]), ['told 1', 12, 'told 4']);
  });

  it('asks for an acknowledgement with the flag, and for a reply without', () => {
    const { line: to, sent } = line();
    void to.run(
      (function* (): Talk<void> {
        yield asking(2, 8, 8, true);
        yield asking(3);
      })(),
    );
    assert.equal(sent[0]?.flags, 1 | VHOST_USER_NEED_REPLY);
    to.receive({ request: 2, ...OK }, new Uint8Array(8), 0);
    assert.equal(sent[1]?.flags, 1);
  });

  it('hands a reply on as a copy', async () => {
    const { line: to } = line();
    const memory = Uint8Array.of(1, 2, 3);
    const talk = to.run(
      (function* (): Talk<Uint8Array> {
        return yield asking(2);
      })(),
    );
    to.receive({ request: 2, ...OK }, memory, 0);
    memory.fill(9);
    assert.deepEqual(await talk, Uint8Array.of(1, 2, 3));
  });

  it('lets a talk fail alone', async () => {
    const { line: to } = line();
    const refused = to.run(
      (function* (): Talk<void> {
        yield asking(2);
        throw new ZerotxError('ZTX_REFUSED', 'no');
      })(),
    );
    const next = to.run(talking(3));
    to.receive({ request: 2, ...OK }, NOTHING, 0);
    to.receive({ request: 3, ...OK }, NOTHING, 0);
    await assert.rejects(refused, { code: 'ZTX_REFUSED' });
    assert.equal(await next, 0);
  });

  for (const [what, header, bytes, descriptors] of [
    ['another request', { request: 3, ...OK }, 8, 0],
    ['no reply flag', { request: 2, flags: 1, size: 8 }, 8, 0],
    ['version 0', { request: 2, flags: 4, size: 8 }, 8, 0],
    ['version 2', { request: 2, flags: 6, size: 8 }, 8, 0],
    ['too few bytes', { request: 2, ...OK }, 7, 0],
    ['too many bytes', { request: 2, ...OK }, 9, 0],
    ['a descriptor', { request: 2, ...OK }, 8, 1],
  ] as const) {
    it(`breaks at a reply with ${what}`, async () => {
      const { line: to } = line();
      const running = to.run(
        (function* (): Talk<void> {
          yield asking(2, 8, 8);
        })(),
      );
      const waiting = to.run(telling(5));
      const error = to.receive(header, new Uint8Array(bytes), descriptors);
      assert.equal((error as ZerotxError).code, 'EPROTO');
      await assert.rejects(running, { code: 'EPROTO' });
      await assert.rejects(waiting, { code: 'EPROTO' });
      await assert.rejects(to.run(telling(6)), { code: 'EPROTO' });
      assert.equal(to.receive({ request: 2, ...OK }, new Uint8Array(8), 0), error);
    });
  }

  it('breaks at what nobody asked for', () => {
    const { line: to } = line();
    assert.match(String(to.receive({ request: 1, ...OK }, NOTHING, 0)), /nobody asked/);
  });

  it('takes a reply that still has the flag that asked for it', async () => {
    const { line: to } = line();
    const talk = to.run(talking(2));
    assert.equal(to.receive({ request: 2, flags: 5 | VHOST_USER_NEED_REPLY, size: 0 }, NOTHING, 0), null);
    assert.equal(await talk, 0);
  });

  it('stops a talk whose message could not be sent', async () => {
    let broke = 0;
    const to: RequestLine = new RequestLine(() => {
      broke += 1;
      to.break(new ZerotxError('EPIPE', 'gone'));
    });
    await assert.rejects(to.run(talking(1, 2)), { code: 'EPIPE' });
    await assert.rejects(to.run(talking(3)), { code: 'EPIPE' });
    assert.equal(broke, 1);
  });
});
