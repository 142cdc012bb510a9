/** What a run prints: columns, summary, histogram and the comma-separated lines. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { columnsHeader, intervalLine, summaryLine } from '../../src/cli/stress/columns.ts';
import { RttHistogram } from '../../src/cli/stress/histogram.ts';
import { Perfdata } from '../../src/cli/stress/perfdata.ts';
import { ratesOf, sumTotals, totalsBetween, zeroTotals } from '../../src/cli/stress/statistics.ts';
import { copiedShare, lendingLine } from '../../src/cli/stress/summary.ts';

const totals = { reqTx: 100, reqRx: 90, ackTx: 90, ackRx: 95, sendUs: 1234, rttUs: 19_000 };
const sizes = { reqSize: 1024, ackSize: 63 };

test('header and lines have the widths of rds-tools', () => {
  const header = 'tsks   tx/s   rx/s  tx+rx K/s    mbi K/s    mbo K/s tx us/c   rtt us cpu %';
  assert.equal(columnsHeader, header);
  const line = intervalLine(1, ratesOf(totals, 1, sizes), undefined);
  assert.equal(line, '   1    100     90     201.38       0.00       0.00   12.34   200.00 -1.00');
  assert.equal(line.length, header.length);
});

test('an interval shows counts, the summary rates', () => {
  const rates = ratesOf(totals, 2, sizes);
  assert.match(intervalLine(12, rates, 42), /^ {2}12 {4}100 {5}90 {5}100\.69 /);
  assert.equal(
    summaryLine(12, rates, 42),
    '  12     50     45     100.69       0.00       0.00   12.34   200.00 42.00  (average)',
  );
});

test('nothing measured is shown as zeros', () => {
  assert.equal(
    summaryLine(1, ratesOf(zeroTotals(), 0, sizes), undefined),
    '   1      0      0       0.00       0.00       0.00    0.00     0.00 -1.00  (average)',
  );
});

test('totals add up and subtract', () => {
  const sum = sumTotals([totals, totals]);
  assert.equal(sum.reqTx, 200);
  assert.deepEqual(totalsBetween(sum, totals), totals);
});

test('the histogram sorts by powers of two', () => {
  const histogram = new RttHistogram();
  for (const us of [0, 0.4, 1, 2, 3.9, 4, 40_000, 70_000, 1e12]) histogram.add(us);
  assert.deepEqual(histogram.counts.slice(0, 3), [3, 2, 1]);
  assert.equal(histogram.counts[15], 3);
  const lines = histogram.lines();
  assert.equal(lines[1], 'RTT histogram');
  assert.equal(lines[3], '[     1 -      2] \t\t        3');
  assert.equal(lines[18], '[ 32768 -    inf] \t\t        3');
  assert.equal(lines.length, 19);
});

test('perfdata: as many values as columns, counters as rates', () => {
  let sent = 10;
  let busy = 0;
  const perfdata = new Perfdata(
    { nrTasks: 2, reqSize: 1024, ackSize: 63 },
    () => ({ send_queued: sent, lentBytes: 1, name: 'x' }),
    () => `cpu  ${100 + busy} 0 100 ${200 + busy} 0 0 0 0 0 0\ncpu0 1 2 3\nintr ${busy} 0 0\n`,
  );
  const header = perfdata.header();
  assert.match(header, /^::nr_tasks:count,req_size:bytes,.*,send_queued:count,lentBytes:bytes,user/);
  sent = 30;
  busy = 50;
  const line = perfdata.line(ratesOf(totals, 2, sizes), 2, undefined);
  assert.equal(line.split(',').length, header.split(',').length);
  assert.match(
    line,
    /^::2,1024,63,0,100,100\.\d+,0\.000000,12\.340000,200\.000000,0\.000000,10\.000000,0\.000000/,
  );
  assert.ok(line.endsWith(',50.000000,0.000000,50.000000,0.000000,50'));
  assert.match(perfdata.line(ratesOf(zeroTotals(), 0, sizes), 1, 5), /,0\.000000,0$/);
});

test('the share that was copied comes from the counters', () => {
  assert.equal(copiedShare(1000, { lentBytes: 900, kernelCopiedBytes: 150 }), 0.25);
  assert.equal(copiedShare(1000, { lentBytes: 0, kernelCopiedBytes: 0 }), 1);
  assert.equal(copiedShare(0, { lentBytes: 0, kernelCopiedBytes: 0 }), 0);
  assert.equal(copiedShare(10, { lentBytes: 20, kernelCopiedBytes: 0 }), 0);
  const lending = { sends: 10, bytes: 1000, completions: 9, copiedInstead: 0, copiedShare: 0.25 };
  assert.equal(lendingLine(lending), 'zerocopy: 10 sends, 9 completions, 25.0 % of the bytes copied');
  assert.match(lendingLine({ ...lending, copiedInstead: 2 }), /, 2 copied for want of memory$/);
});
