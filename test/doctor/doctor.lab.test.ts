/**
 * Hosts with something in the way, each in a network namespace of its own: a device that cannot gather, a tap, limits that
 * are too small.
 */
import assert from 'node:assert/strict';
import { type SpawnSyncReturns, spawnSync } from 'node:child_process';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Finding } from '../../src/index.ts';

const child = fileURLToPath(new URL('./children/findings.js', import.meta.url));

const LOOPBACK = 'ip link set lo up';
const VETH = `ip link add v0 type veth peer name v1 && ip addr add 198.51.100.1/24 dev v0 && ip link set v0 up &&
  ip link set v1 up`;
/** ETHTOOL_SSG and ETHTOOL_STXCSUM by SIOCETHTOOL, as ethtool -K does. */
const SWITCH_OFF = `python3 -c '
import ctypes, fcntl, socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for command in (0x19, 0x17):
    value = ctypes.create_string_buffer(struct.pack("II", command, 0))
    fcntl.ioctl(s, 0x8946, struct.pack("16sQ16x", b"v0", ctypes.addressof(value)))
'`;

function inNamespace(setUp: readonly string[], ...command: readonly string[]): SpawnSyncReturns<string> {
  const script = [...setUp, 'exec "$0" "$@"'].join(' && ');
  return spawnSync('unshare', ['--net', 'sh', '-c', script, ...command], {
    encoding: 'utf8',
    timeout: 30_000,
  });
}

function skipReason(): string | false {
  if (process.getuid?.() !== 0) return 'needs root, for a network namespace';
  const { status, stderr, error } = inNamespace([LOOPBACK, VETH], 'true');
  return status === 0 ? false : `no namespace with a veth here: ${error?.message ?? stderr.trim()}`;
}

interface Report {
  parent: number;
  of(id: string): Finding;
}

function look(setUp: readonly string[], ...args: readonly string[]): Report {
  const { status, signal, stdout, stderr } = inNamespace(setUp, process.execPath, child, ...args);
  assert.deepEqual({ status, signal, stderr }, { status: 0, signal: null, stderr: '' });
  const { parent, findings } = JSON.parse(stdout) as { parent: number; findings: Finding[] };
  return {
    parent,
    of: (id) => findings.find((finding) => finding.id === id) ?? assert.fail(`no finding ${id}`),
  };
}

