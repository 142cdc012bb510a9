/** Guests and what is no guest, through a switch: see vm-switch.guest.test.ts. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import { scaled } from '../support/counts.ts';
import { Netns, run } from '../support/netns.ts';
import { LabProcess } from './lab-process.ts';
import { Cabling, cabled, type Pair } from './vm-cabling.ts';
import { blast, echoes, Host, type Machine, pings } from './vm-machines.ts';

const MB = 1_000_000;
const STREAM_BYTES = scaled(100, 1000) * MB;
const SIZES = [1, 214, 1472, 1473, 9000, 65_507];

/** Streams and datagrams both ways; what the guest sends is copied in it, and lent. How many lent calls were copied by its kernel. */
async function exchange(
  guest: Machine,
  guestAddress: string,
  host: Machine,
  hostAddress: string,
  bytes = STREAM_BYTES,
): Promise<number> {
  await pings(host, guestAddress);
  await pings(guest, hostAddress);
  let copiedCalls = 0;
  for (const zerocopy of [false, true]) {
    const { mbitPerSecond, copied } = await blast({
      from: guest,
      to: host,
      at: `${hostAddress}:5000`,
      bytes,
      zerocopy,
    });
    copiedCalls += copied;
    console.log(`from the guest${zerocopy ? ', lent' : ''}: ${mbitPerSecond} Mbit/s`);
  }
  const { mbitPerSecond } = await blast({ from: host, to: guest, at: `${guestAddress}:5000`, bytes });
  console.log(`to the guest: ${mbitPerSecond} Mbit/s`);
  await echoes(guest, host, `${hostAddress}:5001`, SIZES);
  await echoes(host, guest, `${guestAddress}:5001`, SIZES);
  return copiedCalls;
}

/** The network namespace of the tests, and another one. */
interface Hosts {
  readonly here: Host;
  readonly far: Netns;
  readonly there: Host;
}

/** What all these tests have in common. */
interface Surroundings {
  readonly pair: Pair;
  readonly path: (name: string) => string;
  readonly hosts: Hosts;
}

export function uplinkTests(pair: Pair, path: (name: string) => string): void {
  const hosts = {} as { -readonly [K in keyof Hosts]: Hosts[K] };
  before(async () => {
    // Where the devices of this namespace are shown.
    run('mount -t sysfs sysfs /sys');
    const far = await Netns.make();
    const [here, there] = await Promise.all([Host.make(), Host.make(far)]);
    Object.assign(hosts, { here, far, there });
  });
  after(() => hosts.far?.end());

  const at: Surroundings = { pair, path, hosts };
  tapTests(at);
  macvtapTests(at);
  vxlanTests(at);
  qemuTests(at);
  trunkTests(at);
}

function tapTests({ pair, path, hosts }: Surroundings): void {
  describe('a guest and a tap of this machine', () => {
    const made = cabled(pair, { name: 'tap', net: 20, path, right: null, ports: { lan: { tap: 'lan0' } } });

    it('streams and datagrams', { timeout: 200_000 }, async () => {
      run('ip address add 10.20.0.100/24 dev lan0', 'ip link set lan0 up');
      const { lab } = made.cabling;
      // A tap that is not up yet refuses what guests say of themselves.
      const early = (await lab.counters()).lan?.txErrors;
      const copied = await exchange(pair.left, made.cabling.address('left'), hosts.here, '10.20.0.100');
      assert.equal(copied, 0);
      const { lan, left } = await lab.counters();
      assert.equal(lan?.txErrors, early);
      assert.ok((lan?.txBytes ?? 0) / (lan?.txFrames ?? 1) > 3000, 'segments reach the host uncut');
      assert.ok((left?.txBytes ?? 0) / (left?.txFrames ?? 1) > 3000, 'and the guest');
    });
  });
}

