/** Metrics as Prometheus would scrape them, with the real prom-client, against stats(). */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { after, before, describe, it } from 'node:test';
import * as client from 'prom-client';
import { LATENCY_BOUNDS_US } from '../../src/core/histogram.ts';
import { COPY_CAUSES, collectMetrics, connect, createServer, Pool, stats } from '../../src/net/index.ts';

/** Samples of the text format, by `name{label="value"}`. */
function parse(text: string): Map<string, number> {
  return new Map(
    text
      .split('\n')
      .filter((line) => line !== '' && !line.startsWith('#'))
      .map((line) => {
        const at = line.lastIndexOf(' ');
        return [line.slice(0, at), Number(line.slice(at + 1))] as const;
      }),
  );
}

describe('collectMetrics', { timeout: 30_000 }, () => {
  const server = createServer((socket) => socket.resume());
  const pool = new Pool({ maxBytes: 1 << 21 });

  before(async () => {
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    for (const mode of ['force', 'auto', 'off'] as const) {
      await using socket = connect({ port, host: '127.0.0.1', zerocopy: { mode } });
      const lease = await pool.acquire(256 * 1024);
      await socket.send(lease);
      lease.release();
      await socket.send(Buffer.from('small'));
    }
  });

  after(() => server[Symbol.asyncDispose]());

  it('shows what stats() shows', async () => {
    const register = new client.Registry();
    collectMetrics(client, { register });
    const now = stats();
    const found = parse(await register.metrics());
    const { zerocopy, pools } = now;
    assert.ok(zerocopy.lentBytes > 0 && zerocopy.copied.loopback > 0 && zerocopy.copied.off > 0);
    assert.ok(now.pinnedBytesMax > 0 && now.closedSockets >= 3 && pools.hits + pools.misses === 3);
    const wanted = new Map<string, number>([
      ['closed_sockets_total', now.closedSockets],
      ['lent_calls_total', zerocopy.lentCalls],
      ['lent_bytes_total', zerocopy.lentBytes],
      ...COPY_CAUSES.map(
        (cause) => [`copied_bytes_total{cause="${cause}"}`, zerocopy.copied[cause]] as const,
      ),
      ['kernel_copied_calls_total', zerocopy.kernelCopiedCalls],
      ['kernel_copied_bytes_total', zerocopy.kernelCopiedBytes],
      ['refused_calls_total{error="ENOBUFS"}', zerocopy.refusedEnobufs],
      ['refused_calls_total{error="other"}', zerocopy.refusedOther],
      ['unexpected_completions_total', zerocopy.unexpectedCompletions],
      ['pool_requests_total{result="hit"}', pools.hits],
      ['pool_requests_total{result="miss"}', pools.misses],
      ['pool_requests_total{result="refused"}', pools.refused],
      ['pool_leaked_total', pools.leaked],
      ['pool_mutated_total', pools.mutated],
      ['sockets', now.sockets],
      ['lingering_sockets', now.lingering],
      ['quarantined_sockets', now.quarantinedSockets],
      ['quarantined_bytes', now.quarantinedBytes],
      ['pinned_bytes', now.pinnedBytes],
      ['pinned_bytes_max', now.pinnedBytesMax],
      ['memlock_limit_pages', now.memlockLimitPages],
      ['memlock_used_pages', now.memlockUsedPages],
      ['pools', pools.pools],
      ['pool_mapped_bytes', pools.mappedBytes],
      ['pool_used_bytes', pools.usedBytes],
      ['pool_leases', pools.leases],
      ['pool_lent_leases', pools.lent],
      ['pool_waiting', pools.waiting],
      ['release_seconds_sum', zerocopy.latency.sumUs / 1e6],
      ['release_seconds_count', zerocopy.latency.count],
      ...buckets(zerocopy.latency.buckets),
    ]);
    assert.deepEqual(found, new Map([...wanted].map(([name, value]) => [`zerotx_${name}`, value])));
  });

  it('has the names that OpenMetrics wants, and a prefix and a registry of one’s choice', async () => {
    const register = new client.Registry<client.OpenMetricsContentType>();
    register.setContentType(client.Registry.OPENMETRICS_CONTENT_TYPE);
    collectMetrics(client, { register, prefix: 'my_' });
    const text = await register.metrics();
    assert.match(text, /^# TYPE my_lent_bytes counter$/m);
    assert.match(text, /^my_lent_bytes_total \d+$/m);
    assert.match(text, /^# TYPE my_release_seconds histogram$/m);
    assert.match(text, /# EOF\n$/);
    assert.ok(!text.includes('zerotx_'));
    const json = await register.getMetricsAsJSON();
    assert.ok(json.some(({ name }) => name === 'my_release_seconds'));
  });

  it('reads values when they are scraped', async () => {
    const register = new client.Registry();
    collectMetrics(client, { register });
    const before = parse(await register.metrics()).get('zerotx_pool_requests_total{result="hit"}') as number;
    (await pool.acquire(256 * 1024)).release();
    const again = parse(await register.metrics()).get('zerotx_pool_requests_total{result="hit"}');
    assert.equal(again, before + 1);
  });

  it('registers with the default registry, and refuses a second time there', () => {
    collectMetrics(client);
    assert.ok(client.register.getSingleMetric('zerotx_lent_bytes_total') !== undefined);
    assert.throws(() => collectMetrics(client), /already been registered/);
    client.register.clear();
  });

  it('refuses what is not the module', () => {
    assert.throws(() => collectMetrics(undefined as never), { code: 'ERR_INVALID_ARG_TYPE' });
    assert.throws(() => collectMetrics(client, { prefix: 1 as never }), { code: 'ERR_INVALID_ARG_TYPE' });
  });
});

/** Cumulative, every bound, each time: as Prometheus wants it. */
function buckets(
  counted: readonly { readonly belowUs: number; readonly count: number }[],
): (readonly [string, number])[] {
  return LATENCY_BOUNDS_US.map((boundUs) => {
    const le = Number.isFinite(boundUs) ? boundUs / 1e6 : '+Inf';
    const upTo = counted.filter(({ belowUs }) => belowUs <= boundUs);
    return [`release_seconds_bucket{le="${le}"}`, upTo.reduce((sum, { count }) => sum + count, 0)] as const;
  });
}
