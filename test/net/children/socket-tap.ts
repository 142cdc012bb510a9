/**
 * A sender and a receiver for network namespaces, and a packet tap on the sender's side that comes and goes in the middle of the
 * stream. Run as `node socket-tap.js send <mode> <address> <port>` or `node socket-tap.js receive <bytes>`; each prints lines of
 * JSON, and the sender begins when it reads a line.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { connect, type ZerocopyOptions } from '../../../src/net/index.ts';
import { native } from '../../../src/sys/binding.ts';
import { acceptOne, listen } from '../../support/channels.ts';
import { KIB, MIB, numbers, RawPeer } from '../../support/door.ts';

const PIECE = 256 * KIB;
const PHASE_BYTES = 10 * MIB;
const AF_PACKET = 17;
const SOCK_RAW = 3;
const ALL_PROTOCOLS = 0x0300; // ETH_P_ALL, in network order

function say(what: object): void {
  process.stdout.write(`${JSON.stringify(what)}\n`);
}

/** Four times as much, with a tap on all devices of the namespace from the second to the last. */
async function send(mode: string, host: string, port: string): Promise<void> {
  const zerocopy = { mode, pin: true } as ZerocopyOptions;
  const client = connect({ port: Number(port), host, zerocopy });
  await once(client, 'connect');
  // What makes the wire peer answer; others just read it.
  client.write(numbers(8));
  await once(createInterface({ input: process.stdin }), 'line');
  let at = 8;
  const phase = async (): Promise<void> => {
    // One after the other, so that each has a record of its own.
    for (const end = at + PHASE_BYTES; at < end; at += PIECE) await client.send(numbers(PIECE, at));
    say({ ...client.stats().zerocopy, lending: client.stats().lending });
  };
  await phase();
  const coming = phase();
  const tap = native().socket(AF_PACKET, SOCK_RAW, ALL_PROTOCOLS);
  assert.ok(tap >= 0);
  await coming;
  await phase();
  const going = phase();
  native().close(tap);
  await going;
  client.destroy();
  process.stdin.destroy();
}

async function receive(bytes: string): Promise<void> {
  const { fd, port } = listen('0.0.0.0');
  say({ port });
  const peer = new RawPeer(await acceptOne(fd));
  await peer.read(Number(bytes));
  say({ total: peer.total });
  peer.close();
  native().close(fd);
}

const [mode = '', ...args] = process.argv.slice(2);
if (mode === 'send') await send(...(args as [string, string, string]));
else await receive(args[0] as string);
