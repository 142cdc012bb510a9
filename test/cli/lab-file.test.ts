/** Lab files: what they mean, and everything that is wrong with one told at once, with its place and what would be right. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { readLab } from '../../src/cli/switch/read-lab.ts';
import { ROOT } from '../support/sources.ts';

function problemsOf(source: string): string[] {
  return readLab(source, '/lab').problems.map(({ line, column, text }) => `${line}:${column}: ${text}`);
}

/** Lines of a file behind `ports:`, so line 2 on. */
function ports(...lines: readonly string[]): string {
  return ['ports:', ...lines.map((line) => `  ${line}`), ''].join('\n');
}

const SPEC = {
  name: 'a',
  faults: null,
  capture: null,
  join: {},
} as const;

describe('a lab file', () => {
  it('has a reading for everything in it', () => {
    const { lab, problems, warnings } = readLab(
      `
switch: { macAge: 5min, macLimit: 1000, portMacLimit: 10, storm: { broadcast: 100, unknown: { rate: 50, burst: 5 } } }
ports:
  a:
    vhost:
      socket: a.sock
      mode: connect
      socketMode: 0660
      frontEnd: uml
      queues: 2
      mtu: 9000
      mac: 52-54-00-00-00-0A
      offloads: [csum, tso4]
      zerocopy: off
      completion: copies-first
      hold: 2.5ms
      drain: 2s
      memoryMax: 8GiB
    vlan: 5
    macs: 52:54:00:00:00:0a
    macLimit: 3
    storm: { multicast: 7 }
    capture: { file: a.pcap, snap: 96B }
    faults:
      seed: 7
      rx: &line { loss: 0.5%, duplicate: 1%, corrupt: 2 %, delay: 20ms, jitter: 1ms }
      tx: { rate: 100Mbit/s, queue: 64KiB, held: 1MB, reorder: 1%, reorderDelay: 5ms }
`,
      '/lab',
    );
    assert.deepEqual({ problems, warnings }, { problems: [], warnings: [] });
    assert.deepEqual(lab?.options, {
      macAgeMs: 300_000,
      macLimit: 1000,
      portMacLimit: 10,
      storm: { broadcast: { framesPerSecond: 100 }, unknown: { framesPerSecond: 50, burstFrames: 5 } },
    });
    assert.deepEqual(lab?.ports, [
      {
        name: 'a',
        port: {
          kind: 'vhost',
          options: {
            name: 'a',
            path: '/lab/a.sock',
            role: 'connect',
            socketMode: 0o660,
            frontend: 'uml',
            queues: 2,
            mtu: 9000,
            mac: '52:54:00:00:00:0a',
            offloads: 3,
            zerocopy: 'off',
            completion: 'copies-first',
            holdMs: 2.5,
            drainMs: 2000,
            regionBytesMax: 8 * 2 ** 30,
          },
        },
        join: {
          vlan: { access: 5 },
          macs: ['52:54:00:00:00:0a'],
          macLimit: 3,
          storm: { multicast: { framesPerSecond: 7 } },
        },
        capture: { file: '/lab/a.pcap', snapBytes: 96 },
        faults: {
          seed: 7,
          rx: { lossPercent: 0.5, duplicatePercent: 1, corruptPercent: 2, delayMs: 20, jitterMs: 1 },
          tx: {
            bytesPerSecond: 12_500_000,
            queueBytes: 65_536,
            heldBytes: 1_000_000,
            reorderPercent: 1,
            reorderMs: 5,
          },
        },
      },
    ]);
  });

  it('has ports of every kind, in short and at length', () => {
    const kinds: Readonly<Record<string, object>> = {
      'tap: tap0': { kind: 'tap', options: { name: 'a', device: 'tap0', offloads: 15 } },
      'tap: { device: tap0, queues: 2, mtu: 9000 }': {
        kind: 'tap',
        options: { name: 'a', device: 'tap0', offloads: 15, queues: 2, mtu: 9000 },
      },
      'macvtap: /dev/tap7': { kind: 'macvtap', options: { name: 'a', device: '/dev/tap7', offloads: 15 } },
      "stream: { connect: 'fd00::1 is no host' }": {},
      "stream: { connect: '[fd00::1]:9000', vnet: true, zerocopy: force, sendBuffer: 4MiB, linger: 1s }": {
        kind: 'stream',
        options: {
          name: 'a',
          address: 'fd00::1',
          port: 9000,
          listen: false,
          vnet: true,
          zerocopy: 'force',
          sendBufferBytes: 4 * 2 ** 20,
          lingerMs: 1000,
        },
      },
      'stream: { listen: unix:run/s }': {
        kind: 'stream',
        options: { name: 'a', path: '/lab/run/s', listen: true },
      },
      'dgram: { local: unix:l, remote: unix:/r, mtu: 1500, buffer: 64KiB }': {
        kind: 'dgram',
        options: {
          name: 'a',
          local: { path: '/lab/l' },
          remote: { path: '/r' },
          mtu: 1500,
          bufferBytes: 65_536,
        },
      },
      'vxlan: { vni: 42, remote: 192.0.2.7 }': {
        kind: 'vxlan',
        options: { name: 'a', vni: 42, remotes: ['192.0.2.7'] },
      },
      'vxlan: { vni: 0, remote: [192.0.2.7, 192.0.2.8], local: 192.0.2.1, port: 8472, sockets: 2 }': {
        kind: 'vxlan',
        options: {
          name: 'a',
          vni: 0,
          remotes: ['192.0.2.7', '192.0.2.8'],
          local: '192.0.2.1',
          port: 8472,
          sockets: 2,
        },
      },
      'pcap: out.pcap': { kind: 'pcap', options: { name: 'a', file: '/lab/out.pcap' } },
      'pcap: { replay: in.pcap, speed: 0.5 }': {
        kind: 'pcap',
        options: { name: 'a', replay: '/lab/in.pcap', speed: 0.5 },
      },
    };
    for (const [text, port] of Object.entries(kinds)) {
      const { lab } = readLab(`ports: { a: { ${text} } }`, '/lab');
      assert.deepEqual(lab?.ports ?? [], Object.keys(port).length === 0 ? [] : [{ ...SPEC, port }], text);
    }
  });

  it('has VLANs in three ways', () => {
    for (const [text, vlan] of [
      ['10', { access: 10 }],
      ['{ access: 10 }', { access: 10 }],
      ['{ trunk: 10 }', { trunk: [10] }],
      ['{ trunk: [10, 20], native: 1 }', { trunk: [10, 20], native: 1 }],
    ] as const) {
      const { lab } = readLab(`ports: { a: { tap: t, vlan: ${text} } }`, '/');
      assert.deepEqual(lab?.ports[0]?.join, { vlan }, text);
    }
  });

  it('gives a guest an address that it is held to, or always the same', () => {
    const mac = (text: string): string | undefined => {
      const spec = readLab(`ports: { a: ${text} }`, '/lab').lab?.ports[0]?.port;
      return spec?.kind === 'vhost' ? spec.options.mac : undefined;
    };
    assert.equal(mac('{ vhost: a, macs: [52:54:00:00:00:01, 52:54:00:00:00:02] }'), '52:54:00:00:00:01');
    assert.match(mac('{ vhost: a }') ?? '', /^52:54:00(:[0-9a-f]{2}){3}$/);
    assert.equal(mac('{ vhost: a }'), mac('{ vhost: /lab/a }'));
    assert.notEqual(mac('{ vhost: a }'), mac('{ vhost: b }'));
  });

  it('may repeat a part by its name', () => {
    const { lab } = readLab('ports: { a: { tap: t, faults: { rx: &bad { loss: 1% }, tx: *bad } } }', '/');
    assert.deepEqual(lab?.ports[0]?.faults, { rx: { lossPercent: 1 }, tx: { lossPercent: 1 } });
  });

  it('is in the examples', () => {
    const { lab, problems, warnings } = readLab(readFileSync(join(ROOT, 'examples/lab.yaml'), 'utf8'), '/');
    assert.deepEqual({ problems, warnings }, { problems: [], warnings: [] });
    assert.ok((lab?.ports.length ?? 0) > 3);
  });
});

