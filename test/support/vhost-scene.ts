/** A vhost-user server with hosts that only keep what they are given, and the moments when it changes. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after } from 'node:test';
import { native } from '../../src/sys/binding.ts';
import { type ServerOptions, type ServerState, VhostServer } from '../../src/vhost/server.ts';
import type { Answer, RingStart, SessionHost } from '../../src/vhost/session-host.ts';
import * as vhost from '../../src/wire/vhost-user.ts';
import type { RawFrontend } from './vhost-peer.ts';
import { PLAIN_FEATURES, u64 } from './vhost-session.ts';

const folder = mkdtempSync(join(tmpdir(), 'zerotx-vhost-'));
after(() => rmSync(folder, { recursive: true }));

let paths = 0;

/** In a folder that goes with the test. */
export function newPath(): string {
  paths += 1;
  return join(folder, `socket-${paths}`);
}

/** Closes what it is given, and keeps the rest in mind. */
export class SceneHost implements SessionHost {
  readonly rings: Map<number, RingStart> = new Map();
  readonly fds: number[] = [];
  error: Error | null | undefined;
  stop: (() => Promise<number>) | null = null;
  readonly rarps: Uint8Array[] = [];

  setFeatures(): number {
    return 0;
  }

  startRing(ring: RingStart): void {
    this.rings.set(ring.index, ring);
  }

  ringMoved(): void {}

  stopRing(index: number): number | Promise<number> {
    this.rings.delete(index);
    return this.stop === null ? 5 : this.stop();
  }

  enableRing(): Answer {
    return 0;
  }

  setKick(_index: number, fd: number): number {
    return this.#keep(fd);
  }

  setCall(_index: number, fd: number): number {
    return this.#keep(fd);
  }

  setErr(_index: number, fd: number): number {
    return this.#keep(fd);
  }

  setStatus(): void {}

  reset(): void {}

  sendRarp(mac: Uint8Array): number {
    this.rarps.push(mac);
    return 0;
  }

  setMtu(): number {
    return 0;
  }

  config(): Uint8Array {
    return new Uint8Array(12);
  }

  closed(error: Error | null): void {
    this.error = error;
    this.rings.clear();
    for (const fd of this.fds) native().close(fd);
  }

  #keep(fd: number): number {
    if (fd >= 0) this.fds.push(fd);
    return 0;
  }
}

/** A server, its hosts, and the moments when it changes. */
export class Scene {
  readonly hosts: SceneHost[] = [];
  readonly server: VhostServer;
  readonly path: string;
  readonly #waiting: { state: ServerState; resolve: () => void }[] = [];

  constructor(role: 'listen' | 'connect', options: Partial<ServerOptions> = {}) {
    this.path = options.path ?? newPath();
    this.server = new VhostServer({
      offer: { frontend: 'qemu', pairs: 1, offloads: 15 },
      connected: () => {
        const host = new SceneHost();
        this.hosts.push(host);
        return host;
      },
      role,
      ...options,
      path: this.path,
    });
    this.server.onState = (state) => {
      for (const waiting of this.#waiting.splice(0)) {
        if (waiting.state === state) waiting.resolve();
        else this.#waiting.push(waiting);
      }
    };
  }

  get host(): SceneHost {
    return this.hosts.at(-1) as SceneHost;
  }

  /** Resolves when the server is in `state`. */
  async is(state: ServerState): Promise<void> {
    if (this.server.state === state) return;
    await new Promise<void>((resolve) => this.#waiting.push({ state, resolve }));
  }
}

/** A front-end's first words. */
export async function greet(front: RawFrontend): Promise<void> {
  assert.equal((vhost.decodeU64(await front.ask(1))?.lo ?? 0) >>> 30, 1);
  front.say(16, await front.ask(15));
  front.say(3);
  assert.equal(await front.ack(2, u64(PLAIN_FEATURES)), 0);
}
