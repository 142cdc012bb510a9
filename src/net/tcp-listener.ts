/** A listening TCP socket whose connections become TcpChannels. */
import { errnoOf } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import { EPOLLIN, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET } from '../sys/constants.ts';
import { reactor } from '../sys/reactor.ts';
import { decodeSockaddr, SOCKADDR_BYTES } from '../wire/sockaddr.ts';
import { TcpChannel, type TcpHandler, type TcpOptions } from './tcp.ts';

export interface ListenOptions {
  readonly address: string;
  readonly port: number;
  readonly backlog: number;
}

const EAGAIN = -errnoOf('EAGAIN');
const ECONNABORTED = -errnoOf('ECONNABORTED');
const EINTR = -errnoOf('EINTR');
/** Connections taken before other descriptors have their turn. */
const ACCEPTS_PER_TURN = 64;
/** Out of descriptors: try again then, instead of losing the edge. */
const RETRY_MS = 100;

/** Throws what bind(2) and listen(2) refuse. `handler` serves a channel until accepted() gives it another. */
export function listenTcp(
  options: ListenOptions,
  tcp: TcpOptions,
  handler: TcpHandler,
  accepted: (channel: TcpChannel) => void,
): { close(): void } {
  const fd = calls.socketFor(options.address, SOCK_STREAM);
  try {
    calls.setOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    calls.bind(fd, options.address, options.port);
    calls.listen(fd, options.backlog);
  } catch (error) {
    native().close(fd);
    throw error;
  }
  let closed = false;
  let retry: NodeJS.Immediate | NodeJS.Timeout | null = null;
  const sockaddr = new Uint8Array(SOCKADDR_BYTES);
  const acceptAll = (): void => {
    for (let i = 0; i < ACCEPTS_PER_TURN && !closed; i++) {
      const result = native().accept(fd, sockaddr);
      if (result === EAGAIN) return;
      if (result === ECONNABORTED || result === EINTR) continue;
      if (result < 0) {
        // EMFILE and its kind: the edge is used up, so come back by the clock.
        retry ??= setTimeout(again, RETRY_MS);
        return;
      }
      const { address, port } = decodeSockaddr(sockaddr, sockaddr.byteLength);
      accepted(TcpChannel.adopt(result, { address, port }, tcp, handler));
    }
    if (!closed) retry ??= setImmediate(again);
  };
  const again = (): void => {
    retry = null;
    acceptAll();
  };
  const registration = reactor().add(fd, EPOLLIN, acceptAll);
  return {
    close() {
      if (closed) return;
      closed = true;
      if (retry !== null) {
        clearTimeout(retry as NodeJS.Timeout);
        clearImmediate(retry as NodeJS.Immediate);
      }
      registration.remove();
      native().close(fd);
    },
  };
}
