/**
 * The doors zerotx/vhost, zerotx/ports and zerotx/switch as a TypeScript program uses them: what matters here is that it compiles,
 * what the types refuse, and which values there are.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import * as ports from '../../src/ports/index.ts';
import {
  createDgram,
  createPcap,
  createStream,
  createVxlan,
  type DgramAddress,
  type Identity,
  type PortKind,
  parsePort,
  type StreamOptions,
  type ZerocopyCounters,
} from '../../src/ports/index.ts';
import * as switches from '../../src/switch/index.ts';
import {
  type Capability,
  type Clock,
  createHostTable,
  type FaultCounters,
  type Faults,
  FRAME_BYTES,
  FRAME_WORDS,
  type FrameOwner,
  type FrameReceiver,
  FrameTable,
  frameTableBytes,
  type Link,
  type LinkCounters,
  type Port,
  type PortCounters,
  portCounters,
  Switch,
  type SwitchPortCounters,
  type SwitchPortOptions,
  systemClock,
  TAIL_COUNT,
  type Ubuf,
  type VlanOptions,
  Wrapper,
  withCapture,
  withFaults,
} from '../../src/switch/index.ts';
import * as vhost from '../../src/vhost/index.ts';
import {
  type Agreement,
  type DeviceCounters,
  FRONTEND_FEATURES,
  type FrameSet,
  features,
  has,
  or,
  type PrepareOptions,
  type ServerState,
  type TransmitQueue,
  VhostUserDevice,
  type VhostUserDeviceOptions,
  type VhostUserDeviceStats,
  VhostUserFrontend,
  type VhostUserFrontendStats,
  VIRTIO_F_IN_ORDER,
  VNET_NEEDS_CSUM,
  type Vnet,
  without,
} from '../../src/vhost/index.ts';

const OFFLOADS = ['OFFLOAD_ALL', 'OFFLOAD_CSUM', 'OFFLOAD_ECN', 'OFFLOAD_TSO4', 'OFFLOAD_TSO6'];
const VNET = ['GSO_ECN', 'GSO_NONE', 'GSO_TCPV4', 'GSO_TCPV6', 'VNET_DATA_VALID', 'VNET_NEEDS_CSUM'];

/** What a program writes to have frames of its own. */
class OwnPort implements Port {
  readonly name: string;
  readonly capability: Capability = { zeroCopy: 'large', thresholdBytes: 4096, offloads: 0, mtu: 1500 };
  readonly counters: PortCounters = portCounters();
  receiver: FrameReceiver | null = null;
  onWritable: (() => void) | null = null;
  onChange: (() => void) | null = null;
  isUp = true;
  readonly held: Ubuf[] = [];
  readonly #table: FrameTable = createHostTable(4, 1518);

  constructor(name: string) {
    this.name = name;
  }

  send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    for (let i = from; i < count; i++) {
      const frame = which[i] as number;
      const bytes: number = table.records[frame * FRAME_WORDS + FRAME_BYTES] as number;
      if (table.records[frame * FRAME_WORDS + TAIL_COUNT] !== 0) {
        const loan = table.owner.lend(frame, this);
        if (loan !== null) this.held.push(loan.ref());
      }
      this.counters.txFrames += 1;
      this.counters.txBytes += table.owner.gather(frame, new Uint8Array(bytes));
    }
    return count;
  }

  give(frame: Uint8Array): boolean {
    this.#table.clear();
    const index = this.#table.addHead(frame.length);
    this.#table.bytes.set(frame, this.#table.headAt(index));
    return this.receiver?.(this.#table, this) === 1;
  }

  resume(): void {}
  async open(): Promise<void> {}
  async close(): Promise<void> {}
}

/** Middleware of a program: counts what goes by. */
class Counting extends Wrapper {
  seen = 0;

  override send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    this.seen += count - from;
    return super.send(table, which, from, count);
  }

  protected override received(table: FrameTable): number {
    this.seen += table.count;
    return super.received(table);
  }
}

