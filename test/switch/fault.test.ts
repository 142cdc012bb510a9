import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { Link } from '../../src/switch/link.ts';
import { FaultPort, withFaults } from '../../src/switch/middleware/fault.ts';
import type { FaultCounters, Faults } from '../../src/switch/middleware/fault-path.ts';
import { Switch } from '../../src/switch/switch.ts';
import { FakePort } from './fake-port.ts';
import { type Frame, GuestTable } from './guest-table.ts';
import { frame, hex, mac, segments, tcp } from './packets.ts';
import { VirtualClock } from './virtual-clock.ts';

const seed = process.env.FC_SEED === undefined ? Date.now() : Number(process.env.FC_SEED);

function line(faults: { readonly tx?: Faults; readonly rx?: Faults }, seed = 7) {
  const clock = new VirtualClock();
  const host = new FakePort('host');
  const inner = new FakePort('inner');
  const faulty = withFaults(inner, { clock, seed, ...faults });
  const link = new Link(host, faulty, { clock });
  return { clock, host, inner, faulty, link };
}

const numbered = (n: number, length = 64): Frame => {
  const bytes = frame(mac(2), mac(1), length);
  bytes[20] = n;
  bytes[21] = n >>> 8;
  return { bytes };
};
const many = (n: number, length = 64): Frame[] => Array.from({ length: n }, (_, i) => numbered(i, length));
const numbers = (port: FakePort): number[] => port.take().map(({ bytes }) => bytes[20]! | (bytes[21]! << 8));

function conserve(counters: FaultCounters, held: number): void {
  const { frames, duplicated, segments, lost, unreadable, overflowed, delivered, discarded } = counters;
  assert.equal(frames + duplicated + segments, lost + unreadable + overflowed + delivered + discarded + held);
}

