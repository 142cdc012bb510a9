/**
 * The stage of one row: servers, sockets and children that are gone when the row is over, and waits that end.
 *
 * Every wait listens to an event and has a deadline. Nothing sleeps: what must not happen is checked when something has
 * happened that would have come later.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import type { EventEmitter } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import type { AddressInfo, Server, ServerOpts, Socket, TcpNetConnectOpts } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import * as calls from '../../../src/sys/calls.ts';
import { AF_INET, SOCK_STREAM } from '../../../src/sys/constants.ts';
import type { ConnectError, NetModule } from './table.ts';

/** Longest wait for one event; nothing here takes longer than a few hundredths of a second. */
export const WAIT_MS = 5_000;
export const LOOPBACK = '127.0.0.1';

export interface Pair {
  readonly server: Server;
  readonly client: Socket;
  /** The server's end of the connection. */
  readonly peer: Socket;
  readonly port: number;
}

export interface PairOptions {
  readonly client?: Partial<TcpNetConnectOpts>;
  readonly server?: ServerOpts;
}

export interface Closed {
  readonly hadError: boolean;
  readonly error: ConnectError | undefined;
}

export class Scene {
  readonly net: NetModule;
  /** What a child process imports to get the same module. */
  readonly specifier: string;
  readonly #sockets: Socket[] = [];
  readonly #servers: Server[] = [];
  readonly #children: ChildProcess[] = [];
  readonly #endings: (() => void)[] = [];

  constructor(net: NetModule, specifier: string) {
    this.net = net;
    this.specifier = specifier;
  }

  /** Remembers a socket, to destroy it at the end. */
  own<S extends Socket>(socket: S): S {
    this.#sockets.push(socket);
    return socket;
  }

  /** Runs at the end. */
  defer(ending: () => void): void {
    this.#endings.push(ending);
  }

  /** A server; errors of its connections end in the connections' 'close' and nowhere else. */
  server(options: ServerOpts = {}, listener?: (socket: Socket) => void): Server {
    return this.adopt(this.net.createServer(options), listener);
  }

  adopt(server: Server, listener?: (socket: Socket) => void): Server {
    this.#servers.push(server);
    server.on('connection', (socket: Socket) => {
      this.own(socket).on('error', () => {});
    });
    if (listener !== undefined) server.on('connection', listener);
    return server;
  }

  /** A server that listens on a port of 127.0.0.1 that the kernel chose. */
  async listening(options: ServerOpts = {}, listener?: (socket: Socket) => void): Promise<Listening> {
    const server = this.server(options, listener);
    server.listen(0, LOOPBACK);
    await event(server, 'listening');
    return { server, port: portOf(server) };
  }

  /** A server that sends back what it gets. */
  echo(): Promise<Listening> {
    return this.listening({}, (socket) => socket.pipe(socket));
  }

  /** Both ends of a new connection. */
  async pair(options: PairOptions = {}): Promise<Pair> {
    const { server, port } = await this.listening(options.server);
    const accepted = event(server, 'connection');
    const client = this.own(this.net.connect({ port, host: LOOPBACK, ...options.client }));
    await event(client, 'connect');
    const [peer] = (await accepted) as [Socket];
    return { server, client, peer, port };
  }

  /** A port of `address` on which nobody listens. */
  async freePort(address: string = LOOPBACK): Promise<number> {
    const server = this.server();
    server.listen(0, address);
    await event(server, 'listening');
    const port = portOf(server);
    server.close();
    await event(server, 'close');
    return port;
  }

  /**
   * A port that neither accepts nor refuses: its listener never accepts, and its queue of one is full, so that the
   * kernel drops what asks next (tcp_conn_request).
   */
  stalled(address: string = LOOPBACK, port = 0): number {
    const listener = calls.socket(AF_INET, SOCK_STREAM);
    const waiting = calls.socket(AF_INET, SOCK_STREAM);
    this.defer(() => {
      for (const fd of [listener, waiting]) calls.close(fd);
    });
    calls.bind(listener, address, port);
    calls.listen(listener, 0);
    const bound = calls.localAddress(listener).port;
    calls.connect(waiting, address, bound);
    return bound;
  }

  /** A folder for socket files. */
  folder(): string {
    const folder = mkdtempSync(join(tmpdir(), 'net-'));
    this.defer(() => rmSync(folder, { recursive: true, force: true }));
    return folder;
  }

