import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Native } from '../../src/sys/binding.ts';
import { Reactor } from '../../src/sys/reactor.ts';

/** The reactor's part of the addon: keeps what was registered, and fires batches on demand. */
class FakeSet {
  readonly tokens = new Map<number, number>();
  refed = false;
  removed: number[] = [];
  #out: Uint32Array = new Uint32Array();
  #callback: (count: number) => void = () => {};

  readonly native: Native = {
    reactorStart: (out: Uint32Array, callback: (count: number) => void) => {
      this.#out = out;
      this.#callback = callback;
      return 0;
    },
    reactorAdd: (fd: number, token: number) => {
      this.tokens.set(fd, token);
      return 0;
    },
    reactorRemove: (fd: number) => {
      this.removed.push(fd);
      return this.tokens.delete(fd) ? 0 : -2;
    },
    reactorRef: (on: boolean) => {
      this.refed = on;
    },
  } as unknown as Native;

  /** Delivers (token, events) pairs in one batch. */
  fire(...pairs: readonly (readonly [token: number, events: number])[]): void {
    this.#out.set(pairs.flat());
    this.#callback(pairs.length);
  }

  token(fd: number): number {
    return this.tokens.get(fd) as number;
  }
}

describe('reactor', () => {
  it('gives each registration its events', () => {
    const set = new FakeSet();
    const reactor = new Reactor(set.native);
    const seen: string[] = [];
    reactor.add(5, 1, (events) => seen.push(`5:${events}`));
    reactor.add(6, 1, (events) => seen.push(`6:${events}`));
    set.fire([set.token(6), 4], [set.token(5), 1], [set.token(6), 8]);
    assert.deepEqual(seen, ['6:4', '5:1', '6:8']);
  });

  it('drops an event fetched for a descriptor that was closed and reused since', () => {
    const set = new FakeSet();
    const reactor = new Reactor(set.native);
    const seen: string[] = [];
    const old = reactor.add(6, 1, () => seen.push('old'));
    const stale = set.token(6);
    reactor.add(5, 1, () => {
      old.remove();
      reactor.add(6, 1, () => seen.push('new'));
    });
    set.fire([set.token(5), 1], [stale, 1]);
    assert.deepEqual(seen, []);
    set.fire([stale, 1], [set.token(6), 1]);
    assert.deepEqual(seen, ['new']);
  });

  it('never takes the new owner of a descriptor out of the set', () => {
    const set = new FakeSet();
    const reactor = new Reactor(set.native);
    const old = reactor.add(6, 1, () => {});
    // close(2) without remove(): the kernel forgets the descriptor by itself.
    set.tokens.delete(6);
    let seen = 0;
    reactor.add(6, 1, () => {
      seen += 1;
    });
    old.remove();
    old.ref();
    assert.deepEqual(set.removed, []);
    set.fire([set.token(6), 1]);
    assert.equal(seen, 1);
    assert.equal(reactor.size, 1);
  });

  it('goes on when a handler throws, and reports every error', async () => {
    const set = new FakeSet();
    const reactor = new Reactor(set.native);
    const seen: number[] = [];
    const errors: unknown[] = [];
    for (const fd of [5, 6, 7, 8]) {
      reactor.add(fd, 1, () => {
        seen.push(fd);
        if (fd < 7) throw new Error(`of ${fd}`);
      });
    }
    const thrown: (() => void)[] = [];
    const original = globalThis.queueMicrotask;
    globalThis.queueMicrotask = (task) => thrown.push(task);
    try {
      set.fire(...[5, 6, 7, 8].map((fd) => [set.token(fd), 1] as const));
    } finally {
      globalThis.queueMicrotask = original;
    }
    for (const task of thrown) assert.throws(task, (error) => errors.push(error) > 0);
    assert.deepEqual(seen, [5, 6, 7, 8]);
    assert.deepEqual(errors.map(String), ['Error: of 5', 'Error: of 6']);
  });

  it('keeps the loop alive while something is refed', () => {
    const set = new FakeSet();
    const reactor = new Reactor(set.native);
    const a = reactor.add(5, 1, () => {});
    const b = reactor.add(6, 1, () => {});
    assert.equal(set.refed, true);
    a.unref();
    a.unref();
    assert.equal(set.refed, true);
    b.remove();
    assert.equal(set.refed, false);
    a.ref();
    assert.equal(set.refed, true);
    a.remove();
    a.ref();
    assert.equal(set.refed, false);
    assert.equal(reactor.size, 0);
  });

  it('throws what the kernel refuses, and keeps nothing of it', () => {
    const set = new FakeSet();
    const reactor = new Reactor({ ...set.native, reactorAdd: () => -17 } as Native);
    assert.throws(() => reactor.add(5, 1, () => {}), { code: 'EEXIST', syscall: 'epoll_ctl' });
    assert.equal(reactor.size, 0);
    assert.equal(set.refed, false);
  });
});
