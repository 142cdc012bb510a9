/** Where MAC addresses are said to be, and for how long. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { EVERYBODY, PEER_AGE_MS, VxlanPeers } from '../../src/ports/vxlan-peers.ts';

function mac(last: number, first = 2): Uint8Array {
  return Uint8Array.of(0xee, first, 0xff, 0x80, last >>> 16, last >>> 8, last);
}

describe('remote ends of addresses', () => {
  it('are learned, and move with the address', () => {
    const peers = new VxlanPeers();
    assert.equal(peers.lookUp(mac(1), 1, 0), EVERYBODY);
    peers.learn(mac(1), 1, 3, 0);
    peers.learn(mac(2), 1, 0, 0);
    assert.equal(peers.lookUp(mac(1), 1, 0), 3);
    assert.equal(peers.lookUp(mac(2), 1, 0), 0);
    peers.learn(mac(1), 1, 5, 10);
    assert.equal(peers.lookUp(mac(1), 1, 10), 5);
    assert.equal(peers.size, 2);
  });

  it('are forgotten after five minutes of silence', () => {
    const peers = new VxlanPeers();
    peers.learn(mac(1), 1, 3, 0);
    assert.equal(peers.lookUp(mac(1), 1, PEER_AGE_MS), 3);
    assert.equal(peers.lookUp(mac(1), 1, PEER_AGE_MS + 1), EVERYBODY);
  });

  it('are not those of groups', () => {
    const peers = new VxlanPeers();
    peers.learn(mac(1, 3), 1, 3, 0);
    assert.equal(peers.size, 0);
    assert.equal(peers.lookUp(mac(1, 3), 1, 0), EVERYBODY);
  });

  it('are bounded, and the silent give way', () => {
    const peers = new VxlanPeers(100);
    for (let i = 0; i < 1000; i++) peers.learn(mac(i), 1, 1, 0);
    assert.equal(peers.size, 100);
    assert.equal(peers.lookUp(mac(99), 1, 0), 1);
    assert.equal(peers.lookUp(mac(100), 1, 0), EVERYBODY);
    peers.learn(mac(99), 1, 2, PEER_AGE_MS);
    for (let i = 500; i < 700; i++) peers.learn(mac(i), 1, 1, PEER_AGE_MS + 1);
    assert.equal(peers.size, 100);
    assert.equal(peers.lookUp(mac(500), 1, PEER_AGE_MS + 1), 1);
    assert.equal(peers.lookUp(mac(99), 1, PEER_AGE_MS + 1), 2);
  });
});
