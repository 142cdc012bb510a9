/**
 * Lends memory, forgets everything about it, and has the collector run and the allocator hand out 50 MB of 0x5A, before
 * the peer reads: what it reads must be what was lent. Run as `node --expose-gc collected.js <memory> <ending>`.
 */
import assert from 'node:assert/strict';
import { releases } from '../../../src/core/releases.ts';
import { Ubuf } from '../../../src/core/ubuf.ts';
import { lend as lendMemory } from '../../../src/net/lending.ts';
import { SlabPool } from '../../../src/sys/slab.ts';
import { channelPair, closeChannels, fillPattern, receive } from '../../support/channels.ts';

const PIECE = 256 * 1024;
const [memory = '', ending = ''] = process.argv.slice(2);
const collect = globalThis.gc as () => void;

const sources: Record<string, () => Uint8Array> = {
  slab: () => new SlabPool({ slabBytes: PIECE }).take(PIECE)!.bytes,
  buffer: () => Buffer.alloc(PIECE),
  shared: () => new Uint8Array(new SharedArrayBuffer(PIECE)),
};

/** Lends until the peer's side is full; what is left of it is the channel alone, or not even that. */
async function lendAndForget(): Promise<{ peer: number; sent: number; copied: boolean }> {
  const pair = await channelPair({ receiveBytes: 64 * 1024 });
  let copied = false;
  for (let from = 0; ; from += PIECE) {
    const bytes = (sources[memory] as () => Uint8Array)();
    fillPattern(bytes, from);
    // Where this runtime cannot keep a buffer where it is, the piece is copied, and then nothing can go wrong.
    const lendable = lendMemory(bytes);
    copied ||= !lendable;
    const ubuf = new Ubuf([bytes], () => {}, releases);
    const n = lendable ? pair.channel.sendLent(ubuf, [bytes], 1) : pair.channel.send([bytes], 1, false);
    ubuf.unref();
    if (n < PIECE) break;
  }
  const sent = pair.channel.writtenBytes;
  if (!copied) assert.ok(pair.channel.outstanding > 0, 'the kernel still holds some of it');
  if (ending === 'closed') pair.channel.close();
  return { peer: pair.peer, sent, copied };
}

const { peer, sent, copied } = await lendAndForget();
const noise: Buffer[] = [];
for (let round = 0; round < 10; round++) {
  collect();
  for (let i = 0; i < 20; i++) noise.push(Buffer.alloc(PIECE, 0x5a));
  await new Promise((resolve) => setImmediate(resolve));
}
assert.equal(noise.length * PIECE, 50 << 20);
const { total, end } = await receive(peer, ending === 'closed' ? undefined : sent);
assert.equal(total, sent);
assert.equal(end, ending === 'closed' ? 0 : undefined);
closeChannels();
process.stdout.write(copied ? 'intact, copied' : 'intact');
