/**
 * What an RDS peer says before anything is sent to it: an empty congestion map, and the answer to the handshake's ping.
 *
 * The wire peer sends these bytes and is then believed to be an RDS peer that never says anything again; RDS over TCP
 * needs nothing more, as its messages are acknowledged by TCP (docs/rds-wire.md). The dialling side's first bytes are
 * its own congestion map.
 */

const HEADER_BYTES = 48;
const MAP_BYTES = 8192;
const NPATHS = 5;

/** Bytes of a congestion message: what the sender sends before it waits for the peer. */
export const CONGESTION_MESSAGE_BYTES: number = HEADER_BYTES + MAP_BYTES;

/** Congestion message and handshake pong, as a Linux 6.x peer with one lane sends them. */
export function rdsGreeting(): Buffer {
  const map = Buffer.alloc(CONGESTION_MESSAGE_BYTES);
  map.writeUInt32BE(MAP_BYTES, 16); // h_len
  map[24] = 0x01; // h_flags: CONG_BITMAP
  const pong = Buffer.alloc(HEADER_BYTES);
  pong.writeUInt32BE(1, 4); // h_sequence
  pong.writeUInt16BE(0, 20); // h_sport
  pong.writeUInt16BE(1, 22); // h_dport
  pong[32] = NPATHS; // h_exthdr
  pong.writeUInt16BE(1, 33);
  return Buffer.concat([map, pong]);
}
