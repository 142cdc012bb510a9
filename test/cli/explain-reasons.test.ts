/** From what is known of a socket to the reasons for its copies, as a table; and reasons as text. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { explainNode } from '../../src/cli/explain/rds.ts';
import { othersOf, type ReasonId, reasonsOf, type Way } from '../../src/cli/explain/reasons.ts';
import { size } from '../../src/cli/explain/size.ts';
import { costLine, programLines } from '../../src/cli/explain/text.ts';
import { Ways } from '../../src/cli/explain/ways.ts';
import type { Finding, SendCosts, Status } from '../../src/index.ts';
import { zerocopyCounters } from '../../src/net/counters.ts';
import type { CopyCause, SocketStats } from '../../src/net/index.ts';
import { snapshot } from '../../src/net/stats.ts';
import type { NodeLending } from '../../src/rds/index.ts';

const MB = 1e6;
const costs: SendCosts = { cheapCopyMs: 100, dearCopyMs: 400, lendMs: 50, pieceBytes: 65_536 };

interface Given {
  readonly kind?: SocketStats['kind'];
  readonly mode?: SocketStats['mode'];
  readonly copied?: Partial<Record<CopyCause, number>>;
  readonly kernelCopied?: number;
}

function socket({ kind = 'tcp', mode = 'auto', copied = {}, kernelCopied = 0 }: Given): SocketStats {
  const counters = zerocopyCounters();
  Object.assign(counters.copied, copied);
  counters.kernelCopiedBytes = kernelCopied;
  counters.lentBytes = kernelCopied;
  counters.fallbackBytes = Object.values(copied).reduce((sum, bytes) => sum + bytes, 0);
  return {
    ...{
      id: 1,
      kind,
      mode,
      local: '192.0.2.1:1',
      remote: '192.0.2.2:2',
      thresholdBytes: 32_768,
      lending: true,
    },
    ...{ bytesRead: 0, bytesWritten: 0, zerocopy: snapshot(counters) },
  };
}

function finding(id: string, status: Status, data: Record<string, unknown> = {}, remedy?: string): Finding {
  return {
    id,
    title: id,
    status,
    found: `${id} is ${status}`,
    data,
    ...(remedy === undefined ? {} : { remedy }),
  };
}

const route = (data: Record<string, unknown>): Finding =>
  finding('device.route', 'ok', {
    routeType: 'unicast',
    device: 'eth0',
    deviceType: null,
    mtu: 1500,
    ...data,
  });

const ways = {
  clear: { findings: [route({}), finding('device.offload', 'ok'), finding('device.taps', 'ok')] },
  local: {
    findings: [
      finding('device.route', 'warn', { routeType: 'local', device: 'lo' }),
      finding('device.offload', 'skip'),
      finding('device.taps', 'skip'),
    ],
  },
  tap: {
    findings: [
      route({}),
      finding('device.offload', 'ok'),
      finding('device.taps', 'warn', {}, 'end the capture'),
    ],
  },
  offload: {
    findings: [route({}), finding('device.offload', 'warn', {}, 'ethtool -K'), finding('device.taps', 'ok')],
  },
  both: {
    findings: [
      route({}),
      finding('device.offload', 'warn', {}, 'ethtool -K'),
      finding('device.taps', 'warn', {}, 'end the capture'),
    ],
  },
  veth: {
    findings: [
      route({ device: 'v0', deviceType: 'veth' }),
      finding('device.offload', 'ok'),
      finding('device.taps', 'ok'),
    ],
  },
  nowhere: { unknown: 'nobody knows the way' },
} satisfies Record<string, Way>;

/** Without `saves`: nothing is claimed. */
type Wanted = [id: ReasonId, why: RegExp, remedy: RegExp | null, saves?: readonly [number, number]];

/** Per 1 MB: zerotx's copies would have been lent (50 us), the kernel's were. */
const instead = [0.05, 0.35] as const;
const onTop = [0.1, 0.4] as const;