describe('the doors export these values, and no more', () => {
  it('zerotx/vhost', () => {
    const wanted = [
      'FRONTEND_FEATURES',
      'FRONTEND_PROTOCOL_FEATURES',
      'VIRTIO_F_EVENT_IDX',
      'VIRTIO_F_INDIRECT_DESC',
      'VIRTIO_F_IN_ORDER',
      'VIRTIO_NET_F_MRG_RXBUF',
      'VhostUserDevice',
      'VhostUserFrontend',
      'ZerotxError',
      'features',
      'has',
      'or',
      'without',
    ];
    assert.deepEqual(Object.keys(vhost).sort(), [...wanted, ...OFFLOADS, ...VNET].sort());
  });

  it('zerotx/ports', () => {
    const classes = ['DgramPort', 'MacvtapPort', 'PcapPort', 'StreamPort', 'TapPort', 'VxlanPort'];
    const makers = classes.map((name) => `create${name.replace('Port', '')}`);
    const others = ['PORT_KINDS', 'ZerotxError', 'dropPrivileges', 'forbidNewPrivileges', 'parsePort'];
    assert.deepEqual(Object.keys(ports).sort(), [...classes, ...makers, ...others, ...OFFLOADS].sort());
  });

  it('zerotx/switch', () => {
    const words =
      'FRAME_BYTES FRAME_SLOT FRAME_STATUS FRAME_VLAN FRAME_WORDS HEADROOM_BYTES HEAD_AT HEAD_BYTES';
    const more = 'TAIL_COUNT TAIL_START VNET_CSUM VNET_FLAGS VNET_GSO';
    const others = [
      'CapturePort',
      'FaultPort',
      'FrameTable',
      'Link',
      'Switch',
      'Wrapper',
      'ZerotxError',
      'createHostTable',
      'frameTableBytes',
      'portCounters',
      'systemClock',
      'withCapture',
      'withFaults',
    ];
    const wanted = [...words.split(' '), ...more.split(' '), ...others, ...OFFLOADS, ...VNET];
    assert.deepEqual(Object.keys(switches).sort(), wanted.sort());
    assert.equal(switches.ZerotxError, vhost.ZerotxError);
    assert.equal(switches.ZerotxError, ports.ZerotxError);
  });
});

