/**
 * Sends under a limit that the parent set for this process: `node limits.js <MiB> <pieceBytes>` writes so much in one go
 * over loopback, lending by force, and prints what became of it as JSON. Exit code 0 means that everything arrived.
 */
import assert from 'node:assert/strict';
import { channelPair, closeChannels, lend, receive, write } from '../../support/channels.ts';

const [mib = '1', pieceBytes = '1048576'] = process.argv.slice(2);
const bytes = Number(mib) * (1 << 20);
const pair = await channelPair();
const lent = lend(bytes);
const received = receive(pair.peer, bytes);
await write(pair, lent, Number(pieceBytes));
assert.equal((await received).total, bytes);
await pair.watched.until(() => lent.outcomes.length > 0);
assert.equal(lent.outcomes.length, 1);
assert.equal(pair.channel.outstanding, 0);
process.stdout.write(JSON.stringify({ ...pair.counters, outcome: lent.outcomes[0] }));
closeChannels();
