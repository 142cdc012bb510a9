/** Traffic between one of our sockets and the guest's programs, every message numbered and checked at its receiver. */
import { once } from 'node:events';
import type { RdsNode } from '../../src/rds/node.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { assertIdle, receive, turnsUntil } from '../support/rds-nodes.ts';
import type { Lab } from './lab.ts';
import { BYE, checkMessage, type Flow, pattern, sizeOf } from './messages.ts';

/** Sends `flow` and a bye, each message as soon as there is room; resolves when every buffer is ours again. */
export async function sendFlow(
  socket: RdsSocket,
  flow: Flow,
  to: { address: string; port: number },
): Promise<void> {
  const sends: Promise<unknown>[] = [];
  for (let i = 0; i < flow.count; i++) {
    while (!socket.writable) await once(socket, 'writable');
    sends.push(socket.send(pattern(i, sizeOf(flow, i)), to));
  }
  sends.push(socket.send(BYE, to));
  await Promise.all(sends);
}

/** Reads `flow`, insisting on order and content, and says bye to its sender; `between` runs before each message. */
export async function receiveFlow(
  socket: RdsSocket,
  flow: Flow,
  between: (index: number) => Promise<void> | void = () => {},
): Promise<void> {
  let from: { address: string; port: number } | null = null;
  for (let i = 0; i < flow.count; i++) {
    await between(i);
    const [message] = await receive(socket, 1);
    if (message === undefined) throw new Error('receive() returned nothing');
    checkMessage(message.data, i, sizeOf(flow, i));
    from ??= { address: message.address, port: message.port };
    message.recycle();
  }
  if (from !== null) await socket.send(BYE, from);
}

export interface BothWays {
  /** Our address, and the guest's. */
  readonly ours: string;
  readonly guest?: string;
  /** Whether both ends lend. */
  readonly zerocopy?: boolean;
  /** What either end may have queued. */
  readonly room?: number;
  readonly seconds?: number;
}

/**
 * `flow` from us to the guest and from the guest to us at the same time, in order, each message once; resolves when all is
 * acknowledged, with what the guest's sender printed.
 */
export async function bothWays(lab: Lab, flow: Flow, options: BothWays): Promise<string> {
  const { ours, guest, zerocopy = false, room, seconds } = options;
  const place = { ...(guest !== undefined && { guest }), ...(seconds !== undefined && { seconds }) };
  const buffers = room === undefined ? {} : { sendBufferBytes: room };
  const socket = lab.node(ours).bind(lab.port(), { zerocopy, ...buffers });
  const { job: receiver, to } = await lab.receiver(flow, place);
  const sndbuf = room === undefined ? {} : { sndbuf: room };
  const sender = lab.sender(flow, socket, { ...place, ...sndbuf, zerocopy });
  await Promise.all([sendFlow(socket, flow, to), receiveFlow(socket, flow)]);
  await Promise.all([receiver.done, sender.done]);
  await turnsUntil(() => socket.queuedBytes === 0);
  await socket.close();
  return sender.output;
}

/** Nothing is left of a node's messages. A lane that is coming up again may still read; it has nothing for us. */
export async function settled(node: RdsNode): Promise<void> {
  await turnsUntil(() => node.heldBytes === 0);
  assertIdle(node);
}
