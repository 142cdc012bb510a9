/** When TCP has let go of withdrawn memory, on virtual time and with tables made up. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ReleaseQueue } from '../../../src/core/releases.ts';
import type { TcpSocketInfo } from '../../../src/rds/info.ts';
import { Settling } from '../../../src/rds/kernel/settling.ts';
import type { Runtime } from '../../../src/rds/transport.ts';

const PEER = '10.0.0.2';

function lane(
  lastSeenUna: number,
  lastExpectedUna: number,
  overrides: Partial<TcpSocketInfo> = {},
): TcpSocketInfo {
  return {
    ...{ localAddress: '10.0.0.1', localPort: 40_000, remoteAddress: PEER, remotePort: 16_385 },
    ...{ headerBytesLeft: 48, dataBytesLeft: 0, lastSentNext: lastExpectedUna },
    ...{ lastExpectedUna: lastExpectedUna >>> 0, lastSeenUna: lastSeenUna >>> 0 },
    ...overrides,
  };
}

class Scene {
  connections: TcpSocketInfo[] | null = [];
  readonly released: string[] = [];
  looks = 0;
  #now = 0;
  #timers: { at: number; task: () => void }[] = [];
  readonly settling: Settling;

  constructor() {
    const runtime: Runtime = {
      now: () => this.#now,
      defer: (task) => task(),
      yield: (task) => task(),
      timer: (task, delayMs) => {
        const timer = { at: this.#now + delayMs, task };
        this.#timers.push(timer);
        return { cancel: () => this.#timers.splice(this.#timers.indexOf(timer), 1) };
      },
      random: () => 0.5,
      releases: new ReleaseQueue((flush) => flush()),
    };
    this.settling = new Settling(runtime, () => {
      this.looks += 1;
      return this.connections;
    });
  }

  add(name: string, address: string = PEER): void {
    this.settling.add(address, 100, () => this.released.push(name));
  }

  pass(ms: number): void {
    const end = this.#now + ms;
    for (;;) {
      const next = this.#timers.filter(({ at }) => at <= end).sort((a, b) => a.at - b.at)[0];
      if (next === undefined) break;
      this.#timers.splice(this.#timers.indexOf(next), 1);
      this.#now = next.at;
      next.task();
    }
    this.#now = end;
  }

  get timers(): number {
    return this.#timers.length;
  }
}

describe('withdrawn memory', () => {
  it('is free at once when no connection holds anything', () => {
    const scene = new Scene();
    scene.add('none');
    scene.connections = [lane(500, 500), lane(9, 5000, { remoteAddress: '10.0.0.3' })];
    scene.add('all acknowledged');
    assert.deepEqual(scene.released, ['none', 'all acknowledged']);
    assert.equal(scene.timers, 0);
  });

  it('is held until the peer has acknowledged what was written by then, on every lane', () => {
    const scene = new Scene();
    scene.connections = [lane(100, 200), lane(1, 9000, { localPort: 40_001 })];
    scene.add('first');
    assert.equal(scene.settling.bytes, 100);
    scene.connections = [lane(250, 300), lane(8999, 9000, { localPort: 40_001 })];
    scene.pass(500);
    assert.deepEqual(scene.released, []);
    // The other lane has more to send by now, which does not matter.
    scene.connections = [lane(250, 9000), lane(9000, 12_000, { localPort: 40_001 })];
    scene.pass(500);
    assert.deepEqual(scene.released, ['first']);
    assert.equal(scene.settling.bytes, 0);
    assert.equal(scene.timers, 0);
  });

  it('is free when the connection is gone, or another one has its place', () => {
    const scene = new Scene();
    scene.connections = [lane(100, 200)];
    scene.add('gone');
    scene.connections = [lane(5, 10, { localPort: 50_000 })];
    scene.pass(10);
    assert.deepEqual(scene.released, ['gone']);
  });

  it('positions wrap', () => {
    const scene = new Scene();
    scene.connections = [lane(0xffffff00, 0x100)];
    scene.add('wrapped');
    scene.connections = [lane(0xffffffff, 0x100)];
    scene.pass(10);
    assert.deepEqual(scene.released, []);
    scene.connections = [lane(0x100, 0x100)];
    scene.pass(100);
    assert.deepEqual(scene.released, ['wrapped']);
  });

  it('a position far away is one of an earlier connection, which is gone', () => {
    const scene = new Scene();
    scene.connections = [lane(0, 2 ** 30)];
    scene.add('earlier');
    assert.deepEqual(scene.released, ['earlier']);
  });

  it('link-local addresses are compared without their zone', () => {
    const scene = new Scene();
    scene.connections = [lane(1, 2, { remoteAddress: 'fe80::2' })];
    scene.add('zoned', 'fe80::2%eth0');
    assert.deepEqual(scene.released, []);
    scene.connections = [];
    scene.pass(10);
    assert.deepEqual(scene.released, ['zoned']);
  });

  it('is held while the kernel does not tell, and from then on by what it tells', () => {
    const scene = new Scene();
    scene.connections = null;
    scene.add('unknown');
    scene.pass(500);
    scene.connections = [lane(100, 200)];
    scene.pass(500);
    assert.deepEqual(scene.released, []);
    scene.connections = [lane(200, 300)];
    scene.pass(500);
    assert.deepEqual(scene.released, ['unknown']);
  });

  it('looks often at first, and then ten times a second', () => {
    const scene = new Scene();
    scene.connections = [lane(1, 2)];
    scene.add('slow');
    const before = scene.looks;
    scene.pass(1000);
    assert.ok(scene.looks - before <= 18, `${scene.looks - before}`);
  });

  it('is not looked after by a timer any more after a minute, but when there is progress', () => {
    const scene = new Scene();
    scene.connections = [lane(1, 2)];
    scene.add('stuck');
    scene.pass(61_000);
    const { bytes, quarantinedBytes } = scene.settling;
    assert.deepEqual({ bytes, quarantinedBytes }, { bytes: 0, quarantinedBytes: 100 });
    assert.equal(scene.timers, 0);
    scene.settling.progress();
    assert.deepEqual(scene.released, []);
    scene.connections = [lane(2, 90)];
    scene.settling.progress();
    assert.deepEqual(scene.released, ['stuck']);
    assert.equal(scene.settling.quarantinedBytes, 0);
  });
});
