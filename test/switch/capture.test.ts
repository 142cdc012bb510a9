import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Link } from '../../src/switch/link.ts';
import { type CapturedFrame, type CaptureOptions, withCapture } from '../../src/switch/middleware/pcap.ts';
import { Switch } from '../../src/switch/switch.ts';
import { readPackets } from '../support/pcap.ts';
import { FakePort } from './fake-port.ts';
import type { Frame } from './guest-table.ts';
import { BROADCAST, frame, hex, mac } from './packets.ts';
import { VirtualClock } from './virtual-clock.ts';

class CalendarClock extends VirtualClock {
  readonly epochMs = 1_700_000_000_000.75;
}

function listen(options: Partial<CaptureOptions> = {}) {
  const clock = new CalendarClock();
  const chunks: Uint8Array[] = [];
  const seen: [string, CapturedFrame][] = [];
  const host = new FakePort('host');
  const inner = new FakePort('inner');
  const port = withCapture(inner, {
    clock,
    write: (chunk) => chunks.push(chunk.slice()),
    onFrame: (bytes, frame) => seen.push([hex(bytes), frame]),
    ...options,
  });
  const packets = () => readPackets(Buffer.concat(chunks));
  return { clock, host, inner, port, seen, packets };
}

const one = (n: number, length = 64): Frame => ({ bytes: frame(mac(2), mac(n), length) });

describe('a capture', () => {
  it('has the frames of both directions, heads and tails, and their times', () => {
    const { clock, host, inner, port, seen, packets } = listen();
    new Link(host, port, { clock });
    const frames = [one(1), one(2, 1400), one(3, 300)];
    host.offer(frames);
    clock.advance(0.000_5);
    inner.offer([one(4)]);
    const all = packets();
    assert.deepEqual(
      all.map(({ frame }) => hex(frame)),
      [...frames, one(4)].map(({ bytes }) => hex(bytes)),
    );
    assert.equal(all[0]!.timeUs, 1_700_000_001_000_750);
    assert.deepEqual(
      seen.map(([, { direction, seconds, nanoseconds, frameBytes }]) => [
        direction,
        seconds,
        nanoseconds,
        frameBytes,
      ]),
      [
        ['tx', 1_700_000_001, 750_000, 64],
        ['tx', 1_700_000_001, 750_000, 1400],
        ['tx', 1_700_000_001, 750_000, 300],
        ['rx', 1_700_000_001, 750_499, 64],
      ],
    );
    assert.deepEqual(
      seen.map(([bytes]) => bytes),
      all.map(({ frame }) => hex(frame)),
    );
  });

  it('cuts frames to the snap length', () => {
    const { clock, host, port, packets } = listen({ snapBytes: 100 });
    new Link(host, port, { clock });
    host.offer([one(1, 60), one(2, 1400)]);
    assert.deepEqual(
      packets().map(({ frame, wireBytes }) => [frame.length, wireBytes]),
      [
        [60, 60],
        [100, 1400],
      ],
    );
  });

  it('has a frame once, however often it is offered', () => {
    const { clock, host, inner, port, packets } = listen();
    new Link(host, port, { clock });
    inner.room = 1;
    const frames = [one(1), one(2), one(3)];
    assert.equal(host.offer(frames), 1);
    inner.makeRoom(10);
    assert.equal(host.offer(frames.slice(1)), 2);
    host.room = 1;
    assert.equal(inner.offer(frames), 1);
    host.makeRoom(10);
    assert.equal(inner.offer(frames.slice(1)), 2);
    assert.deepEqual(
      packets().map(({ frame }) => frame[11]),
      [1, 2, 3, 1, 2, 3],
    );
  });

  it('has tags as they were on the line', () => {
    const { clock, host, inner, port, packets } = listen();
    const lan = new Switch({ clock });
    lan.add(host, { vlan: { access: 5 } });
    lan.add(port, { vlan: { trunk: [5] } });
    const tagged = frame(BROADCAST, mac(1), 68, [5]);
    inner.offer([{ bytes: tagged }]);
    host.offer([{ bytes: host.take()[0]!.bytes.with(11, 9) }]);
    assert.deepEqual(
      packets().map(({ frame }) => hex(frame)),
      [hex(tagged), hex(tagged.with(11, 9))],
    );
  });

  it('has many frames, and large ones', () => {
    const { clock, host, inner, port, packets } = listen({ onFrame: () => undefined });
    new Link(host, port, { clock });
    inner.change({ capability: { mtu: 65_535 } });
    host.offer(Array.from({ length: 200 }, (_, i) => one(i, i % 50 === 0 ? 60_000 : 64)));
    assert.deepEqual(
      packets().map(({ wireBytes }) => wireBytes),
      Array.from({ length: 200 }, (_, i) => (i % 50 === 0 ? 60_000 : 64)),
    );
  });

  it('has not what cannot be read, and is whole when frames come from within a send()', () => {
    const { clock, host, inner, port, packets } = listen();
    new Link(host, port, { clock });
    inner.onSend = () => {
      inner.onSend = null;
      inner.offer([one(9)]);
    };
    host.offer([one(1), { ...one(2, 1000), gatherError: -14 }, { ...one(3), status: 14 }, one(4)]);
    assert.deepEqual(
      packets().map(({ frame }) => frame[11]),
      [9, 1, 4],
    );
  });

  it('is a file before there is a frame, opens and closes with its port, and is asked for', async () => {
    const { inner, port, packets } = listen();
    assert.deepEqual(packets(), []);
    await port.open();
    assert.ok(inner.isOpen);
    await port.close();
    assert.ok(!inner.isOpen);
    assert.equal(port.counters, inner.counters);
    const clock = new VirtualClock();
    assert.throws(() => withCapture(new FakePort('x'), { clock }), { code: 'ERR_INVALID_ARG_TYPE' });
    assert.throws(() => withCapture(new FakePort('x'), { clock, write: () => undefined, snapBytes: 0 }), {
      code: 'ERR_OUT_OF_RANGE',
    });
  });
});
