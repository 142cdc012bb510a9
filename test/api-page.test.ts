/** docs/api.md and docs/api-vhost.md are written by hand: what they name must exist, and what they list must be complete. */
import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import { Duplex } from 'node:stream';
import { test } from 'node:test';
import * as main from '../src/index.ts';
import { zerocopyCounters } from '../src/net/counters.ts';
import * as net from '../src/net/index.ts';
import { rdsCounters } from '../src/rds/counters.ts';
import * as rds from '../src/rds/index.ts';
import { defaultLimits } from '../src/rds/options.ts';
import { ApiPage, codesOf, type Exported, exportsOf, missing } from './support/api-page.ts';

const page = new ApiPage('api.md');
const vhostPage = new ApiPage('api-vhost.md');

/** Names that programs can see of a class, and of those that it is derived from in src/. */
function members(classes: readonly { readonly prototype: object }[]): string[] {
  return classes.flatMap(({ prototype }) => Object.getOwnPropertyNames(prototype));
}

/** The classes between one of ours and the one of Node's that it is derived from. */
function basesOf(
  ours: { readonly prototype: object },
  nodes: { readonly prototype: object },
): { readonly prototype: object }[] {
  const bases: { readonly prototype: object }[] = [];
  for (
    let prototype = Object.getPrototypeOf(ours.prototype);
    prototype !== nodes.prototype;
    prototype = Object.getPrototypeOf(prototype)
  ) {
    bases.push({ prototype });
  }
  return bases;
}

/** Names of what is exported, and of what it has; without what stands on another page or is for the library's own use. */
function all(exported: readonly Exported[], elsewhere: string, internal = ''): string[] {
  const left = new Set(elsewhere.split(' '));
  const hidden = new Set(internal.split(' '));
  return exported
    .filter(({ name }) => !left.has(name))
    .flatMap(({ name, members: inner }) => [name, ...inner.filter((one) => !hidden.has(one))]);
}

test('names in code spans, and codes of errors, are names in the sources', () => {
  // What is not ours: commands, the caller's own variables, words of the language and of Node.
  const foreign = [
    'rds-info -c',
    'dist/rds/index.d.ts',
    'floor(bytes / page) + 2',
    'signal.reason',
    'await using',
    'using',
    'stream.Duplex',
    '(run, segmentBytes, from)',
  ];
  assert.deepEqual(page.unknown(new Set(foreign)), []);
  assert.deepEqual(vhostPage.unknown(new Set(['await using', 'dist/vhost/index.d.ts', '0o600'])), []);
});

test('it has every class, limit, event, option and counter of zerotx/rds', () => {
  // For the library's own use, though it can be seen.
  const internal = new Set(
    [
      'constructor roomMade cancel checkAcks congestionNews deliver deliverLocally destination emitEvents',
      'canonical epochMs remote unread',
      'eventsDue forget held paused peer peerClosed peers receiveLocally sequenceBase unbind uncharge waitsForBudget warn',
    ]
      .join(' ')
      .split(' '),
  );
  const wanted = [
    ...Object.keys(rds),
    ...Object.keys(defaultLimits).map((name) => `limits.${name}`),
    ...Object.keys(rdsCounters()),
    ...Object.keys(zerocopyCounters()),
    ...members([rds.RdsNode, rds.RdsSocket]).filter((name) => !internal.has(name)),
  ];
  assert.deepEqual(missing(wanted, page.below('API of `zerotx/rds`')), []);
});

test('it has every function, class, member, option and counter of zerotx/net', () => {
  const classes = [net.TcpSocket, net.TcpServer, net.UdpSocket, net.Pool, net.Lease];
  const bases = [...basesOf(net.TcpSocket, Duplex), ...basesOf(net.UdpSocket, EventEmitter)];
  // Of the stream and of the class, not the program's; what describes prom-client; errors and counters stand in the first part.
  const internal = new Set(
    'constructor _write _writev _final _read _destroy Counter Gauge Histogram'.split(' '),
  );
  const elsewhere = new Set(['ZerocopyStats']);
  const interfaces = exportsOf('src/net/index.ts').filter(
    ({ kind, name }) => kind === 'interface' && !elsewhere.has(name),
  );
  assert.ok(interfaces.length > 20, `only ${interfaces.length}`);
  const wanted = [
    ...Object.keys(net),
    ...members([...classes, ...bases]),
    ...interfaces.flatMap((one) => one.members),
  ];
  assert.deepEqual(
    missing(wanted, page.below('API of `zerotx/net`')).filter((name) => !internal.has(name)),
    [],
  );
});

test('it has every function and field of zerotx', () => {
  const interfaces = exportsOf('src/index.ts').filter(
    ({ kind, name }) => kind === 'interface' && name !== 'Outcome',
  );
  assert.ok(interfaces.length >= 4, `only ${interfaces.length}`);
  const wanted = [...Object.keys(main), ...interfaces.flatMap((one) => one.members)];
  assert.deepEqual(missing(wanted, page.below('API of `zerotx`')), []);
});

test('api-vhost.md has every class, member, option, event and counter of its three doors', () => {
  // On the other page: errors, outcomes and what was lent.
  const elsewhere = 'Next Outcome ZerotxError ZerocopyCounters CopyCause';
  // Between the parts of the library.
  const queues =
    'begin start reserve fits unreserve submit flush interrupt resume end unblock lend gather receiver from';
  const handlers = 'up lost ended deliver writable error';
  for (const [door, internal] of [
    ['vhost', queues],
    ['ports', handlers],
    ['switch', ''],
  ] as const) {
    const exported = exportsOf(`src/${door}/index.ts`);
    assert.ok(exported.length > 30, `only ${exported.length} of ${door}`);
    const named = vhostPage.below('Ports and frames', `API of \`zerotx/${door}\``);
    assert.deepEqual(missing(all(exported, elsewhere, internal), named), [], door);
  }
});

test('api-vhost.md has every code of errors that its doors make by name', () => {
  const codes = codesOf('src/vhost/', 'src/ports/', 'src/switch/', 'src/sys/tap.ts', 'src/sys/privileges.ts');
  assert.ok(codes.length > 20, codes.join(' '));
  const without = codes.filter((code) => !new RegExp(`\\b${code}\\b`).test(vhostPage.text));
  assert.deepEqual([...new Set(without)], []);
});
