import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { FDS_MAX, Framer, type Message, SIZE_MAX } from '../../src/vhost/framing.ts';
import { encodeMessage } from '../../src/wire/vhost-user.ts';
import { FakeFiles } from '../support/vhost-host.ts';

function framer(): { files: FakeFiles; framer: Framer } {
  const files = new FakeFiles();
  return { files, framer: new Framer((fd) => files.close(fd)) };
}

/** Feeds bytes as a stream, `fds` with the first. */
function feed(to: Framer, bytes: Uint8Array, fds: readonly number[] = []): Message[] {
  const messages: Message[] = [];
  let at = 0;
  while (at < bytes.length) {
    const room = to.wanted();
    const part = bytes.subarray(at, at + room.length);
    room.set(part);
    const message = to.took(part.length, at === 0 ? fds : []);
    at += part.length;
    if (message !== null) messages.push({ ...message, payload: message.payload.slice() });
  }
  return messages;
}

function header(request: number, flags: number, size: number): Uint8Array {
  return new Uint8Array(Uint32Array.of(request, flags, size).buffer);
}

describe('framing', () => {
  it('never wants more than the rest of one message', () => {
    const { framer: to } = framer();
    assert.equal(to.wanted().length, 12);
    to.wanted().set(header(2, 1, 8));
    assert.equal(to.took(5, []), null);
    assert.equal(to.wanted().length, 7);
    assert.equal(to.took(7, []), null);
    assert.equal(to.wanted().length, 8);
    assert.equal(to.isIdle, false);
    const message = to.took(8, []);
    assert.equal(message?.request, 2);
    assert.equal(message?.payload.length, 8);
    assert.equal(to.isIdle, true);
    assert.equal(to.wanted().length, 12);
  });

  it('gives a message without payload at the end of its header', () => {
    const { framer: to } = framer();
    assert.deepEqual(
      feed(to, header(1, 1, 0)).map(({ request, payload, fds }) => [request, payload.length, fds]),
      [[1, 0, []]],
    );
  });

  it('gives descriptors to the message whose bytes they came with', () => {
    const { framer: to, files } = framer();
    const [a, b] = [files.open(), files.open()];
    assert.deepEqual(feed(to, encodeMessage(12, 0, new Uint8Array(8)), [a])[0]?.fds, [a]);
    assert.deepEqual(feed(to, header(1, 1, 0))[0]?.fds, []);
    // Also when they come late, with the payload.
    to.wanted().set(header(12, 1, 8));
    to.took(12, []);
    assert.deepEqual(to.took(8, [b])?.fds, [b]);
    assert.equal(files.count, 2);
  });

  it('closes what came with half a message when the stream ends', () => {
    const { framer: to, files } = framer();
    to.took(3, [files.open(), files.open()]);
    to.end();
    assert.equal(files.count, 0);
    to.end();
  });

  const wrong: readonly (readonly [string, Uint8Array])[] = [
    ['version 0', header(1, 0, 0)],
    ['version 2', header(1, 2, 0)],
    ['version 3', header(1, 3, 0)],
    ['a reply', header(1, 5, 0)],
    ['a payload that is too large', header(5, 1, SIZE_MAX + 1)],
    ['a payload of 4 GiB', header(5, 1, 0xffff_ffff)],
  ];
  for (const [name, bytes] of wrong) {
    it(`case 35: ${name} ends the stream, and closes what came with it`, () => {
      const { framer: to, files } = framer();
      assert.throws(() => feed(to, bytes, [files.open()]), { code: 'EPROTO' });
      assert.equal(files.count, 0);
    });
  }

  it('takes the largest payload and the most descriptors, and no more', () => {
    const { framer: to, files } = framer();
    const most = Array.from({ length: FDS_MAX }, () => files.open());
    assert.equal(feed(to, encodeMessage(5, 0, new Uint8Array(SIZE_MAX)), most)[0]?.fds.length, FDS_MAX);
    for (const fd of most) files.close(fd);
    const more = Array.from({ length: FDS_MAX + 1 }, () => files.open());
    assert.throws(() => feed(to, header(5, 1, 0), more), { code: 'EPROTO' });
    assert.equal(files.count, 0);
  });
});