const table: readonly [name: string, given: Given, way: Way, wanted: Wanted][] = [
  ['a Unix socket', { kind: 'unix', mode: 'off', copied: { off: MB } }, ways.nowhere, ['unix', /Unix/, null]],
  ['mode off', { mode: 'off', copied: { off: MB } }, ways.clear, ['off', /switched off/, /'auto'/, instead]],
  ['mode off, to this host', { mode: 'off', copied: { off: MB } }, ways.local, ['off', /on this host/, null]],
  [
    'small pieces',
    { copied: { threshold: MB } },
    ways.clear,
    ['threshold', /smaller than 32 KiB/, /larger pieces/],
  ],
  ['this host', { copied: { loopback: MB } }, ways.local, ['loopback', /on this host/, null]],
  ['RLIMIT_MEMLOCK', { copied: { memlock: MB } }, ways.clear, ['memlock', /MEMLOCK/, /ulimit -l/, instead]],
  ['optmem', { copied: { optmem: MB } }, ways.clear, ['optmem', /optmem_max/, /sysctl/, instead]],
  [
    'scattered data',
    { kind: 'udp', copied: { fragments: MB } },
    ways.clear,
    ['fragments', /pages/, /Lease/, instead],
  ],
  ['an old kernel', { copied: { unsupported: MB } }, ways.clear, ['unsupported', /does not lend/, /doctor/]],
  ['foreign memory', { copied: { foreign: MB } }, ways.clear, ['foreign', /runtime/, /Pool.*pin/, instead]],
  ['a local receiver', { kernelCopied: MB }, ways.local, ['local', /on this host/, null]],
  ['force to this host', { mode: 'force', kernelCopied: MB }, ways.local, ['local', /on this host/, /force/]],
  ['a tap', { kernelCopied: MB }, ways.tap, ['tap', /^device\.taps is warn$/, /^end the capture$/, onTop]],
  ['no offload', { kernelCopied: MB }, ways.offload, ['offload', /offload is warn/, /^ethtool -K$/, onTop]],
  [
    'a tap and no offload',
    { kernelCopied: MB },
    ways.both,
    ['tap', /taps is warn; and device\.offload is warn/, /^end the capture; and ethtool -K$/, onTop],
  ],
  ['a veth', { kernelCopied: MB }, ways.veth, ['virtual', /v0.*veth.*namespace/, null]],
  ['a veth, datagrams', { kind: 'udp', kernelCopied: MB }, ways.veth, ['virtual', /MTU of 1500/, null]],
  ['nothing to be seen', { kernelCopied: MB }, ways.clear, ['unknown', /nothing on the way/, null]],
  ['an unknown way', { kernelCopied: MB }, ways.nowhere, ['unknown', /nobody knows the way/, null]],
  [
    'lending that stopped, a tap',
    { copied: { kernel: MB } },
    ways.tap,
    ['tap', /lent before.*taps/, /capture/, instead],
  ],
  [
    'lending that stopped, here',
    { copied: { kernel: MB } },
    ways.local,
    ['local', /lent before.*host/, null],
  ],
];

