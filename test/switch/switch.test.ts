import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { StormLimits } from '../../src/switch/storm.ts';
import { Switch, type SwitchOptions } from '../../src/switch/switch.ts';
import type { SwitchPortOptions } from '../../src/switch/switch-port.ts';
import { FakePort } from './fake-port.ts';
import { type Frame, GuestTable } from './guest-table.ts';
import { BROADCAST, frame, mac, tcp } from './packets.ts';
import { VirtualClock } from './virtual-clock.ts';

function join(ports: number, options: Partial<SwitchOptions> = {}, each: readonly SwitchPortOptions[] = []) {
  const clock = new VirtualClock();
  const lan = new Switch({ clock, ...options });
  const joined = Array.from({ length: ports }, (_, i) => {
    const port = new FakePort(`p${i}`);
    lan.add(port, each[i] ?? {});
    return port;
  });
  return { clock, lan, ports: joined, counters: (i: number) => lan.stats().ports[`p${i}`]! };
}

const from = (source: number, to: Uint8Array, length = 64): Frame => ({
  bytes: frame(to, mac(source), length),
});
const counts = (ports: readonly FakePort[]): number[] => ports.map((port) => port.take().length);

describe('a switch', () => {
  it('floods what it does not know, and forwards what it has learned', () => {
    const { ports, counters } = join(4);
    const [a, b] = ports as [FakePort, FakePort, FakePort, FakePort];
    a.offer([from(1, mac(2))]);
    assert.deepEqual(counts(ports), [0, 1, 1, 1]);
    b.offer([from(2, mac(1))]);
    assert.deepEqual(counts(ports), [1, 0, 0, 0]);
    a.offer([from(1, mac(2)), from(1, BROADCAST), from(1, mac(2))]);
    assert.deepEqual(counts(ports), [0, 3, 1, 1]);
    assert.equal(counters(0).ingress.forwarded, 2);
    assert.equal(counters(0).ingress.flooded, 2);
  });

  it('gives each port one batch, in order', () => {
    const { ports } = join(3);
    const [a, b, c] = ports as [FakePort, FakePort, FakePort];
    b.offer([from(2, mac(9))]);
    c.offer([from(3, mac(9))]);
    counts(ports);
    b.batches.length = 0;
    c.batches.length = 0;
    const to = [2, 3, 2, 255, 3, 2];
    a.offer(to.map((n, i) => from(1, n === 255 ? BROADCAST : mac(n), 60 + i)));
    assert.deepEqual([b.batches, c.batches], [[4], [3]]);
    assert.deepEqual(
      b.sent.map(({ bytes }) => bytes.length),
      [60, 62, 63, 65],
    );
    assert.deepEqual(
      c.sent.map(({ bytes }) => bytes.length),
      [61, 63, 64],
    );
  });

  it('never sends a frame back to where it came from', () => {
    const { ports, counters } = join(2);
    ports[0]!.offer([from(1, BROADCAST), from(2, mac(1))]);
    assert.deepEqual(counts(ports), [0, 1]);
    assert.equal(counters(0).ingress.dropped.hairpin, 1);
  });

  it('drops what bridges do not forward, and sources that are none', () => {
    const { ports, counters } = join(2);
    const reserved = (last: number): Uint8Array => Uint8Array.of(1, 0x80, 0xc2, 0, 0, last);
    ports[0]!.offer([
      from(1, reserved(0)),
      from(1, reserved(0x0f)),
      from(1, reserved(0x10)),
      { bytes: frame(mac(2), BROADCAST) },
      { bytes: frame(mac(2), Uint8Array.of(1, 0, 0, 0, 0, 1)) },
      { bytes: frame(mac(2), new Uint8Array(6)) },
      { bytes: frame(mac(2), mac(1)).slice(0, 13) },
      { ...from(1, BROADCAST), status: 14 },
    ]);
    assert.deepEqual(counts(ports), [0, 1]);
    const { linkLocal, badSource, malformed } = counters(0).ingress.dropped;
    assert.deepEqual([linkLocal, badSource, malformed], [2, 3, 2]);
  });

  it('drops and counts what a port does not take, and nothing of the other ports', () => {
    const { ports, counters } = join(3);
    ports[1]!.room = 2;
    ports[0]!.offer([from(1, BROADCAST), from(1, BROADCAST), from(1, BROADCAST)]);
    assert.deepEqual(counts(ports), [0, 2, 3]);
    assert.equal(counters(1).egress.dropped.full, 1);
    assert.deepEqual([counters(1).egress.frames, counters(1).egress.bytes], [2, 128]);
    assert.equal(counters(2).egress.frames, 3);
  });

  it('drops the rest of a frame that it segments when the port is full, and goes on with the next', () => {
    const { ports, counters } = join(2);
    const { bytes, transportAt } = tcp({ version: 4, payload: new Uint8Array(30_000) });
    bytes.set(BROADCAST);
    const vnet = { flags: 1, gsoType: 1, gsoSize: 100, csumStart: transportAt, csumOffset: 16 };
    ports[1]!.change({ capability: { offloads: 0 } });
    ports[1]!.room = 5;
    ports[0]!.offer([{ bytes, vnet }, from(1, BROADCAST)]);
    ports[1]!.room = 1000;
    ports[0]!.offer([from(1, BROADCAST, 77)]);
    assert.deepEqual(
      ports[1]!.sent.map(({ bytes }) => bytes.length),
      [154, 154, 154, 154, 154, 77],
    );
    const { frames, segmented, reworkedSent, reworkedDropped, dropped } = counters(1).egress;
    assert.deepEqual([frames, segmented, reworkedSent, reworkedDropped, dropped.full], [2, 1, 5, 295, 1]);
  });

  it('lets several ports hold one tail, by reference', () => {
    const { ports } = join(4);
    for (const port of ports.slice(1, 3)) port.lends = true;
    const guest = new GuestTable([from(1, BROADCAST, 1500), from(1, BROADCAST, 200)]);
    assert.equal(ports[0]!.offer(guest), 2);
    assert.equal(ports[1]!.held.length, 1);
    assert.equal(ports[1]!.held[0], ports[2]!.held[0]);
    assert.deepEqual(guest.lent.get(0)!.borrowers, [ports[1], ports[2]]);
    guest.done();
    ports[1]!.held[0]!.unref();
    assert.deepEqual(guest.released, []);
    ports[2]!.held[0]!.unref();
    assert.deepEqual(guest.released, [0]);
  });

  it('asks again for frames that came from within a send()', () => {
    const { clock, ports, counters } = join(2);
    const [a, b] = ports as [FakePort, FakePort];
    let answer = [from(2, mac(1))];
    const offered: number[] = [];
    b.onResume = () => {
      b.onSend = null;
      offered.push(b.offer(answer));
      answer = [];
    };
    b.onSend = () => offered.push(b.offer(answer));
    a.offer([from(1, mac(2))]);
    assert.deepEqual(offered, [0]);
    assert.equal(b.resumed, 0);
    clock.advance(1);
    assert.deepEqual([offered, b.resumed], [[0, 1], 1]);
    assert.equal(a.sent.length, 1);
    assert.equal(counters(1).ingress.frames, 1);
    assert.equal(clock.pending, 0);
  });

  it('lets a port go, also from within a send()', () => {
    const { lan, ports } = join(3);
    const [a, b, c] = ports as [FakePort, FakePort, FakePort];
    b.offer([from(2, mac(9))]);
    counts(ports);
    b.onSend = () => lan.remove(c);
    a.offer([from(1, BROADCAST)]);
    assert.deepEqual(counts(ports), [0, 1, 0]);
    assert.equal(c.receiver, null);
    lan.remove(b);
    a.offer([from(1, mac(2))]);
    assert.deepEqual(counts(ports), [0, 0, 0]);
    assert.deepEqual(Object.keys(lan.stats().ports), ['p0']);
    lan.add(c);
    a.offer([from(1, mac(2))]);
    assert.deepEqual(counts(ports), [0, 0, 1]);
    lan.close();
    assert.ok(ports.every(({ receiver, onChange }) => receiver === null && onChange === null));
  });

  it('has each port once, and each name', () => {
    const { lan, ports } = join(1);
    assert.throws(() => lan.add(ports[0]!), { code: 'ZTX_PORT_TAKEN' });
    assert.throws(() => lan.add(new FakePort('p0')), { code: 'ZTX_PORT_TAKEN' });
    assert.throws(() => new Switch({ clock: new VirtualClock(), macLimit: 0 }), { code: 'ERR_OUT_OF_RANGE' });
  });

  it('notices what a port can do by now', () => {
    const { ports, counters } = join(2);
    ports[0]!.offer([from(1, BROADCAST, 2000)]);
    assert.equal(counters(1).egress.dropped.tooLong, 1);
    ports[1]!.change({ capability: { mtu: 9000 } });
    ports[0]!.offer([from(1, BROADCAST, 2000)]);
    assert.equal(ports[1]!.sent.length, 1);
  });
});

