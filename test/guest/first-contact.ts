/** Who dials, handshake and pings: what happens before two RDS ends that have never met exchange data. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { receive } from '../support/rds-nodes.ts';
import { GUEST, type Lab, roles } from './lab.ts';
import { receiveFlow, sendFlow } from './rds-flows.ts';
import { lanesUp } from './rds-lanes.ts';
import { PINGS, pingFromGuest, pingFromUs } from './rds-pings.ts';

export function firstContact(lab: Lab): void {
  describe('first contact', () => {
    for (const { role, dials, address, calledFirst, bothAtOnce, withoutPings } of roles) {
      it(`${role}, begun by us: a ping and its pong`, { timeout: 30_000 }, async () => {
        const node = lab.node(address);
        const socket = node.bind(0);
        socket.sendmsg(Buffer.alloc(0), { address: GUEST, port: 0 });
        const [pong] = await receive(socket, 1);
        assert.deepEqual([pong?.address, pong?.port, pong?.length], [GUEST, 0, 0]);
        await socket.close();
        await lanesUp(lab, address, dials);
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
        await lanesUp(lab, calledFirst, dials);
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
        await lanesUp(lab, bothAtOnce, dials);
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
        const theirs = await pingFromGuest(lab, address);
        lab.fact(dials, `${PINGS} pings of the kernel's program are answered: ${theirs}`);
        const ours = await pingFromUs(lab, address);
        lab.fact(dials, `${PINGS} pings of ours are answered: ${ours}`);
      });
    }
  });
}
