/** docs/api.md is written by hand: what it names must exist, and what it lists must be complete. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import * as main from '../src/index.ts';
import { zerocopyCounters } from '../src/net/counters.ts';
import * as net from '../src/net/index.ts';
import { rdsCounters } from '../src/rds/counters.ts';
import * as rds from '../src/rds/index.ts';
import { defaultLimits } from '../src/rds/options.ts';
import { ROOT, sources } from './support/sources.ts';

const page = readFileSync(join(ROOT, 'docs/api.md'), 'utf8');
const files = sources(['src'], ['.ts']);
const src = files.map(({ text }) => text).join('\n');

interface Part {
  readonly text: string;
  /** The text between backquotes, as the page has it, and the names in it. */
  readonly spans: readonly string[];
  readonly named: ReadonlySet<string>;
}

function part(text: string): Part {
  const spans = [...text.matchAll(/`([^`\n]+)`/g)].map(([, span = '']) => span);
  const named = new Set(spans.flatMap((span) => [...span.split(/[^\w.]+/), ...span.split(/\W+/)]));
  return { text, spans, named };
}

/** The part below a title of the first order, up to the next one. */
function below(title: string): Part {
  const [, text] = page.split(new RegExp(`^# ${title}$`, 'm'));
  assert.ok(text !== undefined, `no part "${title}"`);
  return part(text.split(/^# /m)[0] as string);
}

const rdsPart = below('API of `zerotx/rds`');
const netPart = below('API of `zerotx/net`');
const mainPart = below('API of `zerotx`');

/** Names that programs can see of a class, and of those that it is derived from in src/. */
function members(classes: readonly { readonly prototype: object }[]): string[] {
  return classes.flatMap(({ prototype }) => Object.getOwnPropertyNames(prototype));
}

/** Where what the doors other than zerotx/rds export is declared. */
const declarations = files
  .filter(({ path }) => !/^src\/(?:rds|cli)\//.test(path))
  .map(({ text }) => text)
  .join('\n');

/** Fields and methods of an interface, by its declaration. */
function fields(name: string): string[] {
  const pattern = new RegExp(`^export interface ${name}\\b[^{]*\\{\\n([\\s\\S]*?)^\\}`, 'm');
  const declaration = pattern.exec(declarations);
  assert.ok(declaration !== null, `no interface ${name}`);
  return [...(declaration[1] as string).matchAll(/^ {2}(?:readonly )?(\w+)(?=\??:|\()/gm)].map(
    ([, field = '']) => field,
  );
}

/** Interfaces that a door exports. */
function interfaces(door: string): string[] {
  const text = files.find(({ path }) => path === door)?.text ?? '';
  const names = [...text.matchAll(/^export (?:type )?\{([\s\S]*?)\}/gm)]
    .flatMap(([, list = '']) => list.split(','))
    .flatMap((name) => /^\s*(?:type )?(\w+)/.exec(name)?.[1] ?? []);
  return names.filter((name) => new RegExp(`^export interface ${name}\\b`, 'm').test(declarations));
}

function missing(wanted: readonly string[], { named }: Part): string[] {
  return [...new Set(wanted)].filter((name) => !named.has(name));
}

test('names in code spans, and codes of errors, are names in the sources', () => {
  // What is not ours: commands, the caller's own variables, words of the language and of Node.
  const foreign = new Set([
    'rds-info -c',
    'dist/rds/index.d.ts',
    'floor(bytes / page) + 2',
    'signal.reason',
    'await using',
    'using',
    'stream.Duplex',
    '(run, segmentBytes, from)',
  ]);
  const words = part(page)
    .spans.filter((text) => !foreign.has(text))
    .flatMap((text) => text.match(/[A-Za-z_]\w*/g) ?? [])
    .concat(page.match(/\b(?:E[A-Z_]{4,}|ZTX_[A-Z_]+|RDS_[A-Z_]+)\b/g) ?? []);
  assert.ok(words.length > 500, `only ${words.length} words`);
  const unknown = words.filter((word) => !new RegExp(`\\b${word}\\b`).test(src));
  assert.deepEqual([...new Set(unknown)], []);
});

test('it has every class, limit, event, option and counter of zerotx/rds', () => {
  // For the library's own use, though it can be seen.
  const internal = new Set(
    [
      'constructor roomMade cancel checkAcks congestionNews deliver deliverLocally destination emitEvents',
      'eventsDue forget held lane laneClosed paused peers receiveLocally sequenceBase unbind uncharge waitsForBudget warn',
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
  assert.deepEqual(missing(wanted, rdsPart), []);
});

test('it has every function, class, member, option and counter of zerotx/net', () => {
  const classes = [net.TcpSocket, net.TcpServer, net.UdpSocket, net.Pool, net.Lease];
  const bases = [net.TcpSocket, net.UdpSocket].map(
    ({ prototype }) => Object.getPrototypeOf(prototype).constructor as { prototype: object },
  );
  // Of the stream and of the class, not the program's; what describes prom-client; errors and counters stand in the first part.
  const internal = new Set(
    'constructor _write _writev _final _read _destroy Counter Gauge Histogram'.split(' '),
  );
  const elsewhere = new Set(['ZerocopyStats']);
  const exported = interfaces('src/net/index.ts').filter((name) => !elsewhere.has(name));
  assert.ok(exported.length > 20, exported.join(' '));
  const wanted = [...Object.keys(net), ...members([...classes, ...bases]), ...exported.flatMap(fields)];
  assert.deepEqual(
    missing(wanted, netPart).filter((name) => !internal.has(name)),
    [],
  );
});

test('it has every function and field of zerotx', () => {
  const exported = interfaces('src/index.ts').filter((name) => name !== 'Outcome');
  assert.ok(exported.length >= 4, exported.join(' '));
  assert.deepEqual(missing([...Object.keys(main), ...exported.flatMap(fields)], mainPart), []);
});
