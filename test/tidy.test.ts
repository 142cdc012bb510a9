/**
 * Rules about the sources themselves: who may import whom, how long things may get, and calls that have no place where
 * they stand. What the formatter and linter check is theirs; these are the rules that they do not know.
 */
import assert from 'node:assert/strict';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { code, functions, imports, ROOT, type Source, sources } from './support/sources.ts';

const src = sources(['src'], ['.ts']);
const programs = sources(['src', 'bench', 'examples'], ['.ts', '.js']);
const scripts = sources(['scripts'], ['.mjs', '.sh']);
const native = sources(['native'], ['.c', '.h']);
const tests = sources(['test'], ['.ts']);
const everything = [...programs, ...scripts, ...native, ...tests, ...sources(['bench'], ['.c', '.h'])];

/** This file has the patterns in it. */
const SELF = 'test/tidy.test.ts';

const FILE_LINES_MAX = 600;
const FUNCTION_LINES_MAX = 70;

/** Fails with all of `problems`, a line each. */
function none(problems: readonly string[]): void {
  assert.equal(problems.length, 0, `\n${problems.join('\n')}`);
}

/** `path:line text` of each line of code that matches, in files that are not in `allowed`. */
function found(files: readonly Source[], pattern: RegExp, allowed: readonly string[] = []): string[] {
  return files
    .filter(({ path }) => !allowed.some((prefix) => path.startsWith(prefix)))
    .flatMap((file) =>
      code(file).flatMap((line, i) => (pattern.test(line) ? [`${file.path}:${i + 1} ${line.trim()}`] : [])),
    );
}

/** The folder below src/, or the file for those that lie in src/ itself. */
function layerOf(path: string): string {
  return path.split('/')[1] ?? '';
}