describe('a program', () => {
  it('has ports of its own, and middleware', () => {
    const clock: Clock = { now: () => 0, after: () => () => {}, soon: () => () => {} };
    const [a, b, c] = [new OwnPort('a'), new OwnPort('b'), new OwnPort('c')];
    const lan = new Switch({ clock, storm: { unknown: { framesPerSecond: 10, burstFrames: 5 } } });
    const vlan: VlanOptions = { trunk: [5, 6], native: 7 };
    const options: SwitchPortOptions = { vlan, macs: ['02:00:00:00:00:01'] };
    const tx: Faults = { lossPercent: 100, delayMs: 20 };
    const faulty = withFaults(b, { clock, tx });
    const counting = new Counting(c);
    lan.add(a, options);
    lan.add(faulty, { vlan: { access: 7 } });
    lan.add(withCapture(counting, { clock, onFrame: (bytes, { direction }) => [bytes.length, direction] }), {
      vlan: { access: 7 },
    });
    assert.ok(a.give(Buffer.from(`${'ff'.repeat(6)}020000000001${'88b5'}${'00'.repeat(46)}`, 'hex')));
    const counters: SwitchPortCounters | undefined = lan.stats().ports.a;
    assert.equal(counters?.ingress.flooded, 1);
    const faults: FaultCounters | null = faulty.faults.tx;
    assert.deepEqual([faults?.lost, faulty.held.tx, b.counters.txFrames, c.counters.txFrames], [1, 0, 0, 1]);
    assert.equal(counting.seen, 1);
    const owner: FrameOwner = { lend: () => null, gather: () => 0 };
    const size = { frames: 1, segments: 0, headBytes: 64 };
    assert.equal(new FrameTable(new ArrayBuffer(frameTableBytes(size)), size, owner).count, 0);
    // @ts-expect-error a VLAN is a number
    assert.throws(() => lan.add(new OwnPort('d'), { vlan: { access: '5' } }), {
      code: 'ERR_INVALID_ARG_TYPE',
    });
    // @ts-expect-error a switch is told the time
    assert.throws(() => new Switch(), { code: 'ERR_INVALID_ARG_TYPE' });
  });

  it('makes ports of each kind', () => {
    const clock: Clock = { now: () => 0, after: () => () => {}, soon: () => () => {} };
    const options: StreamOptions = { name: 's', port: 9, vnet: true, zerocopy: 'off', clock };
    const stream = createStream(options);
    const zerocopy: Readonly<ZerocopyCounters> = stream.zerocopy;
    assert.deepEqual([stream.listeningPort, zerocopy.lentBytes, stream.capability.offloads], [0, 0, 15]);
    const local: DgramAddress = { address: '127.0.0.1', port: 1 };
    assert.equal(createDgram({ name: 'd', local, remote: { address: '127.0.0.1', port: 2 } }).refused, 0);
    assert.equal(createVxlan({ name: 'v', vni: 1, remotes: ['127.0.0.2'] }).vxlan.flooded, 0);
    assert.equal(createPcap({ name: 'p', replay: 'none.pcap' }).failure, null);
    const kinds: readonly PortKind[] = ports.PORT_KINDS;
    const port: Port = parsePort(`${kinds[5]}:x.pcap,name=x`);
    assert.equal(port.name, 'x');
    // @ts-expect-error a user is a number or a name
    const identity: Identity = { uid: null };
    assert.equal(identity.uid, null);
    try {
      parsePort('pcap');
      assert.fail('no place');
    } catch (error) {
      if (!(error instanceof ports.ZerotxError)) throw error;
      const next: ports.Next = error.next;
      assert.deepEqual([error.code, next], ['EINVAL', 'fatal']);
    }
  });

  it('is a guest, and has one', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'zerotx-types-'));
    const path = join(folder, 'vm.sock');
    const options: VhostUserDeviceOptions = { path, name: 'vm', completion: 'copies-first', holdMs: 5 };
    const device = new VhostUserDevice(options);
    const states: ServerState[] = [];
    device.on('state', (state) => states.push(state));
    device.on('link', (up: boolean) => up);
    device.on('broken', (ring: number, reason: string) => [ring, reason]);
    device.on('failure', (error: Error) => error.message);
    // @ts-expect-error there is no such event
    device.on('close', () => {});
    const own = new OwnPort('own');
    const link: Link = new switches.Link(device, own, { clock: systemClock });
    await device.open();
    const asked = without(or(FRONTEND_FEATURES, features(VIRTIO_F_IN_ORDER)), features(0));
    const nic = await VhostUserFrontend.connect({
      path,
      features: asked,
      memoryBytes: 1 << 16,
      latency: true,
    });
    const vnet: Vnet = { flags: VNET_NEEDS_CSUM, csumStart: 14, csumOffset: 0 };
    nic.on('frame', (frame: Buffer, { gsoType }) => [frame, gsoType]);
    // @ts-expect-error a frame has bytes
    nic.on('frame', (frame: string) => frame);
    const plan: PrepareOptions = { frameBytes: 60, count: 2, fill: (frame, index) => frame.fill(index) };
    const set: FrameSet = nic.prepare(plan);
    const queue: TransmitQueue = nic.tx;
    assert.equal(queue.sendBatch(set, 3), 3);
    await nic.sendFrame(Buffer.alloc(60), {});
    assert.equal(vnet.csumStart, 14);
    const agreement: Agreement = nic.agreement;
    assert.equal(has(agreement.features, VIRTIO_F_IN_ORDER), true);
    const stats: VhostUserFrontendStats = nic.stats();
    assert.deepEqual([stats.transmit[0]?.sent, stats.transmit[0]?.latency?.count], [4, 4]);
    const told: VhostUserDeviceStats = device.stats();
    const details: DeviceCounters = told.details;
    assert.deepEqual([told.rxFrames, details.ledger.taken, details.ringsBroken], [4, 4, 0]);
    const [there]: readonly [LinkCounters, LinkCounters] = link.counters;
    assert.equal(there.egress.frames, 4);
    const port: Port = nic.port;
    assert.equal(port.counters.rxFrames, 0);
    await nic.close();
    link.close();
    await device.close();
    rmSync(folder, { recursive: true });
    assert.deepEqual([states[0], states.at(-1)], ['listening', 'closed']);
  });
});