describe('reasons', () => {
  for (const [name, given, way, [id, why, remedy, saves]] of table) {
    it(`of ${name}`, () => {
      const [reason, ...more] = reasonsOf(socket(given), way, costs);
      assert.ok(reason !== undefined && more.length === 0);
      assert.equal(reason.id, id);
      assert.equal(reason.bytes, MB);
      assert.equal(reason.by, (given.kernelCopied ?? 0) > 0 ? 'kernel' : 'zerotx');
      assert.match(reason.why, why);
      if (remedy === null) assert.equal(reason.remedy, undefined);
      else assert.match(reason.remedy ?? '', remedy);
      assert.deepEqual(
        reason.saves && [reason.saves.leastMs, reason.saves.mostMs].map((ms) => Math.round(ms * 1e6) / 1e6),
        saves && [...saves],
      );
    });
  }

  it('are none without copies, and the largest first', () => {
    assert.deepEqual(reasonsOf(socket({}), ways.tap, costs), []);
    const several = { kernelCopied: 2, copied: { threshold: 1, memlock: 3, optmem: 0 } };
    assert.deepEqual(
      reasonsOf(socket(several), ways.tap, costs).map(({ id, bytes }) => [id, bytes]),
      [
        ['memlock', 3],
        ['tap', 2],
        ['threshold', 1],
      ],
    );
  });

  it('have no remedy for less than a hundredth of what was sent', () => {
    const given = { copied: { threshold: 99, memlock: 100, loopback: 9801 } };
    assert.deepEqual(
      reasonsOf(socket(given), ways.clear, costs).map(({ id, remedy }) => [id, remedy !== undefined]),
      [
        ['loopback', false],
        ['memlock', true],
        ['threshold', false],
      ],
    );
  });

  it('claim no savings that were not measured, nor where lending is no cheaper', () => {
    const given = socket({ copied: { memlock: MB }, kernelCopied: MB });
    const saves = (of: SendCosts | undefined) => reasonsOf(given, ways.tap, of).map((reason) => reason.saves);
    assert.deepEqual(saves(undefined), [undefined, undefined]);
    assert.deepEqual(saves({ ...costs, lendMs: undefined }), [undefined, undefined]);
    const [kernel, zerotx] = saves({ ...costs, lendMs: 500 });
    assert.ok(kernel !== undefined);
    assert.equal(zerotx, undefined);
    assert.equal(saves({ ...costs, lendMs: 200 })[1]?.leastMs, 0);
  });

  it('of sockets that are gone are what is left of the sums', () => {
    const [a, b] = [socket({ copied: { off: 5, threshold: 7 } }), socket({ kernelCopied: 3 })];
    const all = socket({ copied: { off: 6, threshold: 6 }, kernelCopied: 10 });
    const { copied, kernelCopiedBytes } = othersOf(all.zerocopy, [a, b]);
    assert.deepEqual([copied.off, copied.threshold, kernelCopiedBytes], [1, 0, 7]);
    const various = {
      kind: 'various',
      zerocopy: socket({ copied: { off: 1, threshold: 1 } }).zerocopy,
    } as const;
    const [off, threshold] = reasonsOf(various, ways.nowhere, costs);
    assert.match(off?.why ?? '', /switched off.*or.*Unix/);
    assert.equal(off?.saves, undefined);
    assert.match(threshold?.why ?? '', /than the threshold/);
  });
});

