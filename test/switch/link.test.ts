import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { OFFLOAD_CSUM } from '../../src/core/port.ts';
import { Link } from '../../src/switch/link.ts';
import { FakePort } from './fake-port.ts';
import { type Frame, GuestTable } from './guest-table.ts';
import { frame, hex, mac, segments, type TcpOptions, tcp } from './packets.ts';
import { VirtualClock } from './virtual-clock.ts';

const seed = process.env.FC_SEED === undefined ? Date.now() : Number(process.env.FC_SEED);

function join(offloads = 15) {
  const clock = new VirtualClock();
  const a = new FakePort('a');
  const b = new FakePort('b', { offloads });
  const link = new Link(a, b, { clock });
  return { a, b, clock, link };
}

const short = (n: number): Frame => ({ bytes: frame(mac(2), mac(1), 60 + n) });
const packet: TcpOptions = { version: 4, payload: new Uint8Array(60_000).map((_, i) => i * 5) };
const large = (): Frame => {
  const { bytes, transportAt } = tcp(packet);
  return { bytes, vnet: { flags: 1, gsoType: 1, gsoSize: 100, csumStart: transportAt, csumOffset: 16 } };
};

describe('a link', () => {
  it('hands everything from each port to the other, and learns nothing', () => {
    const { a, b, link } = join();
    a.offer([short(0), { bytes: frame(mac(1), mac(1)) }, { bytes: frame(mac(1), mac(2), 64, [5, 6]) }]);
    b.offer([short(0)]);
    assert.deepEqual([a.sent.length, b.sent.length], [1, 3]);
    const [there, back] = link.counters;
    assert.deepEqual([there.frames, there.egress.frames, back.frames, back.bytes], [3, 3, 1, 60]);
  });

  it('takes as many as the other port, and has the rest offered again', () => {
    const { a, b, link } = join();
    b.room = 2;
    const bad: Frame = { bytes: new Uint8Array(5) };
    assert.equal(a.offer([bad, short(1), bad, short(2), bad, short(3), bad]), 5);
    assert.equal(a.offer([short(3), bad]), 0);
    assert.equal(a.resumed, 0);
    a.onResume = () => assert.equal(a.offer([short(3), bad]), 2);
    b.makeRoom(10);
    assert.equal(a.resumed, 1);
    assert.deepEqual(
      b.sent.map(({ bytes }) => bytes.length),
      [61, 62, 63],
    );
    assert.deepEqual([link.counters[0].frames, link.counters[0].dropped.malformed], [7, 4]);
    assert.equal(link.counters[0].egress.dropped.full, 0);
    b.makeRoom(10);
    assert.equal(a.resumed, 1);
  });

  it('goes on in the middle of a frame that it segments, in order', () => {
    const { a, b, link } = join(0);
    b.room = 0;
    // The frame is taken, since its bytes are copied; what comes after it is not.
    assert.equal(a.offer([large(), short(1)]), 1);
    assert.equal(b.sent.length, 0);
    a.onResume = () => a.offer([short(1)]);
    const expected = segments(packet, 100);
    let rounds = 0;
    for (; a.resumed === 0 && rounds < 200; rounds++) b.makeRoom(7);
    assert.ok(rounds >= expected.length / 7);
    b.makeRoom(10);
    assert.deepEqual(
      b.sent.map(({ bytes }) => hex(bytes)),
      [...expected.map(({ bytes }) => hex(bytes)), hex(short(1).bytes)],
    );
    assert.deepEqual(
      [link.counters[0].egress.reworkedSent, link.counters[0].egress.reworkedDropped],
      [600, 0],
    );
  });

  it('drops into a port without carrier, and lets the other go on', () => {
    const { a, b, link } = join(0);
    b.room = 0;
    a.offer([large(), short(1)]);
    b.change({ isUp: false });
    assert.equal(a.resumed, 1);
    assert.equal(link.counters[0].egress.reworkedDropped, 600);
    assert.equal(a.offer([short(1), large()]), 2);
    assert.equal(link.counters[0].egress.dropped.down, 2);
    b.room = Number.POSITIVE_INFINITY;
    b.change({ isUp: true });
    assert.equal(a.offer([short(2)]), 1);
    assert.equal(b.sent.length, 1);
  });

  it('asks again for frames that came from within a send()', () => {
    const { a, b, clock } = join();
    const offered: number[] = [];
    a.onSend = () => {
      a.onSend = null;
      // a -> b is idle: it may answer at once. But b -> a is not.
      offered.push(a.offer([short(1)]), b.offer([short(2)]));
    };
    b.onResume = () => offered.push(b.offer([short(2)]));
    b.offer([short(0)]);
    assert.deepEqual(offered, [1, 0]);
    clock.advance(1);
    assert.deepEqual(offered, [1, 0, 1]);
    assert.deepEqual([a.sent.length, b.sent.length, clock.pending], [2, 1, 0]);
  });

  it('lends through, and lets go', () => {
    const { a, b, link, clock } = join();
    b.lends = true;
    const guest = new GuestTable([{ bytes: frame(mac(2), mac(1), 1400) }]);
    a.offer(guest);
    guest.done();
    assert.deepEqual(guest.lent.get(0)!.borrowers, [b]);
    b.held[0]!.unref();
    assert.deepEqual(guest.released, [0]);
    link.close();
    assert.ok(
      [a, b].every(({ receiver, onWritable, onChange }) =>
        [receiver, onWritable, onChange].every((f) => f === null),
      ),
    );
    assert.throws(() => new Link(a, a, { clock }), { code: 'ZTX_PORT_TAKEN' });
    const again = new Link(a, b, { clock });
    assert.throws(() => new Link(a, new FakePort('c'), { clock }), { code: 'ZTX_PORT_TAKEN' });
    again.close();
  });

  it('loses and repeats nothing, whatever room there is and whenever', () => {
    const cases = fc.record({
      kinds: fc.array(fc.constantFrom('short', 'large', 'bad'), { maxLength: 25, size: 'max' }),
      rooms: fc.array(fc.constantFrom(0, 1, 5, 130, 700), { maxLength: 60, size: 'max' }),
      offloads: fc.constantFrom(0, OFFLOAD_CSUM, 15),
    });
    fc.assert(
      fc.property(cases, ({ kinds, rooms, offloads }) => {
        const { a, b, link } = join(offloads);
        let queue = kinds.map((kind, i): Frame => {
          return kind === 'short' ? short(i) : kind === 'large' ? large() : { bytes: new Uint8Array(3) };
        });
        const offer = (): void => {
          if (queue.length > 0) queue = queue.slice(a.offer(queue));
        };
        a.onResume = offer;
        b.room = 0;
        offer();
        for (const room of [...rooms, 100_000]) b.makeRoom(room);
        assert.equal(queue.length, 0);
        const per = offloads === 15 ? 1 : 600;
        const expected = kinds.flatMap((kind, i) =>
          kind === 'short'
            ? [60 + i]
            : kind === 'large'
              ? Array<number>(per).fill(per === 1 ? 60_054 : 154)
              : [],
        );
        assert.deepEqual(
          b.sent.map(({ bytes }) => bytes.length),
          expected,
        );
        const { frames, dropped, egress } = link.counters[0];
        assert.equal(frames, kinds.length);
        assert.equal(frames, egress.frames + dropped.malformed);
      }),
      { seed, numRuns: 60 },
    );
  });
});
