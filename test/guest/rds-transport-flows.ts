/** Numbered messages over any RDS socket, the kernel's or ours: the same code is at both ends, in the guest and outside. */
import type { RdsSocketApi } from '../../src/rds/api.ts';

import { checkMessage, type Flow, pattern, sizeOf } from './messages.ts';

export interface Sent {
  readonly messages: number;
  readonly bytes: number;
  /** Of these, copied by this library or by the kernel below it. */
  readonly copiedBytes: number;
}

/** Resolves at the next one. */
export function event(socket: RdsSocketApi, name: 'readable' | 'writable'): Promise<void> {
  return new Promise((resolve) => socket.once(name, resolve));
}

/** Sends `flow`, each message as soon as there is room, and resolves when every buffer is the program's again. */
export async function sendAll(
  socket: RdsSocketApi,
  flow: Flow,
  to: { address: string; port: number },
): Promise<Sent> {
  const sends = [];
  for (let i = 0; i < flow.count; i++) {
    while (!socket.writable) await event(socket, 'writable');
    sends.push(socket.send(pattern(i, sizeOf(flow, i)), to));
  }
  const outcomes = await Promise.all(sends);
  return {
    messages: outcomes.length,
    bytes: outcomes.reduce((sum, outcome) => sum + outcome.bytes, 0),
    copiedBytes: outcomes.reduce((sum, outcome) => sum + outcome.copiedBytes, 0),
  };
}

/** Reads `flow`, insisting on order and content; resolves with where it came from. */
export async function receiveAll(
  socket: RdsSocketApi,
  flow: Flow,
): Promise<{ address: string; port: number } | null> {
  let from: { address: string; port: number } | null = null;
  for (let i = 0; i < flow.count; ) {
    const got = await socket.receive();
    if (got.kind !== 'data') continue;
    checkMessage(got.data, i, sizeOf(flow, i));
    from ??= { address: got.address, port: got.port };
    got.recycle();
    i += 1;
  }
  return from;
}

/** Lends `flow` with cookies, all of the same number, and counts those that come back. */
export async function sendWithCookies(
  socket: RdsSocketApi,
  flow: Flow,
  to: { address: string; port: number },
  cookie: number,
): Promise<number> {
  let returned = 0;
  const take = (): void => {
    for (;;) {
      const got = socket.recvmsg();
      if (got === null) return;
      if (!('cookies' in got)) continue;
      for (const each of got.cookies) if (each === cookie) returned += 1;
    }
  };
  for (let i = 0; i < flow.count; ) {
    try {
      socket.sendmsg(pattern(i, sizeOf(flow, i)), to, { zerocopy: true, cookie });
      i += 1;
    } catch (error) {
      const { code } = error as { code?: string };
      if (code !== 'EAGAIN' && code !== 'ENOMEM' && code !== 'ENOBUFS') throw error;
      await event(socket, 'writable');
    }
    take();
  }
  while (returned < flow.count) {
    take();
    if (returned < flow.count) await event(socket, 'readable');
  }
  return returned;
}