describe('what a switch has learned', () => {
  it('is forgotten after its age, unless it was seen again', () => {
    const { clock, lan, ports } = join(3, { macAgeMs: 1000 });
    ports[1]!.offer([from(2, mac(9)), from(3, mac(9))]);
    clock.advance(600);
    ports[1]!.offer([from(3, mac(9))]);
    clock.advance(401);
    counts(ports);
    ports[0]!.offer([from(1, mac(2))]);
    assert.deepEqual(counts(ports), [0, 1, 1]);
    ports[0]!.offer([from(1, mac(3))]);
    assert.deepEqual(counts(ports), [0, 1, 0]);
    const known = lan.fdb().map(({ mac, port, ageMs }) => [mac, port, ageMs]);
    assert.deepEqual(known.sort(), [
      ['02:00:00:00:00:01', 'p0', 0],
      ['02:00:00:00:00:03', 'p1', 401],
    ]);
  });

  it('is forgotten when the port goes down, and frames to it are dropped', () => {
    const { ports, counters, lan } = join(3);
    ports[1]!.offer([from(2, mac(9))]);
    counts(ports);
    ports[1]!.change({ isUp: false });
    assert.equal(lan.stats().fdb.entries, 0);
    ports[0]!.offer([from(1, mac(2)), from(1, BROADCAST)]);
    assert.deepEqual(counts(ports), [0, 0, 2]);
    ports[1]!.change({ isUp: true });
    ports[1]!.isUp = false;
    ports[0]!.offer([from(1, BROADCAST)]);
    assert.equal(counters(1).egress.dropped.down, 1);
  });

  it('moves with a station, and moves are counted', () => {
    const { ports, counters, lan } = join(3);
    ports[1]!.offer([from(2, mac(9))]);
    ports[2]!.offer([from(2, mac(9))]);
    counts(ports);
    ports[0]!.offer([from(1, mac(2))]);
    assert.deepEqual(counts(ports), [0, 0, 1]);
    assert.equal(counters(2).learning.moved, 1);
    assert.equal(lan.stats().fdb.moves, 1);
  });

  it('is looked up again when the same frame comes from elsewhere, or its port is gone', () => {
    const { ports, lan } = join(4);
    const [a, b, c, d] = ports as [FakePort, FakePort, FakePort, FakePort];
    b.offer([from(2, mac(9))]);
    a.offer([from(1, mac(2))]);
    c.offer([from(1, mac(2))]);
    counts(ports);
    d.offer([from(4, mac(1))]);
    assert.deepEqual(counts(ports), [0, 0, 1, 0]);
    lan.remove(c);
    d.offer([from(4, mac(1))]);
    assert.deepEqual(counts(ports), [1, 1, 0, 0]);
  });

  it('is bounded per port and in all: one that makes up addresses keeps nobody else out', () => {
    const { ports, counters, lan } = join(3, { macLimit: 100, portMacLimit: 40 });
    const many = Array.from({ length: 200 }, (_, i) => from(100 + i, BROADCAST));
    ports[0]!.offer(many);
    assert.equal(lan.stats().fdb.entries, 40);
    assert.equal(counters(0).learning.full, 160);
    ports[1]!.offer([from(2, mac(9))]);
    counts(ports);
    ports[2]!.offer([from(3, mac(2))]);
    assert.deepEqual(counts(ports), [0, 1, 0]);
  });

  it('makes room of what is too old', () => {
    const { clock, ports, counters, lan } = join(2, { macLimit: 40, portMacLimit: 40, macAgeMs: 2000 });
    ports[0]!.offer(Array.from({ length: 40 }, (_, i) => from(100 + i, BROADCAST)));
    clock.advance(2001);
    ports[0]!.offer([from(1, BROADCAST)]);
    assert.equal(counters(0).learning.full, 0);
    assert.deepEqual(lan.stats().fdb, { entries: 1, moves: 0, aged: 40 });
  });
});

