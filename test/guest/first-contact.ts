/** Who dials, handshake and pings: what happens before two RDS ends that have never met exchange data. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { receive } from '../support/rds-nodes.ts';
import { GUEST, type Lab, receiveFlow, roles, sendFlow } from './lab.ts';

const PINGS = 10;

export function firstContact(lab: Lab): void {
  describe('first contact', () => {
    for (const { role, address, calledFirst, bothAtOnce, withoutPings } of roles) {
      it(`${role}, begun by us: a ping and its pong`, { timeout: 30_000 }, async () => {
        const node = lab.node(address);
        const socket = node.bind(0);
        socket.sendmsg(Buffer.alloc(0), { address: GUEST, port: 0 });
        const [pong] = await receive(socket, 1);
        assert.deepEqual([pong?.address, pong?.port, pong?.length], [GUEST, 0, 0]);
        await socket.close();
        assert.equal(await connections(lab, address), 1);
        assert.equal(node.counters.conn_reset, 0);
      });

      it(`${role}, begun by the kernel: a message of a blocking sender`, { timeout: 30_000 }, async () => {
        const node = lab.node(calledFirst);
        const socket = node.bind(lab.port());
        const flow = { bytes: 64, count: 1 };
        // A 6.x kernel holds a blocking sender until it knows how many lanes we have.
        const job = lab.sender(flow, socket);
        await receiveFlow(socket, flow);
        await job.done;
        await socket.close();
        assert.equal(await connections(lab, calledFirst), 1);
        assert.equal(node.counters.conn_reset, 0);
      });

      it(`${role}, begun by both at once`, { timeout: 30_000 }, async () => {
        const node = lab.node(bothAtOnce);
        const socket = node.bind(lab.port());
        const flow = { bytes: 64, count: 20 };
        const { job: receiver, to } = await lab.receiver(flow);
        const sender = lab.sender(flow, socket);
        await sender.line('bound');
        await Promise.all([sendFlow(socket, flow, to), receiveFlow(socket, flow)]);
        await Promise.all([receiver.done, sender.done]);
        await socket.close();
        assert.equal(await connections(lab, bothAtOnce), 1);
      });

      it(`${role}: a kernel that answers no pings gets messages all the same`, {
        timeout: 30_000,
      }, async () => {
        await lab.guest.run('echo 0 >/proc/sys/net/rds/ping_enable');
        const socket = lab.node(withoutPings).bind(lab.port());
        const flow = { bytes: 64, count: 20 };
        const { job, to } = await lab.receiver(flow);
        await sendFlow(socket, flow, to);
        await job.done;
        await socket.close();
        await lab.guest.run('echo 1 >/proc/sys/net/rds/ping_enable');
      });

      it(`${role}: user pings both ways`, { timeout: 30_000 }, async () => {
        const node = lab.node(address);
        const answered = node.counters.send_pong;
        await lab.guest.run(`rds-guest ping at=${GUEST}:${lab.port()} to=${address}:0 count=${PINGS}`);
        assert.equal(node.counters.send_pong - answered, PINGS);
        const socket = node.bind(0);
        for (let i = 0; i < PINGS; i++) socket.sendmsg(Buffer.alloc(0), { address: GUEST, port: 0 });
        const pongs = await receive(socket, PINGS);
        assert.ok(pongs.every((pong) => pong.port === 0 && pong.length === 0));
        await socket.close();
      });
    }
  });
}

/** TCP connections between the kernel's RDS and an address: more than one would mean that it has fanned out. */
async function connections(lab: Lab, address: string): Promise<number> {
  const lines = (await lab.guest.run('netstat -tn')).split('\n');
  const open = lines.filter((line) => line.includes('ESTABLISHED') && line.includes(':16385'));
  return open.filter((line) => line.includes(`${address}:`)).length;
}
