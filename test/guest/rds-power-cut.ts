/**
 * The guest loses power while both sides send, boots, and knows nothing of the connections and numbers before. What was
 * acknowledged is gone with the old kernel, as RDS says; everything after it, and what is sent while it is away, reaches the
 * new one, in order and once.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { deferred, receive } from '../support/rds-nodes.ts';
import { type Lab, type Role, roles } from './lab.ts';
import { BYE, checkMessage, pattern } from './messages.ts';
import { receiveFlow, settled } from './rds-flows.ts';
import type { GuestJob } from './vm-console.ts';

/** TCP tries again at 6, 12 and 25 s after the power went, and only then learns that nobody knows the connection. */
const RESTART_SECONDS = 60;
const BYTES = 5000;
/** More than either side sends before the cut. */
const ENDLESS = 60_000;
/** Messages that we receive before the cut, and send after it. */
const BEFORE = 60;
const AFTER = 50;
const ROOM = 16 * BYTES;

/** One of our sockets with its traffic. */
interface Side {
  readonly role: Role;
  readonly socket: RdsSocket;
  readonly to: { readonly address: string; readonly port: number };
  readonly sends: Promise<unknown>[];
  /** Of what our socket sends: given to send(), and known to be acknowledged. */
  sent: number;
  acknowledged: number;
  received: number;
}

export async function powerCut(lab: Lab): Promise<void> {
  const sides = await Promise.all(roles.map((role) => begin(lab, role)));
  const cut = deferred<void>();
  const sending = sides.map((side) => sendUntil(side, cut.promise));
  await Promise.all(sides.map((side) => receiveSome(side)));
  await lab.guest.stop();
  // A message to a port without a socket is dropped: the new programs are there before the link is.
  lab.link('down');
  const acknowledged = sides.map((side) => side.acknowledged);
  cut.resolve();
  const sent = await Promise.all(sending);
  await lab.boot();
  const receivers = await Promise.all(sides.map((side) => newReceiver(lab, side)));
  lab.link('up');
  for (const [i, side] of sides.entries()) {
    await Promise.all(side.sends);
    const output = (await receivers[i]?.done) ?? '';
    const first = Number(/^first (\d+)$/m.exec(output)?.[1]);
    const [least = 0, most = 0] = [acknowledged[i], sent[i]];
    assert.ok(least <= first && first <= most, `begins with ${first}, not between ${least} and ${most}`);
    drain(side);
    await fromNewKernel(lab, side);
    const what = `the guest lost power when it had sent us ${side.received} messages and acknowledged ${first} of ours`;
    lab.fact(
      side.role.dials,
      `${what}; after its boot it got the rest, to number ${side.sent - 1}, each once`,
    );
  }
}

async function begin(lab: Lab, role: Role): Promise<Side> {
  const socket = lab.node(role.address).bind(lab.port(), { zerocopy: true, sendBufferBytes: ROOM });
  const endless = { bytes: BYTES, count: ENDLESS };
  const { to } = await lab.receiver(endless, { seconds: RESTART_SECONDS });
  lab.sender(endless, socket, { sndbuf: ROOM, seconds: RESTART_SECONDS });
  return { role, socket, to, sends: [], sent: 0, acknowledged: 0, received: 0 };
}

/** And then some more, and a bye, which wait for the new kernel. Resolves with how many it sent before. */
async function sendUntil(side: Side, cut: Promise<void>): Promise<number> {
  const { socket, to, sends } = side;
  const send = (): void => {
    const acknowledged = socket.send(pattern(side.sent++, BYTES), to);
    sends.push(acknowledged.then(() => side.acknowledged++));
  };
  let isCut = false;
  const stop = cut.then(() => {
    isCut = true;
  });
  while (!isCut) {
    // A turn each: while the guest acknowledges fast, there is always room.
    await new Promise((resolve) => setImmediate(resolve));
    if (socket.writable) send();
    else await Promise.race([once(socket, 'writable'), stop]);
  }
  const before = side.sent;
  for (let i = 0; i < AFTER; i++) send();
  sends.push(socket.send(BYE, to));
  return before;
}

async function receiveSome(side: Side): Promise<void> {
  for (const message of await receive(side.socket, BEFORE)) {
    checkMessage(message.data, side.received++, BYTES);
    message.recycle();
  }
}

/** What the old kernel has sent besides. */
function drain(side: Side): void {
  for (;;) {
    const message = side.socket.recvmsg();
    if (message === null) return;
    if (message.kind !== 'data') continue;
    checkMessage(message.data, side.received++, BYTES);
    message.recycle();
  }
}

async function newReceiver(lab: Lab, { sent, to }: Side): Promise<GuestJob> {
  const options = { port: to.port, seconds: RESTART_SECONDS, fromAny: true };
  return (await lab.receiver({ bytes: BYTES, count: sent }, options)).job;
}

async function fromNewKernel(lab: Lab, { socket }: Side): Promise<void> {
  const flow = { bytes: BYTES, count: AFTER };
  const sender = lab.sender(flow, socket);
  await receiveFlow(socket, flow);
  await sender.done;
  await socket.close();
  await settled(socket.node);
}