describe('a port that is held to its addresses', () => {
  const held: readonly SwitchPortOptions[] = [{ macs: ['02:00:00:00:00:01', '02:00:00:00:00:02'] }];

  it('cannot send from others', () => {
    const { ports, counters } = join(2, {}, held);
    ports[0]!.offer([from(1, mac(9)), from(2, mac(9)), from(3, mac(9))]);
    assert.equal(ports[1]!.sent.length, 2);
    assert.equal(counters(0).ingress.dropped.spoofed, 1);
  });

  it('cannot be robbed of them, and is known from the beginning', () => {
    const { clock, ports, counters } = join(3, { macAgeMs: 1000 }, held);
    ports[1]!.offer([from(1, BROADCAST), from(9, mac(1))]);
    assert.deepEqual(counts(ports), [1, 0, 0]);
    assert.equal(counters(1).ingress.dropped.spoofed, 1);
    clock.advance(5000);
    ports[0]!.change({ isUp: false });
    ports[0]!.change({ isUp: true });
    ports[1]!.offer([from(9, mac(2))]);
    assert.deepEqual(counts(ports), [1, 0, 0]);
  });

  it('has addresses that no other port has, of one station each, in every VLAN of it', () => {
    const { lan } = join(1, {}, [{ macs: ['02:00:00:00:00:01'], vlan: { trunk: [5, 6] } }]);
    assert.equal(lan.stats().fdb.entries, 2);
    assert.throws(
      () =>
        lan.add(new FakePort('other'), {
          macs: ['02:00:00:00:00:07', '02:00:00:00:00:01'],
          vlan: { access: 6 },
        }),
      { code: 'ZTX_MAC_TAKEN' },
    );
    assert.equal(lan.stats().fdb.entries, 2);
    lan.add(new FakePort('elsewhere'), { macs: ['02:00:00:00:00:01'], vlan: { access: 7 } });
    for (const macs of [[], ['ff:ff:ff:ff:ff:ff'], ['01:00:5e:00:00:01'], ['nonsense']]) {
      assert.throws(() => lan.add(new FakePort('bad'), { macs }), { code: 'ERR_INVALID_ARG_TYPE' });
    }
  });
});