describe('a line with faults', () => {
  it('delays, and keeps the order whatever the jitter', () => {
    const { clock, host, inner } = line({ tx: { delayMs: 20, jitterMs: 15 } });
    const arrived: number[] = [];
    for (let i = 0; i < 100; i++) {
      host.offer([numbered(i)]);
      clock.advance(1);
      arrived.push(...numbers(inner));
    }
    assert.ok(arrived.length > 50 && arrived.length < 100);
    clock.advance(35);
    arrived.push(...numbers(inner));
    assert.deepEqual(
      arrived,
      Array.from({ length: 100 }, (_, i) => i),
    );
    assert.equal(clock.pending, 0);
  });

  it('is as late as it is told', () => {
    const { clock, host, inner } = line({ tx: { delayMs: 20 } });
    host.offer(many(3));
    clock.advance(19.9);
    assert.equal(inner.sent.length, 0);
    clock.advance(0.1);
    assert.deepEqual([numbers(inner), inner.batches], [[0, 1, 2], [3]]);
  });

  it('loses and repeats about as many as it is told, and the same ones again with the same seed', () => {
    const run = (seed: number): number[] => {
      const { host, inner, faulty } = line({ tx: { lossPercent: 10, duplicatePercent: 5 } }, seed);
      for (let i = 0; i < 20; i++) host.offer(many(1000).slice(i * 50, i * 50 + 50));
      const { lost, duplicated } = faulty.faults.tx!;
      assert.ok(Math.abs(lost - 100) < 40 && Math.abs(duplicated - 45) < 30, `${lost} ${duplicated}`);
      return numbers(inner);
    };
    assert.deepEqual(run(1), run(1));
    assert.notDeepEqual(run(1), run(2));
  });

  it('lets some be overtaken', () => {
    const { clock, host, inner, faulty } = line({ tx: { delayMs: 5, reorderPercent: 20, reorderMs: 3 } });
    for (let i = 0; i < 200; i++) {
      host.offer([numbered(i)]);
      clock.advance(1);
    }
    clock.advance(20);
    const arrived = numbers(inner);
    const late = arrived.filter((n, i) => arrived.slice(0, i).some((before) => before > n));
    assert.equal(late.length, faulty.faults.tx!.reordered);
    assert.ok(late.length > 15 && late.length < 70);
    assert.deepEqual(
      [...arrived].sort((a, b) => a - b),
      Array.from({ length: 200 }, (_, i) => i),
    );
  });

  it('sends the punctual ones on time when one before them is held', () => {
    const { clock, host, inner } = line({ tx: { delayMs: 5, reorderPercent: 50, reorderMs: 10 } });
    // The first that is held sets a timer; whatever comes next is due before.
    for (let i = 0; i < 10; i++) host.offer([numbered(i)]);
    clock.advance(5);
    const punctual = numbers(inner);
    assert.ok(punctual.length > 0 && punctual.length < 10);
    clock.advance(10);
    assert.equal(numbers(inner).length, 10 - punctual.length);
  });

  it('has a rate, and a queue with an end', () => {
    const { clock, host, inner, faulty } = line({ tx: { bytesPerSecond: 100_000, queueBytes: 2000 } });
    host.offer(many(30, 100));
    // 20 wait; each takes a millisecond.
    assert.equal(faulty.faults.tx!.overflowed, 10);
    clock.advance(5);
    assert.deepEqual(numbers(inner), [0, 1, 2, 3, 4]);
    host.offer([numbered(100, 100), numbered(101, 600)]);
    assert.equal(faulty.faults.tx!.overflowed, 11);
    clock.advance(100);
    assert.equal(numbers(inner).length, 16);
    host.offer(many(1, 100));
    clock.advance(0.9);
    assert.equal(inner.sent.length, 0);
    clock.advance(0.2);
    assert.equal(inner.sent.length, 1);
  });

  it('turns one bit around', () => {
    const { host, inner, faulty } = line({ tx: { corruptPercent: 100 } });
    host.offer(many(50));
    const sent = inner.take();
    for (const [i, { bytes }] of sent.entries()) {
      const wrong = bytes.reduce((sum, byte, at) => sum + ones(byte ^ numbered(i).bytes[at]!), 0);
      assert.equal(wrong, 1);
    }
    assert.deepEqual([sent.length, faulty.faults.tx!.corrupted], [50, 50]);
  });

  it('damages what goes over the wire: checksums are made before, segments too', () => {
    const payload = new Uint8Array(30_000).fill(0x33);
    const { bytes, transportAt } = tcp({ version: 4, payload });
    const vnet = { flags: 1, gsoType: 1, gsoSize: 100, csumStart: transportAt, csumOffset: 16 };
    const { clock, host, inner, faulty } = line({ tx: { corruptPercent: 100, delayMs: 1 } });
    host.offer([{ bytes, vnet }]);
    assert.equal(faulty.faults.tx!.segments, 299);
    conserve(faulty.faults.tx!, 300);
    clock.advance(1);
    const sent = inner.take();
    const expected = segments({ version: 4, payload }, 100);
    assert.equal(sent.length, 300);
    assert.equal(sent.filter(({ bytes }, i) => hex(bytes) !== hex(expected[i]!.bytes)).length, 1);
    assert.ok(sent.every(({ vnet }) => vnet.flags === 0 && vnet.gsoType === 0));
  });

  it('carries what a frame asks for', () => {
    const { bytes, transportAt } = tcp({ version: 6, payload: new Uint8Array(40_000) });
    const vnet = { flags: 1, gsoType: 4, hdrLen: 74, gsoSize: 1400, csumStart: transportAt, csumOffset: 16 };
    const { clock, host, inner } = line({ tx: { delayMs: 1 } });
    host.offer([{ bytes, vnet }]);
    clock.advance(1);
    assert.deepEqual(inner.sent, [{ bytes, vnet }]);
  });

  it('keeps nothing of what was lent, and says so', () => {
    const { host, inner, faulty } = line({ tx: { delayMs: 5 } });
    inner.lends = true;
    inner.change({ capability: { zeroCopy: 'always' } });
    assert.equal(faulty.capability.zeroCopy, 'never');
    assert.equal(faulty.capability, faulty.capability);
    const guest = new GuestTable([{ bytes: frame(mac(2), mac(1), 1000) }]);
    host.offer(guest);
    assert.equal(guest.lent.size, 0);
    assert.equal(
      withFaults(new FakePort('x', { zeroCopy: 'large' }), { clock: new VirtualClock() }).capability.zeroCopy,
      'large',
    );
  });

  it('waits for the port when it is full, without pushing back', () => {
    const { clock, host, inner, faulty } = line({ tx: { delayMs: 2 } });
    inner.room = 3;
    assert.equal(host.offer(many(10)), 10);
    clock.advance(10);
    assert.deepEqual(numbers(inner), [0, 1, 2]);
    assert.equal(clock.pending, 0);
    host.offer(many(1));
    assert.equal(clock.pending, 0);
    inner.makeRoom(5);
    assert.deepEqual(numbers(inner), [3, 4, 5, 6, 7]);
    clock.advance(10);
    inner.makeRoom(100);
    assert.deepEqual(numbers(inner), [8, 9, 0]);
    conserve(faulty.faults.tx!, 0);
  });

  it('is as bad the other way, and waits there for who receives', () => {
    const { clock, host, inner, faulty, link } = line({ rx: { delayMs: 2 } });
    host.room = 4;
    assert.equal(inner.offer(many(6)), 6);
    clock.advance(2);
    assert.deepEqual(numbers(host), [0, 1, 2, 3]);
    host.makeRoom(10);
    assert.deepEqual(numbers(host), [4, 5]);
    assert.equal(faulty.faults.tx, null);
    assert.equal(link.counters[1].frames, 6);
    host.offer(many(1));
    assert.equal(inner.sent.length, 1);
  });

  it('passes a direction without faults through, with its back-pressure', () => {
    const { host, inner } = line({ rx: { lossPercent: 1 } });
    inner.room = 1;
    assert.equal(host.offer(many(3)), 1);
    inner.makeRoom(5);
    assert.equal(host.resumed, 1);
  });

  it('drops what it holds when it closes, and what nobody receives', async () => {
    const { clock, host, inner, faulty, link } = line({ tx: { delayMs: 5 }, rx: { delayMs: 5 } });
    host.offer(many(3));
    inner.offer(many(2));
    link.close();
    clock.advance(1);
    inner.offer(many(1));
    await faulty.close();
    assert.equal(clock.pending, 0);
    assert.deepEqual([faulty.faults.tx!.discarded, faulty.faults.rx!.discarded], [3, 3]);
    const bare = new FakePort('bare');
    withFaults(bare, { clock });
    assert.equal(bare.offer(many(2)), 2);
    assert.equal(bare.counters.rxDropped, 2);
  });

  it('is bounded in what it holds', () => {
    const { host, faulty } = line({ tx: { delayMs: 1000, heldBytes: 1000 } });
    host.offer(many(100, 100));
    assert.equal(faulty.faults.tx!.overflowed, 90);
  });

  it('has no faults of nonsense', () => {
    const clock = new VirtualClock();
    const make = (tx: Faults) => () => new FaultPort(new FakePort('x'), { clock, tx });
    for (const tx of [
      { lossPercent: 101 },
      { delayMs: -1 },
      { bytesPerSecond: 0.5 },
      { jitterMs: Number.NaN },
    ]) {
      assert.throws(make(tx), { code: 'ERR_OUT_OF_RANGE' });
    }
    assert.throws(make({ delayMs: '5' as unknown as number }), { code: 'ERR_INVALID_ARG_TYPE' });
    const port = new FakePort('x');
    new Switch({ clock }).add(port);
    assert.throws(() => withFaults(port, { clock }), { code: 'ZTX_PORT_TAKEN' });
  });

  it('accounts for every frame, whatever the faults', () => {
    const percent = fc.constantFrom(0, 5, 50, 100);
    const faults = fc.record({
      lossPercent: percent,
      duplicatePercent: percent,
      corruptPercent: percent,
      reorderPercent: percent,
      delayMs: fc.constantFrom(0, 3),
      jitterMs: fc.constantFrom(0, 2, 9),
      bytesPerSecond: fc.constantFrom(0, 50_000),
      queueBytes: fc.constantFrom(500, 100_000),
      heldBytes: fc.constantFrom(3000, 1_000_000),
    });
    const steps = fc.array(
      fc.record({ frames: fc.nat(30), ms: fc.constantFrom(0, 1, 7), room: fc.constantFrom(0, 4, 10_000) }),
      { maxLength: 20, size: 'max' },
    );
    fc.assert(
      fc.property(faults, steps, fc.nat(), (tx, steps, seed) => {
        const { clock, host, inner, faulty } = line({ tx }, seed);
        const { bytes, transportAt } = tcp({ version: 4, payload: new Uint8Array(900) });
        const vnet = { flags: 1, gsoType: 1, gsoSize: 300, csumStart: transportAt, csumOffset: 16 };
        for (const { frames, ms, room } of steps) {
          inner.room = room;
          const batch = Array.from({ length: frames }, (_, i) =>
            i % 4 === 3 ? { bytes, vnet } : numbered(i),
          );
          assert.equal(host.offer(batch), frames);
          clock.advance(ms);
          inner.makeRoom(room);
        }
        conserve(faulty.faults.tx!, faulty.held.tx);
        inner.makeRoom(1_000_000);
        clock.advance(60_000);
        assert.equal(clock.pending, 0);
        conserve(faulty.faults.tx!, 0);
        assert.equal(inner.sent.length, faulty.faults.tx!.delivered);
      }),
      { seed, numRuns: 150 },
    );
  });
});

function ones(byte: number): number {
  return byte.toString(2).replaceAll('0', '').length;
}