describe('zerotx doctor', { skip: skipReason(), timeout: 120_000 }, () => {
  const device = ['to=198.51.100.2', 'only=device'];

  it('finds the way, and nothing wrong with it', () => {
    const { of } = look([LOOPBACK, VETH], ...device);
    const { status, data, found } = of('device.route');
    assert.deepEqual(
      { status, ...data, deviceIndex: 0 },
      {
        status: 'ok',
        address: '198.51.100.2',
        device: 'v0',
        deviceIndex: 0,
        deviceType: 'veth',
        mtu: 1500,
        source: '198.51.100.1',
        gateway: null,
        routeType: 'unicast',
      },
    );
    assert.match(found, /goes out by v0 \(veth\), MTU 1500/);
    assert.equal(of('device.offload').status, 'ok');
    assert.equal(of('device.taps').status, 'ok');
  });

  it('asks for the route to the port, as policy rules may want it', () => {
    const rule = 'ip rule add ipproto tcp dport 9000 lookup 77 && ip route add 198.51.100.2 dev v1 table 77';
    const { of } = look([LOOPBACK, VETH, rule], 'to=198.51.100.2:9000', 'only=device.route');
    assert.equal(of('device.route').data?.device, 'v1');
  });

  it('warns of a device that cannot gather or make checksums', () => {
    const { of } = look([LOOPBACK, VETH, SWITCH_OFF], ...device);
    const { status, remedy, data } = of('device.offload');
    assert.equal(status, 'warn');
    assert.match(remedy ?? '', /^ethtool -K v0 /);
    assert.deepEqual(
      [data?.scatterGather, data?.transmitChecksum, data?.tcpSegmentation],
      [false, false, false],
    );
  });

  it('warns of a tap, and says whose it is', () => {
    const { of, parent } = look([LOOPBACK, VETH], 'tap', ...device);
    const { status, found } = of('device.taps');
    assert.equal(status, 'warn');
    assert.match(found, new RegExp(`\\(pid ${parent}\\)`));
  });

  it('tells one who cannot see whose a tap is that root would', () => {
    const { of } = look([LOOPBACK, VETH], 'tap', 'uid=64123', ...device);
    const { status, found } = of('device.taps');
    assert.equal(status, 'warn');
    assert.match(found, /uid 0.*root would see/);
  });

  it('knows the ways that lead nowhere', () => {
    const noRoute = look([LOOPBACK], 'only=device').of('device.route');
    assert.equal(noRoute.status, 'skip');
    const unreachable = look([LOOPBACK], ...device).of('device.route');
    assert.deepEqual([unreachable.status, unreachable.data?.code], ['fail', 'ENETUNREACH']);
    const hole = look([LOOPBACK, 'ip route add prohibit 198.51.100.2'], ...device).of('device.route');
    assert.deepEqual([hole.status, hole.data?.code], ['fail', 'EACCES']);
  });

  it('warns of option memory for few records, and fails for none', (t) => {
    const OPTMEM = '/proc/sys/net/core/optmem_max';
    if (inNamespace([], 'test', '-e', OPTMEM).status !== 0) {
      t.skip('optmem_max is not per namespace here');
      return;
    }
    const few = look([LOOPBACK, `echo 20480 > ${OPTMEM}`], 'only=optmem,zerocopy');
    assert.equal(few.of('optmem').status, 'warn');
    assert.match(few.of('optmem').remedy ?? '', /^sysctl -w net\.core\.optmem_max=/);
    assert.equal(few.of('zerocopy.udp4').status, 'ok');
    const none = look([LOOPBACK, `echo 512 > ${OPTMEM}`], 'only=optmem,zerocopy,memlock');
    assert.equal(none.of('optmem').status, 'fail');
    assert.equal(none.of('zerocopy.udp4').status, 'fail');
    assert.match(none.of('memlock').found, /by optmem/);
  });

  it('warns of a limit of 64 KiB, and shows the largest call', () => {
    const { of } = look([LOOPBACK, 'ulimit -l 64'], 'uid=64123', 'only=memlock,zerocopy');
    const { status, data, remedy } = of('memlock');
    assert.equal(status, 'warn');
    assert.equal(data?.limitBytes, 65_536);
    assert.ok((data?.largestBytes as number) > 0 && (data?.largestBytes as number) < 65_536);
    assert.match(remedy ?? '', /ulimit -l/);
    assert.equal(of('zerocopy.tcp4').status, 'ok');
  });

  it('says that nothing can be lent under a limit of a page', () => {
    const { of } = look([LOOPBACK, 'ulimit -l 4'], 'uid=64123', 'only=memlock,zerocopy');
    assert.equal(of('memlock').status, 'warn');
    assert.equal(of('zerocopy.tcp4').status, 'fail');
    assert.equal(of('zerocopy.tcp4').data?.code, 'ENOBUFS');
  });

  it('skips what a namespace without loopback has not', () => {
    const { of } = look([], 'only=zerocopy,udp,fragments');
    for (const id of ['zerocopy.tcp4', 'zerocopy.udp6', 'udp.gro', 'fragments']) {
      assert.equal(of(id).status, 'skip', id);
      assert.match(of(id).remedy ?? '', /ip link set lo up/);
    }
  });

  it('shows root its rights, and a user without them what is missing', () => {
    const root = look([LOOPBACK], 'only=rights.xdp,rights.macvtap');
    const user = look([LOOPBACK], 'uid=64123', 'only=rights.xdp,rights.macvtap');
    assert.equal(root.of('rights.macvtap').data?.netAdmin, true);
    assert.equal(user.of('rights.macvtap').data?.netAdmin, false);
    assert.equal(user.of('rights.xdp').status, 'warn');
  });
});
