/** zerotx/net whose sockets lend all that they write, to a peer on this host too. */
import type { NetConnectOpts, Server, ServerOpts, Socket, SocketConstructorOpts } from 'node:net';
import type { ZerocopyOptions } from '../../../src/net/index.ts';
import type { NetModule } from './table.ts';

const zerocopy: ZerocopyOptions = { mode: 'force', thresholdBytes: 1, pin: true };
type Listener = (socket: Socket) => void;

/** The module with that option in every constructor. */
export function lending(net: NetModule): NetModule {
  class LendingSocket extends net.Socket {
    constructor(options: SocketConstructorOpts = {}) {
      super({ ...options, zerocopy } as SocketConstructorOpts);
    }

    /** What a server accepts is of the class above. */
    static override [Symbol.hasInstance](value: unknown): boolean {
      return value instanceof net.Socket;
    }
  }
  class LendingServer extends net.Server {
    constructor(options?: ServerOpts | Listener | null, listener?: Listener) {
      if (typeof options === 'function') super({ zerocopy } as ServerOpts, options);
      else
        super(typeof options === 'object' || options === undefined ? withOption(options) : options, listener);
    }
  }
  const connect = (...args: unknown[]): Socket => {
    const [first] = args;
    const options = typeof first === 'object' && first !== null ? (first as NetConnectOpts) : undefined;
    const socket = new LendingSocket(options as SocketConstructorOpts);
    if (options?.timeout !== undefined) socket.setTimeout(options.timeout);
    return Reflect.apply(socket.connect, socket, args) as Socket;
  };
  return {
    Socket: LendingSocket,
    Server: LendingServer,
    connect,
    createConnection: connect,
    createServer: (options?: ServerOpts | Listener, listener?: Listener): Server =>
      new LendingServer(options, listener),
  } as NetModule;
}

function withOption(options: ServerOpts | null | undefined): ServerOpts {
  return { ...options, zerocopy } as ServerOpts;
}
