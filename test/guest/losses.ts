/** Connections that are lost under traffic, and ends that start again: nothing is lost, nothing comes twice. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { assertIdle, turnsUntil } from '../support/rds-nodes.ts';
import { type Flow, GUEST, type Lab, receiveFlow, roles, sendFlow } from './lab.ts';

const DROPS = 8;
const PROCESSES = 3;
/** TCP tries again at 6, 12 and 25 s after the power went, and only then learns that nobody knows the connection. */
const RESTART_SECONDS = 60;
const childModule = fileURLToPath(new URL('./children/rds-sender.js', import.meta.url));

export function losses(lab: Lab): void {
  describe('losses', () => {
    for (const { role, address, restarted } of roles) {
      for (const flow of [
        { bytes: 2000, count: 1600 },
        { bytes: 50_000, count: 160 },
      ]) {
        const name = `${role}: connections dropped by the kernel under messages of ${flow.bytes} bytes`;
        it(name, { timeout: 60_000 }, () => droppedByKernel(lab, address, flow));
      }

      it(`${role}: our process is killed, and others take its place`, { timeout: 60_000 }, () =>
        ourRestart(lab, restarted),
      );
    }

    it('the guest loses power, and comes back', { timeout: 120_000 }, () => guestRestart(lab));
  });
}

/** What it drops at is how far the traffic is, in both directions at once. */
async function droppedByKernel(lab: Lab, address: string, flow: Flow): Promise<void> {
  const node = lab.node(address);
  const before = { ...node.counters };
  // Little room, so that both ends have to send until the last drop.
  const room = 4 * flow.bytes;
  const socket = node.bind(lab.port(), { zerocopy: true, sendBufferBytes: room });
  const { job: receiver, to } = await lab.receiver(flow);
  const sender = lab.sender(flow, socket, { sndbuf: room });
  const drop = async (index: number): Promise<void> => {
    if (index % (flow.count / DROPS) === 5) await dropConnections(lab, index);
  };
  await Promise.all([sendFlow(socket, flow, to), receiveFlow(socket, flow, drop)]);
  await Promise.all([receiver.done, sender.done]);
  await turnsUntil(() => socket.queuedBytes === 0);
  await socket.close();
  const lost = node.counters.conn_reset - before.conn_reset;
  assert.ok(lost >= DROPS / 2, `${lost} connections were lost`);
  assertIdle(node);
}

/** The kernel remembers the numbers of each process before; connections are lost at the worst of times. */
async function ourRestart(lab: Lab, address: string): Promise<void> {
  const part = 40;
  const flow = { bytes: 20_000, count: PROCESSES * part };
  const { job, to } = await lab.receiver(flow);
  for (let i = 0; i < PROCESSES; i++) {
    const args = [address, GUEST, to.port, i * part, part, flow.bytes, i === PROCESSES - 1 ? 'bye' : ''];
    const child = spawn(process.execPath, [childModule, ...args.map(String)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    try {
      await Promise.all([firstLine(child), dropConnections(lab, i)]);
    } finally {
      const closed = once(child, 'close');
      child.kill('SIGKILL');
      await closed;
    }
  }
  await job.done;
}

async function firstLine(child: ChildProcess): Promise<void> {
  if (child.stdout === null) throw new Error('no stdout');
  for await (const line of createInterface(child.stdout)) {
    assert.equal(line, 'acknowledged');
    return;
  }
  throw new Error(`the child ended: ${child.exitCode ?? child.signalCode}`);
}

/**
 * What is sent while it is away waits, and reaches the new kernel, which knows nothing of the old one's connections and
 * numbers. The link stays down until the guest's programs are there, as a message to a port without a socket is dropped.
 */
async function guestRestart(lab: Lab): Promise<void> {
  const flow = { bytes: 5000, count: 50 };
  await lab.guest.stop();
  const sockets = roles.map(({ address }) => lab.node(address).bind(lab.port(), { zerocopy: true }));
  const ports = sockets.map(() => lab.port());
  const sent = sockets.map((socket, i) => sendFlow(socket, flow, { address: GUEST, port: ports[i] ?? 0 }));
  lab.link('down');
  await lab.boot();
  const receivers = await Promise.all(
    ports.map((port) => lab.receiver(flow, { port, seconds: RESTART_SECONDS })),
  );
  lab.link('up');
  await Promise.all([...sent, ...receivers.map(({ job }) => job.done)]);
  for (const socket of sockets) {
    const sender = lab.sender(flow, socket);
    await receiveFlow(socket, flow);
    await sender.done;
    await socket.close();
    assertIdle(socket.node);
  }
}

/** Writing the setting drops every lane of the kernel; a value of its own each time, or nothing is written. */
async function dropConnections(lab: Lab, salt: number): Promise<void> {
  await lab.guest.run(`echo ${1_000_000 + salt} >/proc/sys/net/rds/tcp/rds_tcp_sndbuf`);
}