  /** Runs `source` in a process of its own, with the module as `net` and `args` as process.argv from 1 on. */
  child(source: string, ...args: readonly (string | number)[]): Child {
    const text = `import * as net from '${this.specifier}';\n${source}`;
    const argv = ['--input-type=module', '-e', text, '--', ...args.map(String)];
    const child = spawn(process.execPath, argv, { stdio: ['ignore', 'pipe', 'pipe'] });
    this.#children.push(child);
    let stdout = '';
    let stderr = '';
    child.stdout.setEncoding('utf8').on('data', (part: string) => {
      stdout += part;
    });
    child.stderr.setEncoding('utf8').on('data', (part: string) => {
      stderr += part;
    });
    return {
      async exit() {
        if (child.exitCode === null && child.signalCode === null) await event(child, 'close');
        return { code: child.exitCode, stdout, stderr };
      },
      async says() {
        if (stdout === '') await event(child.stdout, 'data');
        return stdout;
      },
    };
  }

  /** Ends everything that the row left. */
  async end(): Promise<void> {
    for (const child of this.#children) if (child.exitCode === null) child.kill('SIGKILL');
    for (const socket of this.#sockets) socket.on('error', () => {}).destroy();
    const closing = this.#servers
      .filter((server) => server.listening)
      .map((server) => new Promise((resolve) => server.close(resolve)));
    for (const ending of this.#endings) ending();
    await Promise.all(closing);
  }
}

export interface Listening {
  readonly server: Server;
  readonly port: number;
}

export interface Child {
  exit(): Promise<{ code: number | null; stdout: string; stderr: string }>;
  /** Resolves with the first output. */
  says(): Promise<string>;
}

/** The arguments of the next `name`; rejects on 'error', unless it is waited for, and at the deadline. */
export function event(emitter: EventEmitter, name: string): Promise<unknown[]> {
  return new Promise((resolve, reject) => {
    const settle = (): void => {
      clearTimeout(timer);
      emitter.off(name, arrived).off('error', failed);
    };
    const arrived = (...args: unknown[]): void => {
      settle();
      resolve(args);
    };
    const failed = (error: Error): void => {
      settle();
      reject(error);
    };
    const timer = setTimeout(() => failed(new Error(`no '${name}' within ${WAIT_MS} ms`)), WAIT_MS);
    emitter.on(name, arrived);
    if (name !== 'error') emitter.on('error', failed);
  });
}

/** How the socket closes, with or without an error. */
export function closed(socket: Socket): Promise<Closed> {
  return new Promise((resolve, reject) => {
    let error: ConnectError | undefined;
    const timer = setTimeout(() => reject(new Error(`no 'close' within ${WAIT_MS} ms`)), WAIT_MS);
    socket.on('error', (reason: Error) => {
      error = reason as ConnectError;
    });
    // Without an argument where there was no connection.
    socket.on('close', (hadError?: boolean) => {
      clearTimeout(timer);
      resolve({ hadError: hadError === true, error });
    });
  });
}

/** The error with which the socket closes. */
export async function failure(socket: Socket): Promise<ConnectError> {
  const { error } = await closed(socket);
  assert.ok(error !== undefined, "'error' before 'close'");
  return error;
}

/** Resolves when a callback that is given `done` has run, with its arguments. */
export function called(start: (done: (...args: unknown[]) => void) => void): Promise<unknown[]> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no call within ${WAIT_MS} ms`)), WAIT_MS);
    start((...args) => {
      clearTimeout(timer);
      resolve(args);
    });
  });
}

/** Names of the events in their order; 'close' with its argument. */
export function record(emitter: EventEmitter, ...names: readonly string[]): string[] {
  const seen: string[] = [];
  for (const name of names) {
    emitter.on(name, (argument: unknown) => {
      seen.push(name === 'close' && typeof argument === 'boolean' ? `close(${argument})` : name);
    });
  }
  return seen;
}

/** Everything until 'end'. */
export async function everything(socket: Socket): Promise<Buffer> {
  const chunks: Buffer[] = [];
  socket.on('data', (chunk: Buffer) => {
    chunks.push(chunk);
  });
  await event(socket, 'end');
  return Buffer.concat(chunks);
}

/** Reads until `bytes` have come. */
export async function received(socket: Socket, bytes: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let length = 0;
  await called((done) => {
    const collect = (chunk: Buffer): void => {
      chunks.push(chunk);
      length += chunk.length;
      if (length < bytes) return;
      socket.off('data', collect);
      done();
    };
    socket.on('data', collect).resume();
  });
  return Buffer.concat(chunks);
}

/** Some turns of the event loop: callbacks that are due have run. */
export async function turns(count = 5): Promise<void> {
  for (let turn = 0; turn < count; turn++) await new Promise((resolve) => setImmediate(resolve));
}

export function portOf(server: Server): number {
  return (server.address() as AddressInfo).port;
}

/** Bytes in which a missing, doubled or moved piece shows. */
export function pattern(bytes: number): Buffer {
  const out = Buffer.allocUnsafe(bytes);
  for (let i = 0; i < bytes; i++) out[i] = (i * 31 + (i >>> 8) * 7 + (i >>> 16)) & 0xff;
  return out;
}
