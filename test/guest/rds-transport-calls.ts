/** What the tests outside can ask of the guest: one function a request, with arguments and results that JSON can carry. */
import type { KernelNodeStats } from '../../src/rds/api.ts';
import type { RdsInfo } from '../../src/rds/info.ts';
import type { KernelRdsNode } from '../../src/rds/kernel/node.ts';
import type { KernelRdsSocket } from '../../src/rds/kernel/socket.ts';
import { RdsNode } from '../../src/rds/node.ts';
import type { CloseOptions, SocketOptions } from '../../src/rds/options.ts';
import { codeOf, lendableBuffer } from '../support/rds-nodes.ts';
import { type Flow, pattern, sizeOf } from './messages.ts';
import { guestChecks } from './rds-transport-checks.ts';
import { event, receiveAll, type Sent, sendAll, sendWithCookies } from './rds-transport-flows.ts';

type Place = { readonly address: string; readonly port: number };

export interface GuestCalls {
  /** A socket of the guest's address, or of another one, which is known by its port from now on. */
  bind(port: number, options: SocketOptions, address?: string): Promise<number>;
  close(port: number, options: CloseOptions): Promise<void>;
  send(port: number, flow: Flow, to: Place): Promise<Sent>;
  receive(port: number, flow: Flow): Promise<Place | null>;
  cookies(port: number, flow: Flow, to: Place, cookie: number): Promise<number>;
  /** Sends messages of this size until ENOBUFS, and resolves with how many were accepted. */
  fill(port: number, bytes: number, to: Place): Promise<number>;
  /** Waits for news of congestion; the mask, as text. */
  news(port: number): Promise<string>;
  /** Lends messages and waits for none: outcome() tells of them. Resolves with what is lent then. */
  lend(port: number, flow: Flow, to: Place): Promise<number>;
  /** Of all that lend() has lent since the last time: codes of errors, or null, once all are settled. */
  outcomes(port: number): Promise<(string | null)[]>;
  cancel(port: number, to: Place | string): void;
  lentBytes(port: number): number;
  info(): RdsInfo;
  stats(): KernelNodeStats;
  /** Runs one of rds-transport-checks.ts, which asserts by itself. */
  check(name: string): Promise<unknown>;
}

export function guestCalls(node: KernelRdsNode): GuestCalls {
  const nodes = new Map([[node.address, node]]);
  const sockets = new Map<number, KernelRdsSocket>();
  const lent = new Map<number, Promise<string | null>[]>();
  const nodeAt = async (address: string): Promise<KernelRdsNode> => {
    const known = nodes.get(address) ?? (await RdsNode.open({ transport: 'kernel', address }));
    nodes.set(address, known);
    return known;
  };
  const at = (port: number): KernelRdsSocket => {
    const socket = sockets.get(port);
    if (socket === undefined) throw new Error(`no socket at ${port}`);
    return socket;
  };
  return {
    bind: async (port, options, address = node.address) => {
      const socket = (await nodeAt(address)).bind(port, options);
      sockets.set(socket.port, socket);
      return socket.port;
    },
    close: async (port, options) => {
      const socket = at(port);
      sockets.delete(port);
      await socket.close(options);
    },
    send: (port, flow, to) => sendAll(at(port), flow, to),
    receive: (port, flow) => receiveAll(at(port), flow),
    cookies: (port, flow, to, cookie) => sendWithCookies(at(port), flow, to, cookie),
    fill: async (port, bytes, to) => {
      const socket = at(port);
      for (let accepted = 0; ; accepted++) {
        let code = codeOf(() => socket.sendmsg(pattern(accepted, bytes), to));
        while (code === 'EAGAIN') {
          await event(socket, 'writable');
          code = codeOf(() => socket.sendmsg(pattern(accepted, bytes), to));
        }
        if (code === 'ENOBUFS') return accepted;
        if (code !== null) throw new Error(code);
      }
    },
    news: async (port) => {
      for (;;) {
        const got = await at(port).receive();
        if (got.kind === 'congestion') return `${got.mask}`;
      }
    },
    lend: async (port, flow, to) => {
      const socket = at(port);
      const sends: Promise<string | null>[] = [];
      for (let i = 0; i < flow.count; i++) {
        const sent = socket.send(lendable(pattern(i, sizeOf(flow, i))), to);
        sends.push(
          sent.then(
            () => null,
            (error) => String(error.code),
          ),
        );
      }
      lent.set(port, sends);
      return socket.lentBytes;
    },
    outcomes: (port) => Promise.all(lent.get(port) ?? []),
    cancel: (port, to) => at(port).cancelSentTo(to),
    lentBytes: (port) => at(port).lentBytes,
    info: () => node.info(),
    stats: () => node.stats(),
    check: async (name) => {
      const run = guestChecks[name];
      if (run === undefined) throw new Error(`no check ${name}`);
      return await run(node);
    },
  };
}

function lendable(bytes: Buffer): Buffer {
  const buffer = lendableBuffer(bytes.byteLength);
  buffer.set(bytes);
  return buffer;
}