function macvtapTests({ pair, path, hosts }: Surroundings): void {
  describe('a guest and a macvtap on a device of this machine', () => {
    const uplink = { macvtap: { device: path('macvtap'), mtu: 1500 } };
    before(() => {
      run(`ip link add m0 type veth peer name m1 netns ${hosts.far.pid}`, 'ip link set m0 up');
      hosts.far.run('ip address add 10.21.0.100/24 dev m1', 'ip link set m1 up');
      // A macvtap has one address, so that is the guest's.
      const mac = Cabling.mac(21, 'left');
      run(`ip link add link m0 name mv0 address ${mac} type macvtap mode bridge`, 'ip link set mv0 up');
      const index = readFileSync('/sys/class/net/mv0/ifindex', 'utf8').trim();
      // Its file in /dev is for the namespace that the system started in.
      const [major, minor] = readFileSync(`/sys/class/net/mv0/tap${index}/dev`, 'utf8').trim().split(':');
      run(`mknod ${path('macvtap')} c ${major} ${minor}`);
    });
    after(() => run('ip link del m0'));
    const made = cabled(pair, { name: 'macvtap', net: 21, path, right: null, ports: { uplink } });

    it('streams and datagrams', { timeout: 200_000 }, async () => {
      const at = made.cabling.address('left');
      assert.equal(await exchange(pair.left, at, hosts.there, '10.21.0.100', STREAM_BYTES / 2), 0);
      const { uplink: counters } = await made.cabling.lab.counters();
      assert.equal(counters?.txErrors, 0);
      assert.ok((counters?.txBytes ?? 0) / (counters?.txFrames ?? 1) > 3000, 'segments go out uncut');
    });
  });
}

function vxlanTests({ pair, path, hosts }: Surroundings): void {
  for (const { mtu, net, zerocopy, properties } of [
    { mtu: 1500, net: 22, zerocopy: 'auto', properties: {} },
    // What the guest leaves to us is done in copies; what it has finished may be lent.
    { mtu: 9000, net: 23, zerocopy: 'force', properties: { csum: false } },
  ]) {
    describe(`a guest and a kernel's VXLAN, with an MTU of ${mtu}`, () => {
      const vxlan = { vni: 42, local: '10.9.0.1', remote: ['10.9.0.2'], mtu, zerocopy };
      before(() => {
        // Room for the tunnel's own headers.
        run(
          `ip link add u0 type veth peer name u1 netns ${hosts.far.pid}`,
          `ip link set u0 mtu ${mtu + 50} up`,
        );
        run('ip address add 10.9.0.1/24 dev u0');
        hosts.far.run(
          `ip link set u1 mtu ${mtu + 50} up`,
          // A veth leaves checksums undone that a real wire has, and those inside a tunnel stay so.
          'ethtool -K u1 tx off',
          'ip address add 10.9.0.2/24 dev u1',
          'ip link add vx0 type vxlan id 42 local 10.9.0.2 remote 10.9.0.1 dstport 4789 dev u1',
          `ip link set vx0 mtu ${mtu} up`,
          `ip address add 10.${net}.0.100/24 dev vx0`,
        );
      });
      after(() => {
        hosts.far.run('ip link del vx0');
        run('ip link del u0');
      });
      const made = cabled(pair, {
        ...{ name: `vxlan${mtu}`, net, path, right: null, ports: { tunnel: { vxlan } } },
        left: { device: { mtu }, properties: { host_mtu: mtu, ...properties } },
      });

      it('streams and datagrams', { timeout: 200_000 }, async () => {
        await exchange(pair.left, made.cabling.address('left'), hosts.there, `10.${net}.0.100`, 20 * MB);
        const { tunnel, left } = await made.cabling.lab.counters();
        assert.deepEqual([tunnel?.rxErrors, tunnel?.txErrors], [0, 0]);
        console.log(
          `lent: ${tunnel?.txLentBytes} of ${tunnel?.txBytes}, copied by the kernel: ${tunnel?.txKernelCopiedBytes}`,
        );
        const { lentNow, details } = left?.device ?? {};
        assert.equal(lentNow, 0);
        assert.equal(details?.ledger.reported, details?.ledger.taken);
        // A veth makes copies of what was lent, and the device then lends less.
        if (zerocopy === 'force') assert.ok((details?.ledger.lent ?? 0) > 0);
      });
    });
  }
}

