/**
 * Devices that are attacked, and the witness: a second device in the same process with a guest that does everything right, and must
 * go on to. What is opened here is closed by endScenes(), which also asks whether anything was left behind.
 */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { createHostTable } from '../../src/core/host-table.ts';
import { VhostUserDevice } from '../../src/vhost/device.ts';
import type { VhostUserDeviceOptions } from '../../src/vhost/device-options.ts';
import {
  type GuestOptions,
  HostileGuest,
  PAYLOAD,
  Recorder,
  soon,
  turn,
  VNET_BYTES,
} from './hostile-guest.ts';
import { RawFrontend } from './vhost-peer.ts';
import { newPath } from './vhost-scene.ts';

export interface Scene {
  readonly device: VhostUserDevice;
  readonly recorder: Recorder;
  readonly broken: { readonly ring: number; readonly reason: string }[];
  readonly failures: Error[];
  /** A guest whose rings run. */
  boot(options?: GuestOptions): Promise<HostileGuest>;
  /** A guest that has said nothing yet. */
  guest(options?: GuestOptions): HostileGuest;
  /** Only a socket. */
  connect(): RawFrontend;
}

/** Before the first scene of a test: descriptors, mappings. What this process opens once, it has opened in the first test. */
let before: { fds: number; maps: number } | null = null;
let isFirst = true;

const open: { scene: Scene; guests: HostileGuest[]; fronts: RawFrontend[] }[] = [];

export async function openScene(options: Partial<VhostUserDeviceOptions> = {}): Promise<Scene> {
  before ??= { fds: openFds(), maps: guestMappings() };
  const device = new VhostUserDevice({ path: newPath(), ...options });
  const guests: HostileGuest[] = [];
  const fronts: RawFrontend[] = [];
  const guest = (given?: GuestOptions): HostileGuest => {
    const made = new HostileGuest(device.path, given);
    guests.push(made);
    return made;
  };
  const scene: Scene = {
    device,
    recorder: new Recorder(device),
    broken: [],
    failures: [],
    guest,
    boot: async (given) => {
      const made = guest(given);
      await made.boot();
      return made;
    },
    connect: () => {
      const front = RawFrontend.connect(device.path);
      fronts.push(front);
      return front;
    },
  };
  device.on('broken', (ring, reason) => scene.broken.push({ ring, reason }));
  device.on('failure', (error) => scene.failures.push(error));
  open.push({ scene, guests, fronts });
  await device.open();
  return scene;
}

/** Ends all guests, then all devices; what was lent comes back last. Then nothing may be left of them. */
export async function endScenes(): Promise<void> {
  for (const { scene, guests, fronts } of open.splice(0)) {
    for (const guest of guests) guest.end();
    for (const front of fronts) front.close();
    await turn();
    await scene.device.close();
    scene.recorder.release();
  }
  const { fds, maps } = before ?? { fds: Number.POSITIVE_INFINITY, maps: Number.POSITIVE_INFINITY };
  before = null;
  // Some are closed, and what is large is unmapped, by other threads.
  await soon(`no more than ${maps} mappings are left`, () => guestMappings() <= maps);
  if (!isFirst) await soon(`no more than ${fds} descriptors are left`, () => openFds() <= fds);
  isFirst = false;
}

/** A guest that does nothing wrong. */
export class Witness {
  readonly scene: Scene;
  readonly guest: HostileGuest;
  #seed = 0;

  private constructor(scene: Scene, guest: HostileGuest) {
    this.scene = scene;
    this.guest = guest;
  }

  static async arrive(): Promise<Witness> {
    const scene = await openScene();
    return new Witness(scene, await scene.boot());
  }

  /** A frame there, and one back. */
  async testifies(): Promise<void> {
    const { guest, scene } = this;
    const { frames } = scene.recorder;
    this.#seed += 1;
    const frame = frameOf(700, this.#seed);
    guest.tx.driver.reap();
    guest.rx.driver.reap();
    const came = frames.length;
    guest.send(frame);
    await soon('the frame of the witness', () => frames.length > came);
    assert.deepEqual(frames.pop()?.bytes, frame);
    await soon('its descriptor', () => guest.tx.driver.reap().length === 1);
    guest.post(PAYLOAD + 0x1000, 2000);
    assert.equal(deliver(scene, frame), 1);
    await soon('the frame for the witness', () => guest.rx.driver.reap().length === 1);
    assert.deepEqual(guest.read(PAYLOAD + 0x1000 + VNET_BYTES, frame.length), frame);
    assert.deepEqual([scene.broken, scene.failures], [[], []]);
  }
}

/** Gives one frame of the host's to the guest of a scene. 1: it took it. */
export function deliver({ device }: Scene, frame: Uint8Array): number {
  const table = createHostTable(1, frame.length);
  table.addHead(frame.length);
  table.bytes.set(frame, table.headAt(0));
  return device.send(table, Uint32Array.of(0), 0, 1);
}

/** A frame whose bytes tell where they are from. */
export function frameOf(bytes: number, seed = 0): Uint8Array {
  return Uint8Array.from({ length: bytes }, (_, i) => (i * 7 + seed * 13 + 1) & 0xff);
}

/** Descriptors of this process, without the one that looks. */
export function openFds(): number {
  return readdirSync('/proc/self/fd').length - 1;
}

/** Mappings of guests' memory. */
export function guestMappings(): number {
  return readFileSync('/proc/self/maps', 'utf8')
    .split('\n')
    .filter((line) => line.includes('memfd:hostile')).length;
}
