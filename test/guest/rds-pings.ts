/** Pings, which are empty messages to RDS port 0, from either end, with the time until each is answered. */
import assert from 'node:assert/strict';
import { receive } from '../support/rds-nodes.ts';
import { GUEST, inGuest, type Lab } from './lab.ts';
import { figures } from './vm-programs.ts';

export const PINGS = 10;

/** As rds-ping does, one at a time; resolves with the times. */
export async function pingFromGuest(lab: Lab, ours: string, guest: string = GUEST): Promise<string> {
  const { counters } = lab.node(ours);
  const before = counters.send_pong;
  const command = `rds-guest ping at=${inGuest(guest)}:${lab.port()} to=${inGuest(ours)}:0 count=${PINGS}`;
  const output = await lab.guest.run(command);
  // The handshake's pong may be among them.
  assert.ok(counters.send_pong - before >= PINGS);
  const { min_us, mean_us, max_us } = figures(output);
  return `${min_us} to ${max_us} us, ${mean_us} us on average`;
}

export async function pingFromUs(lab: Lab, ours: string, guest: string = GUEST): Promise<string> {
  const socket = lab.node(ours).bind(0);
  const times: number[] = [];
  for (let i = 0; i < PINGS; i++) {
    const before = performance.now();
    socket.sendmsg(Buffer.alloc(0), { address: guest, port: 0 });
    const [pong] = await receive(socket, 1);
    times.push(Math.round((performance.now() - before) * 1000));
    assert.deepEqual([pong?.address, pong?.port, pong?.length], [guest, 0, 0]);
  }
  await socket.close();
  const mean = Math.round(times.reduce((sum, time) => sum + time, 0) / PINGS);
  return `${Math.min(...times)} to ${Math.max(...times)} us, ${mean} us on average`;
}
