/** Ports as they are written on a command line. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ZerotxError } from '../../src/core/errors.ts';
import { OFFLOAD_ALL } from '../../src/core/port.ts';
import { DgramPort } from '../../src/ports/dgram.ts';
import { MacvtapPort } from '../../src/ports/macvtap.ts';
import { parsePort } from '../../src/ports/parse.ts';
import { PcapPort } from '../../src/ports/pcap.ts';
import { StreamPort } from '../../src/ports/stream.ts';
import { TapPort } from '../../src/ports/tap.ts';
import { VxlanPort } from '../../src/ports/vxlan.ts';

describe('a port on a command line', () => {
  const good: [text: string, kind: new (...args: never[]) => object, name: string, mtu: number][] = [
    ['tap:tap0', TapPort, 'tap0', 1500],
    ['tap:tap0,queues=4,offloads,mtu=9000,name=lan', TapPort, 'lan', 9000],
    ['macvtap:/dev/tap7', MacvtapPort, '/dev/tap7', 1500],
    ['macvtap:macvtap0,queues=2', MacvtapPort, 'macvtap0', 1500],
    ['stream:192.0.2.7:9000', StreamPort, 'stream:192.0.2.7:9000', 65_535],
    ['stream:example.org:9000,vnet,mtu=1500', StreamPort, 'stream:example.org:9000,vnet,mtu=1500', 1500],
    ['stream:listen=[::1]:9000,name=s', StreamPort, 's', 65_535],
    ['stream:unix:/run/vm.sock,name=s', StreamPort, 's', 65_535],
    ['stream:listen=unix:/run/vm.sock,name=s', StreamPort, 's', 65_535],
    ['dgram:local=unix:/run/a,remote=unix:/run/b,name=d', DgramPort, 'd', 65_489],
    ['dgram:local=127.0.0.1:1,remote=127.0.0.1:2,mtu=1500,name=d', DgramPort, 'd', 1500],
    ['vxlan:vni=42,remote=192.0.2.7,name=v', VxlanPort, 'v', 1450],
    ['vxlan:vni=42,remote=2001:db8::1,remote=2001:db8::2,port=8472,sockets=1,name=v', VxlanPort, 'v', 1450],
    ['pcap:/tmp/lan.pcap,snap=96,name=p', PcapPort, 'p', 65_535],
    ['pcap:replay=/tmp/lan.pcap,speed=0.5,name=p', PcapPort, 'p', 65_535],
  ];
  for (const [text, kind, name, mtu] of good) {
    it(text, () => {
      const port = parsePort(text);
      assert.ok(port instanceof kind);
      assert.equal(port.name, name);
      assert.equal(port.capability.mtu, mtu);
      assert.equal(port.isUp, false);
    });
  }

  it('has the settings that were given', () => {
    assert.equal(parsePort('stream:h:1,vnet').capability.offloads, OFFLOAD_ALL);
    assert.equal(parsePort('stream:h:1').capability.offloads, 0);
    assert.equal(parsePort('stream:h:1,zerocopy=off').capability.zeroCopy, 'never');
    assert.equal(parsePort('stream:h:1,zerocopy=force').capability.thresholdBytes, 1024);
    assert.equal(parsePort('stream:unix:/a').capability.zeroCopy, 'never');
    assert.equal(parsePort('vxlan:vni=1,remote=192.0.2.1').capability.zeroCopy, 'large');
  });

  it('says what was perhaps meant', () => {
    for (const [text, why] of [
      ['tap0', /did you mean tap:tap0\?$/],
      ['192.0.2.7:9000,vnet', /did you mean stream:192\.0\.2\.7:9000,vnet\?$/],
      ['tap:tap0,queue=2', /no setting queue here: did you mean queues\?$/],
      ['tap:tap0,speed=2', /no setting speed here: there are mtu, name, offloads, queues$/],
      ['stream:h:1,vnet=on', /vnet takes no value: write ,vnet$/],
    ] as const)
      assert.throws(() => parsePort(text), why);
  });

  const bad = [
    '',
    'tap',
    'tap:',
    'bridge:br0',
    'tap:tap0,queues=0',
    'tap:tap0,queues=many',
    'tap:tap0,speed=1',
    'tap:tap0,offloads=1',
    'stream:',
    'stream:9000',
    'stream:h:70000',
    'stream:h:1,listen=h:2',
    'stream:h:1,zerocopy=maybe',
    'stream:unix:',
    'stream:::1:9000',
    'stream:h:1,/tmp/x',
    'dgram:h:1',
    'dgram:local=h:1',
    'dgram:local=unix:/a,remote=h:1',
    'vxlan:vni=1',
    'vxlan:remote=192.0.2.1',
    'vxlan:vni=16777216,remote=192.0.2.1',
    'vxlan:vni=1,remote=example.org',
    'vxlan:vni=1,remote=192.0.2.1,remote=::1',
    'vxlan:vni=1,vni=2,remote=192.0.2.1',
    'pcap:',
    'pcap:a,name=x,name=y',
  ];
  for (const text of bad) {
    it(`is refused: ${JSON.stringify(text)}`, () => {
      assert.throws(
        () => parsePort(text),
        (error) => error instanceof ZerotxError && error.code === 'EINVAL',
      );
    });
  }
});