describe('layers', () => {
  /** Folders that each folder may import from, besides itself. */
  const layers: Record<string, readonly string[]> = {
    core: [],
    wire: ['core'],
    sys: ['core', 'wire'],
    net: ['core', 'wire', 'sys'],
    rds: ['core', 'wire', 'net'],
    vhost: ['core', 'wire', 'sys'],
    ports: ['core', 'wire', 'sys', 'net'],
    switch: ['core', 'wire'],
    doctor: ['core', 'wire', 'sys', 'net'],
    cli: [],
    'index.ts': ['core', 'doctor'],
  };
  /** Folders within them that know the system, too. */
  const withSystem = /^src\/rds\/kernel\//;
  /** Doors of the package, and the wire format of rds-stress, which is the tools' own. */
  const publicDoors = /^src\/(?:index|(?:net|ports|rds|switch|vhost)\/index|wire\/rds-stress[\w-]*)\.ts$/;

  it('import downwards only, and the tools public doors only', () => {
    none(
      src.flatMap((file) => {
        const layer = layerOf(file.path);
        const listed = layers[layer];
        const below = withSystem.test(file.path) ? [...(listed ?? []), 'sys'] : listed;
        if (below === undefined) return [`${file.path}: no rule for the folder ${layer}`];
        return imports(file)
          .filter(({ path }) => path !== undefined && layerOf(path) !== layer)
          .filter(
            ({ path = '' }) =>
              !(below.includes(layerOf(path)) || (layer === 'cli' && publicDoors.test(path))),
          )
          .map(({ path }) => `${file.path} imports ${path}`);
      }),
    );
  });

  it('benchmarks and examples import the package, never its sources', () => {
    const files = programs.filter(({ path }) => !path.startsWith('src/'));
    none(
      files.flatMap((file) =>
        imports(file)
          .filter(({ path }) => path?.startsWith('src/') && !publicDoors.test(path))
          .map(({ path }) => `${file.path} imports ${path}`),
      ),
    );
  });

  it('nothing that is published imports a test, a benchmark or a development dependency', () => {
    const { dependencies } = manifest();
    none(
      src.flatMap((file) =>
        imports(file)
          .filter(({ from, path }) =>
            path === undefined
              ? !(from.startsWith('node:') || Object.keys(dependencies).includes(from))
              : !path.startsWith('src/'),
          )
          .map(({ from }) => `${file.path} imports ${from}`),
      ),
    );
  });

  it('the pure layers know of the platform only names of errors and the form of addresses', () => {
    const allowed: Record<string, string> = {
      'src/core/errors.ts': 'node:os',
      'src/wire/sockaddr.ts': 'node:net',
    };
    none(
      src
        .filter(({ path }) => /^src\/(core|wire)\//.test(path))
        .flatMap((file) =>
          imports(file)
            .filter(({ from }) => from.startsWith('node:') && allowed[file.path] !== from)
            .map(({ from }) => `${file.path} imports ${from}`),
        ),
    );
  });

  it('have no cycles, nor do tests and benchmarks', () => {
    const files = new Map([...programs, ...tests].map((file) => [file.path, file]));
    const state = new Map<string, 'open' | 'done'>();
    const cycles: string[] = [];
    const visit = (path: string, trail: readonly string[]): void => {
      const file = files.get(path);
      if (file === undefined || state.get(path) === 'done') return;
      if (state.get(path) === 'open') {
        cycles.push([...trail.slice(trail.indexOf(path)), path].join(' -> '));
        return;
      }
      state.set(path, 'open');
      for (const { path: next, typeOnly } of imports(file)) {
        if (next !== undefined && !typeOnly) visit(next, [...trail, path]);
      }
      state.set(path, 'done');
    };
    for (const path of files.keys()) visit(path, []);
    none(cycles);
  });

  it('relative imports name files that exist', () => {
    none(
      [...programs, ...tests].flatMap((file) =>
        imports(file)
          .filter(({ path }) => path !== undefined && !existsSync(join(ROOT, path)))
          .map(({ from }) => `${file.path} imports ${from}`),
      ),
    );
  });
});

describe('sizes', () => {
  it(`files have at most ${FILE_LINES_MAX} lines`, () => {
    none(
      everything
        .filter(({ lines }) => lines.length > FILE_LINES_MAX)
        .map(({ path, lines }) => `${path}: ${lines.length} lines`),
    );
  });

  it(`functions have at most ${FUNCTION_LINES_MAX} lines`, () => {
    const all = programs.flatMap((file) => functions(file).map((one) => ({ ...one, path: file.path })));
    assert.ok(all.length > 300, `only ${all.length} functions were recognized`);
    none(
      all
        .filter(({ length }) => length > FUNCTION_LINES_MAX)
        .map(({ path, line, name, length }) => `${path}:${line} ${name}: ${length} lines`),
    );
  });
});

describe('comments', () => {
  it('open every file of the product', () => {
    none(
      [...programs, ...scripts, ...native]
        .filter(({ text }) => !/^(?:#!.*\n)?\s*(?:\/\*|\/\/|# )/.test(text))
        .map(({ path }) => path),
    );
  });

  it('promise nothing: what is not done is not there', () => {
    const words = new RegExp(`\\b(?:${['TO' + 'DO', 'FIX' + 'ME', 'XX' + 'X', 'HA' + 'CK'].join('|')})\\b`);
    none(
      everything.flatMap(({ path, lines }) =>
        lines.flatMap((line, i) => (words.test(line) ? [`${path}:${i + 1} ${line.trim()}`] : [])),
      ),
    );
  });
});

describe('calls', () => {
  /** Files of src/net that own timers, or call the program back in a later turn. */
  const netShells = [
    'closer',
    'connecting',
    'control',
    'control-line',
    'incoming',
    'lending-duplex',
    'metrics',
    'pin-deadline',
    'server',
    'socket',
    'socket-settings',
    'tcp',
    'tcp-listener',
    'udp',
    'udp-channel',
    'turn',
    'udp-receiver',
  ].map((name) => `src/net/${name}.ts`);

  /** Files of src/vhost that own sockets, turns and timers. */
  const vhostShells = ['connection', 'device', 'frontend', 'after', 'poller', 'server', 'tx-ring'].map(
    (name) => `src/vhost/${name}.ts`,
  );

  it('timers and clocks are in the shells alone; state machines are told the time', () => {
    const shells = [
      'src/cli/',
      'src/doctor/run.ts',
      'src/doctor/send-costs.ts',
      'src/rds/environment.ts',
      'src/ports/clock.ts',
      'src/switch/clock.ts',
      ...vhostShells,
      ...netShells,
    ];
    const pattern =
      /(?<!\.)\b(?:set(?:Timeout|Interval|Immediate)|performance|new Date|Math\.random)\b|\bDate\.now\b/;
    none(found(src, pattern, shells));
  });

  it('microtasks are queued where releases, uncaught errors and the environment are', () => {
    none(
      found(src, /\bqueueMicrotask\b|\bnextTick\b/, [
        'src/core/releases.ts',
        'src/sys/reactor.ts',
        'src/rds/environment.ts',
        ...netShells,
      ]),
    );
  });

  it('the process and the terminal belong to the tools', () => {
    none(found(src, /\bconsole\./, ['src/cli/']));
    // The binding looks for another build of the addon, and says for which machine it found none.
    // A control socket is named after its process; and ports want to know what the process uses of the processor.
    none(
      found(src, /\bprocess\.(?!nextTick\b)/, [
        'src/cli/',
        'src/ports/clock.ts',
        'src/sys/binding.ts',
        'src/net/control',
        'src/net/turn.ts',
        'src/net/natural-end.ts',
      ]),
    );
  });

  it('types are not talked away', () => {
    none(
      found(
        [...programs, ...tests.filter(({ path }) => path !== SELF)],
        /\bas any\b|[\w)\]?]:\s*any\b(?!\()|<any>/,
      ),
    );
    // Tests of the types themselves expect errors; there they are checked.
    const ofTypes = /^test\/.*types\.test\.ts$/;
    const silencers = /@ts-(?:ignore|nocheck|expect-error)|biome-ignore(?! lint\/[\w/]+: \w)/;
    none(
      [...programs, ...tests].flatMap(({ path, lines }) =>
        path === SELF || ofTypes.test(path)
          ? []
          : lines.flatMap((line, i) => (silencers.test(line) ? [`${path}:${i + 1} ${line.trim()}`] : [])),
      ),
    );
  });

  it('errors have a code', () => {
    // assert() throws plain ones, for bugs; arguments.ts and node-errors.ts make Node's kinds; the tools report to a person.
    const plain = /\bnew Error\(/;
    none(found(src, plain, ['src/core/assert.ts', 'src/net/node-errors.ts', 'src/cli/']));
  });

  it('tests do not sleep, and none is left singled out', () => {
    // until() there looks again and again at what no event tells, with a deadline.
    const boundedLook = 'test/support/raw-peer.ts';
    const sleep = /setTimeout.*timers\/promises|setTimeout\((?:resolve|done|r)\b|\.(?:only)\(|\bonly: true/;
    none(
      tests
        .filter(({ path }) => path !== SELF && path !== boundedLook)
        .flatMap(({ path, lines }) =>
          lines.flatMap((line, i) => (sleep.test(line) ? [`${path}:${i + 1} ${line.trim()}`] : [])),
        ),
    );
  });
});

interface Manifest {
  readonly scripts: Record<string, string>;
  readonly exports: Record<string, string>;
  readonly bin: Record<string, string>;
  readonly dependencies: Record<string, string>;
}

function manifest(): Manifest {
  return JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
}

describe('the package', () => {
  const documents = ['README.md', 'CONTRIBUTING.md', 'SECURITY.md', 'CHANGELOG.md'];
  const pages = [
    ...documents.filter((name) => existsSync(join(ROOT, name))),
    ...sources(['docs'], ['.md']).map(({ path }) => path),
  ];

  it('has every npm script that a page, a script or the continuous integration names', () => {
    const { scripts: known } = manifest();
    const places = [
      ...pages,
      ...scripts.map(({ path }) => path),
      '.ci/run',
      'examples/demo.ts',
      'src/sys/binding.ts',
    ];
    none(
      places
        .filter((place) => existsSync(join(ROOT, place)))
        .flatMap((place) => {
          const text = readFileSync(join(ROOT, place), 'utf8');
          const names = [...text.matchAll(/\bnpm (?:run (?:--silent )?)([a-z][\w:-]*)|\bnpm (test)\b/g)];
          return names
            .map(([, run, test]) => run ?? test ?? '')
            .filter((name) => known[name] === undefined)
            .map((name) => `${place}: npm run ${name}`);
        }),
    );
  });

  it('exports files that were built, with their declarations', () => {
    none(
      Object.values(manifest().exports)
        .filter((target) => target !== './package.json')
        .flatMap((target) => [target, target.replace(/\.js$/, '.d.ts')])
        .filter((target) => !existsSync(join(ROOT, target))),
    );
  });

  it('has tools that a shell can start', () => {
    none(
      Object.entries(manifest().bin).flatMap(([name, target]) => {
        const file = join(ROOT, target);
        if (!existsSync(file)) return [`${name}: ${target} is not built`];
        return readFileSync(file, 'utf8').startsWith('#!/usr/bin/env node\n') ? [] : [`${name}: no #! line`];
      }),
    );
  });

  it('links between its pages lead somewhere', () => {
    none(
      pages.flatMap((page) => {
        const text = readFileSync(join(ROOT, page), 'utf8').replace(/^```[\s\S]*?^```/gm, '');
        return [...text.matchAll(/\]\(([^)#\s]+)(?:#[^)]*)?\)/g)]
          .map(([, target = '']) => target)
          .filter((target) => !/^[a-z]+:/.test(target))
          .filter((target) => !existsSync(join(ROOT, page, '..', target)))
          .map((target) => `${page}: ${target}`);
      }),
    );
  });

  it('has a lock file that names no registry', () => {
    const lock = readFileSync(join(ROOT, 'package-lock.json'), 'utf8');
    assert.doesNotMatch(lock, /"resolved"/);
  });

  it('has scripts that can be run', () => {
    const files = ['.ci/run', ...scripts.map(({ path }) => path).filter((path) => path.endsWith('.sh'))];
    none(
      files
        .filter((file) => existsSync(join(ROOT, file)))
        .filter((file) => (statSync(join(ROOT, file)).mode & 0o111) === 0)
        .map((file) => `${file}: not executable`),
    );
  });
});