/** The other guest's card is a socket of QEMU's own. */
function qemuTests({ pair, path }: Surroundings): void {
  describe('a guest behind a vhost-user device, and one behind a stream', () => {
    const made = cabled(pair, {
      ...{ name: 'stream', net: 24, path },
      right: {
        port: { stream: { listen: `unix:${path('stream.sock')}` } },
        peer: { kind: 'stream', connect: path('stream.sock') },
      },
    });

    it('streams and datagrams', { timeout: 200_000 }, async () => {
      const { cabling } = made;
      await exchange(pair.left, cabling.address('left'), pair.right, cabling.address('right'), 10 * MB);
    });
  });

  describe('a guest behind a vhost-user device, and one behind datagrams', () => {
    // A Unix socket takes 10 datagrams by default, less than a burst of TCP has.
    before(() => writeFileSync('/proc/sys/net/unix/max_dgram_qlen', '512'));
    const made = cabled(pair, {
      ...{ name: 'dgram', net: 25, path },
      right: {
        port: { dgram: { local: 'unix:dgram-lab.sock', remote: `unix:${path('dgram-vm.sock')}` } },
        peer: { kind: 'dgram', local: path('dgram-vm.sock'), remote: path('dgram-lab.sock') },
      },
    });

    it('streams and datagrams', { timeout: 200_000 }, async () => {
      const { cabling } = made;
      await exchange(pair.left, cabling.address('left'), pair.right, cabling.address('right'), 10 * MB);
    });
  });
}

function trunkTests({ pair, path, hosts }: Surroundings): void {
  for (const [zerocopy, net] of [
    ['force', 26],
    ['auto', 27],
  ] as const) {
    describe(`a guest and a host, behind two switches with a stream between them; lending: ${zerocopy}`, () => {
      const [port, tap] = [9000 + net, `far${net}`];
      let other: LabProcess;
      before(
        async () => {
          run(`ip link add s0 type veth peer name s1 netns ${hosts.far.pid}`);
          run(`ip address add 10.8.0.1/24 dev s0`, 'ip link set s0 up');
          hosts.far.run('ip address add 10.8.0.2/24 dev s1', 'ip link set s1 up');
          const ports = {
            host: { tap },
            trunk: { stream: { listen: `10.8.0.2:${port}`, vnet: true, zerocopy } },
          };
          other = await LabProcess.start(path(`far${net}.yaml`), ports, hosts.far);
          hosts.far.run(`ip address add 10.${net}.0.100/24 dev ${tap}`, `ip link set ${tap} up`);
        },
        { timeout: 60_000 },
      );
      after(async () => {
        await other?.stop();
        run('ip link del s0');
      });
      const trunk = { stream: { connect: `10.8.0.2:${port}`, vnet: true, zerocopy } };
      const made = cabled(pair, { name: `trunk${net}`, net, path, right: null, ports: { trunk } });

      it("the guest's pages go to the kernel, and all bytes arrive", { timeout: 200_000 }, async () => {
        const { lab } = made.cabling;
        await lab.up('trunk');
        const at = made.cabling.address('left');
        assert.equal(await exchange(pair.left, at, hosts.there, `10.${net}.0.100`, 30 * MB), 0);
        const { trunk: counters, left } = await lab.counters();
        const { lentNow, details } = left?.device ?? {};
        const { txBytes = 0, txLentBytes = 0, txKernelCopiedBytes = 0 } = counters ?? {};
        console.log(`lent: ${txLentBytes} of ${txBytes}, copied by the kernel: ${txKernelCopiedBytes}`);
        console.log(JSON.stringify(details?.ledger));
        assert.deepEqual([counters?.rxErrors, counters?.txErrors, lentNow], [0, 0, 0]);
        assert.equal(details?.ledger.reported, details?.ledger.taken);
        // A veth makes copies of what was lent, and the device then lends less.
        assert.ok((details?.ledger.lent ?? 0) > 0);
        assert.equal(txKernelCopiedBytes, txLentBytes);
        assert.ok(txLentBytes < txBytes / 2);
      });
    });
  }
}
