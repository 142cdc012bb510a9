/** The command line: every option in both names, numbers with suffixes, and what is refused. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { bufferBytes, refusal } from '../../src/cli/stress/limits.ts';
import { addressNumber, dotted, parseNumber } from '../../src/cli/stress/numbers.ts';
import { parseSettings, type Settings, stressCommand } from '../../src/cli/stress/options.ts';
import { defaultOptions, type StressOptions } from '../../src/wire/rds-stress-options.ts';

/** Parses, with errors thrown instead of printed. */
function parse(...args: string[]): Settings {
  const command = stressCommand('1.2.3')
    .exitOverride()
    .configureOutput({ writeOut: () => {}, writeErr: () => {} });
  return parseSettings(command, args);
}

const local: Omit<Settings, 'run'> = {
  sendAddress: undefined,
  receiveAddress: undefined,
  zerocopy: false,
  reportCpu: false,
  json: false,
  showHistogram: false,
  outlierUs: undefined,
};

const cases: [args: string[], run: Partial<StressOptions>, own: Partial<Settings>][] = [
  [[], {}, {}],
  [['-q', '1M', '-a', '1m'], { reqSize: 1_048_576, ackSize: 1_048_576 }, {}],
  [['-q4K', '--ack-bytes=64'], { reqSize: 4096, ackSize: 64 }, {}],
  [['--req-bytes', '0x400'], { reqSize: 1024 }, {}],
  [['-d', '8', '-t', '3'], { reqDepth: 8, nrTasks: 3 }, {}],
  [['--depth', '8', '--tasks', '3'], { reqDepth: 8, nrTasks: 3 }, {}],
  [['-p', '5000', '-T', '10'], { startingPort: 5000, runTime: 10 }, {}],
  [['--port', '5000', '--time', '10'], { startingPort: 5000, runTime: 10 }, {}],
  [['-s', 'b', '-r', 'a'], {}, { sendAddress: 'b', receiveAddress: 'a' }],
  [['--send-addr', 'b', '--recv-addr', 'a'], {}, { sendAddress: 'b', receiveAddress: 'a' }],
  [['-ovVzc'], { simplex: 1, verify: 1, tracing: 1, summaryOnly: 1 }, { reportCpu: true }],
  [['--verify', '--trace', '--report-summary'], { verify: 1, tracing: 1, summaryOnly: 1 }, {}],
  [['--report-cpu', '--zerocopy', '--json'], {}, { reportCpu: true, zerocopy: true, json: true }],
  [['--show-params', '--show-perfdata'], { showParams: 1, showPerfdata: 1 }, {}],
  [['--show-histogram', '--show-outliers', '500'], {}, { showHistogram: true, outlierUs: 500 }],
  [['--use-cong-monitor', '0', '--connect-retries', '7'], { useCongMonitor: 0, connectRetries: 7 }, {}],
];
for (const [args, run, own] of cases)
  test(`accepts: ${args.join(' ') || '(nothing)'}`, () => {
    assert.deepEqual(parse(...args), { ...local, ...own, run: { ...defaultOptions, ...run } });
  });

const refusedCases: [args: string[], message: RegExp][] = [
  [['-D', '1M'], /-D.*RDMA is not possible over TCP/],
  [['--rdma-bytes', '64'], /RDMA is not possible over TCP/],
  [['-I', '2'], /RDMA/],
  [['-I'], /-I.*not supported.*RDMA/],
  [['-I', '-s', 'b'], /-I.*not supported.*RDMA/],
  [['--tos'], /--tos.*not supported/],
  [['-M', '1'], /RDMA/],
  [['--rdma-use-fence', '0'], /RDMA/],
  [['--rdma-key-o-meter'], /--rdma-key-o-meter.*RDMA/],
  [['-Q', '3'], /-Q.*type of service/],
  [['--tos', '3'], /type of service/],
  [['-R'], /-R.*chrt/],
  [['--async'], /--async/],
  [['--reset', '-s', 'b'], /--reset/],
  [['-q', '62'], /request size must be at least 63 bytes/],
  [['-a', '1'], /ack size must be at least 63 bytes/],
  [['-q', '2M'], /at most 1048576/],
  [['-q', 'many'], /number of bytes/],
  [['-q', '-1'], /number of bytes/],
  [['-d', '0'], /depth must be/],
  [['-d', '65536'], /depth must be/],
  [['-t', '0'], /number of tasks must be/],
  [['-t', '70000'], /number/],
  [['-t', '512', '-d', '100'], /tasks \* tasks \* depth/],
  [['-p', '65535'], /start port/],
  [['-p', '0'], /start port/],
  [['--use-cong-monitor', '2'], /flag from 0 to 1/],
  [['--no-such'], /unknown option/],
  [['extra'], /too many arguments/],
  [['-q'], /argument missing/],
];
for (const [args, message] of refusedCases)
  test(`refuses: ${args.join(' ')}`, () => {
    assert.throws(() => parse(...args), { exitCode: 1, message });
  });

test('--help and --version end with 0 and name what counts', () => {
  let text = '';
  const command = stressCommand('1.2.3')
    .exitOverride()
    .configureOutput({ writeOut: (part) => (text += part), writeErr: () => {} });
  assert.throws(() => parseSettings(command, ['--help']), { exitCode: 0 });
  for (const word of [
    '--zerocopy',
    '100 is one core',
    'Not supported',
    '-1.00 without -c',
    '-r, --recv-addr',
    '--json',
  ])
    assert.ok(text.includes(word), word);
  assert.throws(() => parseSettings(command, ['--version']), { exitCode: 0 });
  assert.ok(text.endsWith('1.2.3\n'));
});

test('numbers', () => {
  const table: [string, number | undefined][] = [
    ['0', 0],
    ['10', 10],
    ['010', 8],
    ['0x10', 16],
    ['1k', 1024],
    ['2G', 2 ** 31],
    ['4G', undefined],
    ['', undefined],
    ['08', undefined],
    ['1.5', undefined],
    ['1KB', undefined],
    [' 1', undefined],
  ];
  for (const [text, value] of table) assert.equal(parseNumber(text, 2 ** 32 - 1), value, text);
});

test('addresses', () => {
  assert.equal(addressNumber('10.0.0.1'), 0x0a000001);
  assert.equal(addressNumber('::ffff:255.255.255.255'), 0xffffffff);
  assert.equal(dotted(0xffffffff), '255.255.255.255');
  for (const text of ['256.0.0.1', '1.2.3', '::1', 'a.b.c.d', ''])
    assert.equal(addressNumber(text), undefined);
});

test('limits that only a peer can break, and socket buffers', () => {
  assert.equal(refusal({ ...defaultOptions }), undefined);
  assert.match(refusal({ ...defaultOptions, rdmaSize: 4096 }) ?? '', /RDMA/);
  assert.equal(refusal({ ...defaultOptions, tos: 4, async: 1 }), undefined);
  assert.equal(bufferBytes(defaultOptions), 2304);
  assert.equal(bufferBytes({ ...defaultOptions, nrTasks: 2, reqDepth: 3 }), 2 * 3 * (1024 + 63) * 2);
  assert.equal(bufferBytes({ ...defaultOptions, reqDepth: 65_535, reqSize: 1_048_576 }), 2 ** 31 - 1);
});
