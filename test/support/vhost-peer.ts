/** The socket of a front-end, for tests: says messages with descriptors, waits for replies. Nothing of it is shared with the back-end. */
import assert from 'node:assert/strict';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { AF_UNIX, EPOLLIN, EPOLLRDHUP, SOCK_STREAM } from '../../src/sys/constants.ts';
import { encodeSockaddrUn } from '../../src/wire/sockaddr.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import { sendWithFds } from './descriptors.ts';
import { waitFor } from './sockets.ts';

const EAGAIN = -11;

export class RawFrontend {
  readonly fd: number;
  #isClosed = false;

  private constructor(fd: number) {
    this.fd = fd;
  }

  static connect(path: string): RawFrontend {
    const fd = calls.socket(AF_UNIX, SOCK_STREAM);
    assert.equal(native().connect(fd, encodeSockaddrUn(path)), 0);
    return new RawFrontend(fd);
  }

  /** A front-end that listens, as QEMU with server=on. */
  static listen(path: string): { accept(): Promise<RawFrontend>; close(): void } {
    const fd = calls.socket(AF_UNIX, SOCK_STREAM);
    assert.equal(native().bind(fd, encodeSockaddrUn(path)), 0);
    calls.listen(fd, 4);
    const sockaddr = new Uint8Array(110);
    return {
      accept: async () => {
        let accepted = -1;
        await waitFor(fd, EPOLLIN, () => {
          accepted = native().accept(fd, sockaddr);
          return accepted >= 0;
        });
        return new RawFrontend(accepted);
      },
      close: () => calls.close(fd),
    };
  }

  say(
    request: number,
    payload: Uint8Array = new Uint8Array(0),
    fds: readonly number[] = [],
    flags = 0,
  ): void {
    const bytes = vhost.encodeMessage(request, flags, payload);
    assert.equal(sendWithFds(this.fd, bytes, fds), bytes.length);
  }

  /** Bytes as they are. */
  raw(bytes: Uint8Array, fds: readonly number[] = []): void {
    assert.equal(sendWithFds(this.fd, bytes, fds), bytes.length);
  }

  /** The payload of the next reply, which is one to `request`. */
  async reply(request: number): Promise<Uint8Array> {
    const header = vhost.decodeHeader(await this.read(vhost.VHOST_USER_HEADER_BYTES));
    assert.deepEqual([header.request, header.flags], [request, 5]);
    return this.read(header.size);
  }

  async ask(request: number, payload?: Uint8Array, fds?: readonly number[]): Promise<Uint8Array> {
    this.say(request, payload, fds);
    return this.reply(request);
  }

  /** The errno that a message is answered with. */
  async ack(request: number, payload?: Uint8Array, fds?: readonly number[]): Promise<number> {
    this.say(request, payload, fds, vhost.VHOST_USER_NEED_REPLY);
    return vhost.decodeU64(await this.reply(request))?.lo ?? -1;
  }

  async read(bytes: number): Promise<Uint8Array> {
    const out = new Uint8Array(bytes);
    let have = 0;
    await waitFor(this.fd, EPOLLIN, () => {
      while (have < bytes) {
        const got = native().readv(this.fd, [out.subarray(have)], 1);
        if (got === EAGAIN) return false;
        assert.ok(got > 0, 'the back-end closed the connection');
        have += got;
      }
      return true;
    });
    return out;
  }

  /** Resolves when the back-end has closed the connection. */
  async closed(): Promise<void> {
    const out = new Uint8Array(4096);
    await waitFor(this.fd, EPOLLIN | EPOLLRDHUP, () => {
      let got: number;
      do got = native().readv(this.fd, [out], 1);
      while (got > 0);
      return got !== EAGAIN;
    });
  }

  /** A second time does nothing. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    calls.close(this.fd);
  }
}
