/**
 * Prints what doctor() finds, as JSON, in the situation that the arguments make:
 *
 *   tap            another process has a packet socket open that sees all that is sent: the parent of this one
 *   uid=<n>        as this user, who has no capabilities
 *   to=<host>, only=<ids>
 */
import { spawnSync } from 'node:child_process';
import { doctor, type Finding } from '../../../src/index.ts';
import { native } from '../../../src/sys/binding.ts';
import { SOCK_RAW } from '../../../src/sys/constants.ts';

const AF_PACKET = 17;
/** ETH_P_ALL in network order. */
const ALL_PROTOCOLS = 0x0300;

const given = new Map(process.argv.slice(2).map((arg) => arg.split('=') as [string, string | undefined]));
const [to, only, uid] = [given.get('to'), given.get('only')?.split(','), given.get('uid')];

if (given.has('tap')) {
  const fd = native().socket(AF_PACKET, SOCK_RAW, ALL_PROTOCOLS);
  if (fd < 0) throw new Error(`packet socket: ${fd}`);
  const rest = process.argv.slice(1).filter((arg) => arg !== 'tap');
  process.exit(spawnSync(process.execPath, rest, { stdio: 'inherit' }).status ?? 1);
}
if (uid !== undefined) {
  // Loaded before the files may be out of reach.
  native();
  process.setgroups?.([]);
  process.setgid?.(Number(uid));
  process.setuid?.(Number(uid));
}
const findings: Finding[] = [];
for await (const finding of doctor({
  ...(to === undefined ? {} : { to }),
  ...(only === undefined ? {} : { only }),
})) {
  findings.push(finding);
}
process.stdout.write(JSON.stringify({ parent: process.ppid, findings }));
