/** Taps and macvtaps, in a network namespace of a child process. Needs root. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';

const child = fileURLToPath(new URL('./children/tap.js', import.meta.url));
const skip =
  process.getuid?.() !== 0
    ? 'needs root, for a network namespace'
    : !existsSync('/dev/net/tun') && 'needs /dev/net/tun';

/** Runs a part of the child in a namespace with its own /sys, where its interfaces are; `setup` are lines for sh. */
function inNamespace(part: string, setup: readonly string[] = [], user: readonly string[] = []): void {
  const script = ['mount -t sysfs none /sys', 'ip link set lo up', ...setup, 'exec "$0" "$@"'].join(' && ');
  const args = ['--net', '--mount', 'sh', '-c', script, ...user, process.execPath, child, part];
  const { status, signal, stderr } = spawnSync('unshare', args, { encoding: 'utf8', timeout: 30_000 });
  assert.deepEqual({ status, signal, stderr }, { status: 0, signal: null, stderr: '' });
}

const USER = ['setpriv', '--reuid', '65534', '--regid', '65534', '--clear-groups', '--bounding-set=-all'];
const VETH = ['ip link add low type veth peer name far', 'ip link set low up', 'ip link set far up'];

describe('a tap', { skip, timeout: 120_000 }, () => {
  it('carries frames with a vnet header both ways', () => inNamespace('frames'));
  it('leaves checksums and segments to us if told so, and not otherwise', () => inNamespace('offloads'));
  it('has several queues, which can be switched off and on', () => inNamespace('queues'));
  it('names itself, and says why it cannot be opened', () => inNamespace('names'));
  it('is there for the user it was made for, and for no other', () => {
    // As most hosts have it; it is root's alone on others.
    const device = ['mount -t tmpfs none /dev/net', 'mknod -m 666 /dev/net/tun c 10 200'];
    const taps = ['ip tuntap add dev own mode tap user 65534', 'ip tuntap add dev foreign mode tap user 1'];
    inNamespace('user', [...device, ...taps], USER);
  });
  it('is told about by the reactor', () => inNamespace('events'));
});

/** The names of device files are shared by all namespaces: a number of its own for each interface. */
let made = 0;
const ownIndex = (): string => `index ${100_000 + 10 * process.pid + made++}`;

describe('a macvtap', { skip, timeout: 60_000 }, () => {
  it('carries frames with a vnet header both ways', (t) => {
    const probe = [...VETH, `ip link add link low name m ${ownIndex()} type macvtap`].join(' && ');
    const result = spawnSync('unshare', ['--net', 'sh', '-c', probe]);
    if (result.status !== 0) return t.skip('needs veth and macvtap devices');
    inNamespace('macvtap', [
      ...VETH,
      `ip link add link low name mv0 ${ownIndex()} address 02:00:00:00:00:05 type macvtap mode bridge`,
      'ip link set mv0 up',
    ]);
    inNamespace('macvtapNames', [
      ...VETH,
      `ip link add link low name mv0 ${ownIndex()} type macvtap mode bridge`,
      // Another device under the name of its file, as the interface of another namespace with the same number would have it.
      'mount -t tmpfs none /mnt',
      'mknod /mnt/node c 1 3',
      'mount --bind /mnt/node /dev/tap$(cat /sys/class/net/mv0/ifindex)',
    ]);
  });
});