describe('a wrong lab file', () => {
  const wrong: Readonly<Record<string, readonly [source: string, ...problems: string[]]>> = {
    'is empty': ['', '1:1: the file is empty: it needs ports: what the switch joins, by name'],
    'is a list': ['- a\n', '1:1: the file is a list: it needs ports: what the switch joins, by name'],
    'has two documents': [
      'ports: { a: { tap: t } }\n---\nb: 1\n',
      '2:1: a second document begins here: a lab is one',
    ],
    'has no ports': ['switch: { macAge: 1s }\n', '1:1: the file needs ports: what the switch joins, by name'],
    'has an empty list of ports': ['ports: {}\n', '1:8: a switch has 1 to 1024 ports'],
    'has ports in a list': ['ports: [a]\n', '1:8: ports is a list: it needs keys with values'],
    'has a port without anything': [
      'ports:\n  none:\n',
      '2:8: ports.none is empty: it needs a kind, as in { vhost: vm1.sock } or { tap: tap0 }',
    ],
    'has an unknown key, nearly known': [
      'prots: {}\nports: { a: { tap: t } }\n',
      '1:1: the file has no "prots": did you mean ports?',
    ],
    'has an unknown key': [
      ports('a: { tap: t, colour: red }'),
      '2:16: ports.a has no "colour": there are capture, dgram, faults, macLimit, macs, macvtap, pcap, storm, stream, tap, vhost, vlan, vxlan',
    ],
    'has a key twice': [
      ports('a: { tap: t }', 'b: { tap: u }', 'a: { tap: v }'),
      '4:3: ports.a is there already, in line 2',
    ],
    'names a port so that nobody can type it': [
      ports("'a b': { tap: t }"),
      '2:3: the port "a b": a name has letters, digits, _ . and -, up to 64',
    ],
    'has a port that is nothing': [
      ports('a: { vlan: 1 }'),
      '2:3: ports.a needs a kind: vhost, tap, macvtap, stream, dgram, vxlan or pcap',
    ],
    'mistypes a kind': [
      ports('a: { vhots: s }'),
      '2:3: ports.a needs a kind: vhost, tap, macvtap, stream, dgram, vxlan or pcap',
      '2:8: ports.a has no "vhots": did you mean vhost?',
    ],
    'has a port that is two things': [
      ports('a: { tap: t, vhost: s }'),
      '2:16: ports.a is a tap already, and cannot be a vhost too',
    ],
    'has no socket': [
      ports('a: { vhost: { queues: 1 } }'),
      '2:8: ports.a.vhost needs socket: the path of a Unix socket of at most 4095 bytes',
    ],
    'has values that are out of range, or of another kind': [
      ports(
        'a:',
        '  vhost: { socket: s, queues: 17, mtu: 67, mode: both, zerocopy: force, offloads: [tso] }',
      ),
      '3:33: ports.a.vhost.queues is 17: it must be an integer from 1 to 16',
      '3:42: ports.a.vhost.mtu is 67: it must be an integer from 68 to 65535',
      '3:52: ports.a.vhost.mode is both: it must be listen or connect',
      '3:68: ports.a.vhost.zerocopy is force: it must be auto or off',
      '3:86: ports.a.vhost.offloads is tso: it must be csum, tso4, tso6, ecn, all or none',
    ],
    'has a key without its value': [
      ports('a: { vhost: { socket: s, mtu: } }'),
      '2:33: ports.a.vhost.mtu is empty: it must be an integer from 68 to 65535',
    ],
    'has times without units': [
      ports('a: { vhost: { socket: s, hold: 5 }, faults: { rx: { delay: 20, jitter: 1d } } }'),
      '2:34: ports.a.vhost.hold is 5: it must be a time from 1ms to 1min, such as 20ms or 1.5s',
      '2:62: ports.a.faults.rx.delay is 20: it must be a time from 0ms to 10min, such as 20ms or 1.5s',
      '2:74: ports.a.faults.rx.jitter is 1d: it must be a time from 0ms to 10min, such as 20ms or 1.5s',
    ],
    'has shares, rates and sizes that are none': [
      ports('a: { tap: t, faults: { tx: { loss: 101%, corrupt: 0.1, rate: 10MB, queue: 1.5B } } }'),
      '2:38: ports.a.faults.tx.loss is 101%: it must be a share from 0% to 100%, such as 0.5%',
      '2:53: ports.a.faults.tx.corrupt is 0.1: it must be a share from 0% to 100%, such as 0.5%',
      '2:64: ports.a.faults.tx.rate is 10MB: it must be a rate from 8kbit/s to 1000Gbit/s, such as 100Mbit/s',
      '2:77: ports.a.faults.tx.queue is 1.5B: it must be a size from 1B to 1GiB, such as 64KiB',
    ],
    'has faults without a direction': [
      ports('a: { tap: t, faults: { loss: 1% } }'),
      '2:16: ports.a.faults needs rx (what comes out of the port), tx (what goes to it), or both',
      '2:26: ports.a.faults has no "loss": there are rx, seed, tx',
    ],
    'has parts of faults that do nothing': [
      ports('a: { tap: t, faults: { rx: { queue: 1KiB, reorderDelay: 1ms } } }'),
      '2:39: ports.a.faults.rx.queue: it is the queue of a rate, which is not there',
      '2:59: ports.a.faults.rx.reorderDelay: it is for the frames of reorder, which is not there',
    ],
    'has VLANs that make no sense': [
      ports(
        'a: { tap: a, vlan: 0 }',
        'b: { tap: b, vlan: { access: 1, trunk: [2] } }',
        'c: { tap: c, vlan: { access: 1, native: 2 } }',
        'd: { tap: d, vlan: { native: 2 } }',
        'e: { tap: e, vlan: { trunk: [1, 4095] } }',
      ),
      '2:22: ports.a.vlan is 0: it must be an integer from 1 to 4094',
      '3:16: ports.b.vlan has access and trunk, and is one of them',
      '4:43: ports.c.vlan.native: only a trunk has a native VLAN; access is untagged as it is',
      '5:16: ports.d.vlan needs access (one VLAN, untagged) or trunk (several, tagged)',
      '6:35: ports.e.vlan.trunk is 4095: it must be an integer from 1 to 4094',
    ],
    'has addresses that no card has': [
      ports('a: { tap: t, macs: [01:00:00:00:00:01, 52:54:00:00:00, 00:00:00:00:00:00] }'),
      '2:23: ports.a.macs is 01:00:00:00:00:01: it must be the address of one card, such as 52:54:00:12:34:56',
      '2:42: ports.a.macs is 52:54:00:00:00: it must be the address of one card, such as 52:54:00:12:34:56',
      '2:58: ports.a.macs is 00:00:00:00:00:00: it must be the address of one card, such as 52:54:00:12:34:56',
    ],
    'holds a guest to addresses that it does not have': [
      ports('a: { vhost: { socket: s, mac: 52:54:00:00:00:01 }, macs: [52:54:00:00:00:02] }'),
      "2:60: ports.a.macs: the guest's own, 52:54:00:00:00:01, is not among them",
    ],
    'has places that are none': [
      ports(
        'a: { stream: { connect: 192.0.2.7 } }',
        'b: { stream: { listen: 127.0.0.1:0, connect: x:1 } }',
        'c: { stream: 192.0.2.7:9000 }',
        'd: { dgram: { local: unix:/a, remote: 127.0.0.1:1 } }',
        'e: { vxlan: { vni: 16777216, remote: host } }',
        'f: { vxlan: { vni: 1, remote: [192.0.2.1, fd00::1] } }',
        'g: { vxlan: { vni: 1 } }',
        'h: { pcap: { speed: 1 } }',
      ),
      '2:27: ports.a.stream.connect is 192.0.2.7: it must be HOST:PORT, [IPv6]:PORT or unix:PATH',
      '3:8: ports.b.stream needs listen or connect: HOST:PORT, [IPv6]:PORT or unix:PATH',
      '3:26: ports.b.stream.listen is 127.0.0.1:0: it must be HOST:PORT, [IPv6]:PORT or unix:PATH',
      '4:16: ports.c.stream is 192.0.2.7:9000: it needs keys with values',
      '5:8: ports.d.dgram: local and remote are both HOST:PORT, or both unix:PATH',
      '6:22: ports.e.vxlan.vni is 16777216: it must be an integer from 0 to 16777215',
      '6:40: ports.e.vxlan.remote is host: it must be an IP address',
      '7:33: ports.f.vxlan.remote: all addresses of a tunnel are IPv4, or all are IPv6',
      '8:8: ports.g.vxlan needs remote: IP addresses',
      '9:8: ports.h.pcap needs write or replay: the path of a file of at most 4095 bytes',
    ],
    'has one wrong place among several': [
      ports(
        'a: { vxlan: { vni: 1, remote: host } }',
        'b: { vxlan: { vni: 1, port: 1, remote: [192.0.2.1, x] } }',
      ),
      '2:33: ports.a.vxlan.remote is host: it must be an IP address',
      '3:54: ports.b.vxlan.remote is x: it must be an IP address',
    ],
    'has sizes that are none, with an example that is one': [
      ports('a: { vhost: { socket: s, memoryMax: 64KiB } }'),
      '2:39: ports.a.vhost.memoryMax is 64KiB: it must be a size from 1MiB to 64TiB, such as 64MiB',
    ],
    'gives one thing to two ports': [
      ports(
        'a: { vhost: s.sock, capture: x.pcap }',
        'b: { stream: { listen: unix:s.sock } }',
        'c: { tap: t }',
        'd: { tap: { device: t } }',
        'e: { pcap: x.pcap }',
        'f: { vxlan: { vni: 1, remote: 192.0.2.1 } }',
        'g: { vxlan: { vni: 2, remote: 192.0.2.1 } }',
        'h: { pcap: y.pcap, capture: y.pcap }',
      ),
      "3:16: ports.b.stream: the socket /lab/s.sock is a's already (line 2)",
      "5:13: ports.d.tap: the device t is c's already (line 4)",
      "6:14: ports.e.pcap: the file /lab/x.pcap is a's already (line 2)",
      "8:15: ports.g.vxlan: UDP port 4789 of all addresses is f's already (line 7)",
      '9:31: ports.h.capture: the file /lab/y.pcap is its own already',
    ],
    'gives one address to two ports': [
      ports(
        'a: { tap: a, vlan: 1, macs: [52:54:00:00:00:01] }',
        'b: { tap: b, vlan: 2, macs: [52:54:00:00:00:01] }',
        'c: { tap: c, vlan: { trunk: [1, 3] }, macs: [52:54:00:00:00:01] }',
      ),
      "4:47: ports.c.macs: 52:54:00:00:00:01 is another port's already in VLAN 1",
    ],
    'holds ports to more addresses than it remembers': [
      `switch: { macLimit: 2 }\n${ports('a: { tap: a, vlan: { trunk: [1, 2, 3] }, macs: [52:54:00:00:00:01] }')}`,
      '1:9: switch: macs of all ports in all their VLANs are 3, and macLimit is 2',
    ],
    'has a path that no socket may have': [
      ports(`a: { vhost: ${'x'.repeat(110)} }`),
      `2:15: a path of a socket has 107 bytes at most, and this is /lab/${'x'.repeat(110)}`,
    ],
    'has limits that are none': [
      ports('a: { tap: t, storm: { broadcast: many, multicast: { burst: 5 } }, macLimit: 0 }'),
      '2:36: ports.a.storm.broadcast is many: it must be an integer from 0 to 1000000000',
      '2:42: ports.a.storm.multicast needs rate: an integer from 0 to 1000000000',
      '2:79: ports.a.macLimit is 0: it must be an integer from 1 to 1048576',
    ],
  };
  for (const [what, [source, ...problems]] of Object.entries(wrong)) {
    it(what, () => {
      assert.deepEqual(problemsOf(source), problems);
      assert.equal(readLab(source, '/lab').lab, null);
    });
  }

  it('is no YAML', () => {
    // In the words of the parser.
    assert.match(problemsOf('ports: [\n').join('\n'), /^2:1: .+$/);
    assert.match(problemsOf('ports: { a: { tap: !!float x } }\n').join('\n'), /^1:20: .+$/);
  });

  it('tells what is wrong in all its parts at once', () => {
    const source = ports('a: { tap: t, vlan: 0 }', 'b: { vhost: { socket: s, mtu: 1 } }', 'c: {}');
    assert.deepEqual(
      problemsOf(source).map((text) => text.split(':', 1)[0]),
      ['2', '3', '4'],
    );
  });

  it('is warned of files and folders that are missing, and only when nothing is wrong', () => {
    const file = (more: string): string =>
      ports(
        'a: { vhost: no/a.sock, capture: no/a.pcap }',
        'b: { pcap: { replay: in.pcap } }',
        'c: { pcap: there/out.pcap }',
        `d: { stream: { listen: unix:no/d }${more} }`,
      );
    const there = new Set(['/lab/there']);
    const { warnings } = readLab(file(''), '/lab', (path) => there.has(path));
    assert.deepEqual(
      warnings.map(({ line, text }) => `${line}: ${text}`),
      [
        '2: ports.a.vhost: the folder of its socket /lab/no is missing',
        '2: ports.a.capture: the folder of its file /lab/no is missing',
        '3: ports.b.pcap: the file to replay /lab/in.pcap is missing',
        '5: ports.d.stream: the folder of its socket /lab/no is missing',
      ],
    );
    assert.deepEqual(readLab(file(', vlan: 0'), '/lab', () => false).warnings, []);
  });

  it('is warned of, where it works and is perhaps not meant', () => {
    const { warnings, problems } = readLab(
      ports('a: { vhost: s }', 'b: { vxlan: { vni: 1, remote: 192.0.2.1 } }', 'c: { tap: t, vlan: 5 }'),
      '/',
    );
    assert.deepEqual(problems, []);
    assert.deepEqual(warnings, [
      { line: 3, column: 3, text: 'b takes packets of 1450 bytes, and a sends up to 1500: give a mtu: 1450' },
    ]);
  });
});
