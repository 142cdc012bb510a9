/** Flows of frames: what belongs together, and what need not. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { FrameTable, frameTableBytes } from '../../src/core/frames.ts';
import { flowHash } from '../../src/wire/flow.ts';

function hash(bytes: Uint8Array): number {
  const options = { frames: 1, segments: 0, headBytes: 256 };
  const table = new FrameTable(new ArrayBuffer(frameTableBytes(options)), options, {
    lend: () => null,
    gather: () => 0,
  });
  table.addHead(bytes.length);
  table.bytes.set(bytes, table.headAt(0));
  return flowHash(table, 0);
}

interface Fields {
  readonly source?: number;
  readonly port?: number;
  readonly payload?: number;
  readonly fragment?: number;
  readonly protocol?: number;
}

function ipv4({ source = 1, port = 1000, payload = 0, fragment = 0, protocol = 6 }: Fields): Uint8Array {
  const out = new Uint8Array(60);
  out.set([0x08, 0x00, 0x45], 12);
  out.set([fragment >> 8, fragment & 0xff], 20);
  out[23] = protocol;
  out.set([10, 0, 0, source, 10, 0, 0, 9], 26);
  out.set([port >> 8, port & 0xff, 0, 80], 34);
  out[50] = payload;
  return out;
}

function ipv6({ source = 1, port = 1000, payload = 0, protocol = 17 }: Fields): Uint8Array {
  const out = new Uint8Array(80);
  out.set([0x86, 0xdd, 0x60], 12);
  out[20] = protocol;
  out[37] = source;
  out.set([port >> 8, port & 0xff, 0, 80], 54);
  out[70] = payload;
  return out;
}

describe('the flow of a frame', () => {
  for (const [name, make] of Object.entries({ ipv4, ipv6 })) {
    it(`is its addresses and ports: ${name}`, () => {
      const flow = hash(make({}));
      assert.equal(hash(make({ payload: 7 })), flow);
      assert.notEqual(hash(make({ source: 2 })), flow);
      assert.notEqual(hash(make({ port: 1001 })), flow);
      assert.notEqual(hash(make({ protocol: name === 'ipv4' ? 17 : 6 })), flow);
    });
  }

  it('has no ports where there are none, or not in every fragment', () => {
    assert.equal(hash(ipv4({ protocol: 1, port: 1 })), hash(ipv4({ protocol: 1, port: 2 })));
    assert.equal(hash(ipv4({ fragment: 0x2000, port: 1 })), hash(ipv4({ fragment: 0x0010, port: 2 })));
  });

  it('spreads over a few queues', () => {
    const queues = new Set(Array.from({ length: 64 }, (_, i) => hash(ipv4({ port: 1024 + i })) % 4));
    assert.equal(queues.size, 4);
  });

  it('is found in frames of any length', () => {
    for (let length = 0; length <= 60; length++) {
      assert.ok(hash(ipv4({}).subarray(0, length)) >= 0);
      assert.ok(hash(ipv6({}).subarray(0, length)) >= 0);
    }
  });
});
