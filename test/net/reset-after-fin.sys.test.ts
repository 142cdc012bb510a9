/**
 * A peer that closes under traffic says FIN, and RST to what reaches it afterwards. Behind a FIN the kernel's recvmsg only
 * says "end of stream": the channel must tell of the reset all the same, or its owner waits for acknowledgements in vain.
 */
import assert from 'node:assert/strict';
import { afterEach, it } from 'node:test';
import { errnoOf } from '../../src/core/errors.ts';
import { native } from '../../src/sys/binding.ts';
import { SHUT_WR } from '../../src/sys/constants.ts';
import { channelPair, closeChannels } from '../support/channels.ts';
import { DEADLINE_MS } from '../support/sockets.ts';

const into = [Buffer.alloc(64)];
const piece = [Buffer.alloc(64 * 1024)];

afterEach(closeChannels);

for (const halfClosed of [false, true]) {
  const name = `a reset after the peer's FIN is met by reading${halfClosed ? ', also behind our own FIN' : ''}`;
  it(name, { timeout: 2 * DEADLINE_MS }, async () => {
    const { channel, watched, peer, resetPeer } = await channelPair();
    // More than the peer takes without reading, so that something is always on its way.
    while (channel.send(piece, 1, false) > 0);
    assert.equal(native().shutdown(peer, SHUT_WR), 0);
    await watched.until(() => channel.readv(into, 1) === 0);
    if (halfClosed) channel.shutdownWrite();
    assert.equal(channel.readv(into, 1), 0, 'no error yet');
    const events = watched.events.length;
    resetPeer();
    await watched.until(() => watched.events.slice(events).includes('readable'));
    const errors = [-errnoOf('EPIPE'), -errnoOf('ECONNRESET')];
    assert.ok(errors.includes(channel.readv(into, 1)));
    assert.ok(channel.ackedBytes() < channel.writtenBytes);
  });
}