describe('a storm', () => {
  const storm = {
    broadcast: { framesPerSecond: 100, burstFrames: 10 },
    multicast: { framesPerSecond: 1000 },
    unknown: { framesPerSecond: 10, burstFrames: 1 },
  };
  const group = Uint8Array.of(1, 0, 0x5e, 0, 0, 1);
  const many = (to: Uint8Array, n: number): Frame[] => Array.from({ length: n }, () => from(1, to));

  it('is cut to its rate, each kind on its own, and known addresses not at all', () => {
    const { clock, ports, counters } = join(2, { storm });
    ports[1]!.offer([from(2, BROADCAST)]);
    ports[0]!.offer([...many(BROADCAST, 20), ...many(group, 200), ...many(mac(9), 3), ...many(mac(2), 50)]);
    assert.equal(ports[1]!.take().length, 10 + 100 + 1 + 50);
    assert.equal(counters(0).ingress.dropped.storm, 10 + 100 + 2);
    for (let second = 0; second < 5; second++) {
      for (let tick = 0; tick < 100; tick++) {
        clock.advance(10);
        ports[0]!.offer(many(BROADCAST, 7));
      }
      assert.ok(Math.abs(ports[1]!.take().length - 100) <= 1);
    }
  });

  it('of one port leaves the others what is theirs, and a port may have limits of its own', () => {
    const { ports } = join(3, { storm }, [
      {},
      { storm: { broadcast: { framesPerSecond: 0, burstFrames: 2 } } },
    ]);
    ports[0]!.offer(many(BROADCAST, 50));
    ports[1]!.offer([from(2, BROADCAST), from(2, BROADCAST), from(2, BROADCAST)]);
    assert.equal(ports[2]!.take().length, 12);
  });

  it('has the burst and no more after a quiet time', () => {
    const { clock, ports } = join(2, { storm });
    clock.advance(3_600_000);
    ports[0]!.offer(many(BROADCAST, 50));
    assert.equal(ports[1]!.take().length, 10);
  });

  it('has no limit of nonsense', () => {
    const clock = new VirtualClock();
    const make = (storm: unknown): Switch => new Switch({ clock, storm: storm as StormLimits });
    assert.throws(() => make({ broadcast: { framesPerSecond: -1 } }), { code: 'ERR_OUT_OF_RANGE' });
    assert.throws(() => make({ broadcast: 1000 }), {
      code: 'ERR_INVALID_ARG_TYPE',
      message: /storm\.broadcast.* an object such as \{ framesPerSecond: 1000 \}/,
    });
    assert.throws(() => make(1000), { code: 'ERR_INVALID_ARG_TYPE' });
  });
});