describe('text', () => {
  const program = (sockets: readonly SocketStats[], way: Way) => ({
    ...{ pid: 7, threadId: 0, command: 'node', openSockets: sockets.length, closedSockets: 0, others: null },
    rds: [],
    sockets: sockets.map((stats) => ({ stats, reasons: reasonsOf(stats, way, costs) })),
  });

  it('says what, why, what to do and what it would save', () => {
    const lines = programLines(program([socket({ kernelCopied: 100 * MB })], ways.tap), false);
    assert.deepEqual(lines, [
      'node (pid 7): 1 socket, 0 gone',
      '',
      'tcp 192.0.2.1:1 -> 192.0.2.2:2  mode auto, threshold 32 KiB, lending now',
      '  zerotx lent 95.4 MiB, of which the kernel copied 95.4 MiB; it copied 0 B itself',
      '  95.4 MiB    tap        device.taps is warn',
      '                         -> end the capture',
      '                         would have saved 10 ms to 40 ms of CPU time',
    ]);
  });

  it('calls a socket lending that has lent, or would', () => {
    const heading = (given: Given): string =>
      programLines(program([socket(given)], ways.clear), true)[2] ?? '';
    for (const given of [{}, { copied: { threshold: 1 } }, { copied: { loopback: 1 }, kernelCopied: 1 }]) {
      assert.match(heading(given), /, lending now$/);
    }
    assert.match(heading({ kind: 'udp', copied: { loopback: 9, threshold: 1 } }), /, not lending now$/);
  });

  it('writes a number of bytes in one way', () => {
    const MiB = 1024 * 1024;
    const written = [0, 1023, 1024, 21 * MiB, 21 * MiB + 5000, 20.5 * 1024, 300_100, 2000 * MiB].map(size);
    assert.deepEqual(written, [
      ...['0 B', '1023 B', '1 KiB', '21 MiB', '21 MiB', '20.5 KiB', '293 KiB', '2 GiB'],
    ]);
  });

  it('shows ten sockets that copied, and all if it is asked to', () => {
    const many = Array.from({ length: 12 }, () => socket({ kernelCopied: 1 }));
    const short = programLines(program([...many, socket({})], ways.tap), false);
    assert.equal(short.filter((line) => line.startsWith('tcp')).length, 10);
    assert.match(short.at(-1) ?? '', /^2 more .*--all/);
    const all = programLines(program([...many, socket({})], ways.tap), true);
    assert.equal(all.filter((line) => line.startsWith('tcp')).length, 13);
  });

  it('shows ten peers of an RDS node, and all if it is asked to; and remedies of RDS', () => {
    const peers = Array.from({ length: 12 }, (_, i) => ({
      address: `192.0.2.${i + 10}`,
      zerocopy: socket({ copied: { off: 1, threshold: 2, foreign: 3 } }).zerocopy,
    }));
    const { zerocopy } = socket({ copied: { off: 12, threshold: 24, foreign: 36 } });
    const lending: NodeLending = {
      address: '192.0.2.1',
      mode: 'off',
      thresholdBytes: 32_768,
      zerocopy,
      peers,
    };
    const node = explainNode(lending, new Ways(), costs, true);
    assert.equal(node.others, null);
    const lines = (all: boolean): string[] => programLines({ ...program([], ways.clear), rds: [node] }, all);
    assert.equal(lines(false).filter((line) => line.startsWith('rds')).length, 10);
    assert.match(lines(false).at(-1) ?? '', /^2 more .*--all/);
    assert.equal(lines(true).filter((line) => line.startsWith('rds')).length, 12);
    const text = lines(true).join('\n');
    for (const said of [
      /mode of RdsNode.open\(\) is 'off'/,
      /-> send larger messages/,
      /-> vouch .*`pin` of bind/,
    ]) {
      assert.match(text, said);
    }
    const [first] = peers;
    const rest = explainNode(
      { ...lending, peers: first === undefined ? [] : [first] },
      new Ways(),
      costs,
      true,
    );
    assert.equal(rest.others?.zerocopy.fallbackBytes, 66);
    const some = programLines({ ...program([], ways.clear), rds: [rest] }, false).join('\n');
    assert.match(some, /rds 192\.0\.2\.1 -> peers that are gone or not listed {2}mode off/);
  });

  it('shows peers of an RDS node to which nothing was to be lent only if it is asked to', () => {
    const { zerocopy } = socket({});
    const unused = { ...zerocopy, lentBytes: 0, fallbackBytes: 0 };
    const peers = [{ address: '192.0.2.10', zerocopy: unused }];
    const lending: NodeLending = {
      address: '192.0.2.1',
      mode: 'auto',
      thresholdBytes: 32_768,
      zerocopy: unused,
      peers,
    };
    const node = explainNode(lending, new Ways(), costs, true);
    const text = (all: boolean): string =>
      programLines({ ...program([], ways.clear), rds: [node] }, all).join('\n');
    assert.match(text(false), /rds 192\.0\.2\.1 .*\n {2}no message was to be lent/);
    assert.match(text(true), /rds 192\.0\.2\.1 -> 192\.0\.2\.10 .*\n {2}zerotx lent 0 B/);
    assert.doesNotMatch(text(true), /no message|more that copied less/);
  });

  it('says so when there is nothing to say', () => {
    assert.match(programLines(program([socket({})], ways.tap), false).at(-1) ?? '', /nothing was copied/);
    assert.match(programLines(program([], ways.tap), false).at(-1) ?? '', /nothing to explain/);
  });

  it('keeps what others have written from the terminal', () => {
    const evil = { ...socket({ copied: { off: 1 } }), remote: '/tmp/\u001b[2J\nx' };
    const lines = programLines({ ...program([evil], ways.clear), command: 'a\u0007b' }, false);
    assert.ok(
      lines.every((line) => !/\p{Cc}/u.test(line)),
      JSON.stringify(lines),
    );
  });

  it('says where savings come from', () => {
    assert.match(costLine(costs), /100 ms to copy .* 400 ms .* 50 ms to lend/);
    assert.match(costLine({ ...costs, lendMs: undefined }), /refused/);
    assert.match(costLine(undefined), /could not be measured/);
  });
});
