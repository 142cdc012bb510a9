/** node:http over zerotx/net, at both ends: what HTTP asks of a socket, once copied and once lent. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { IncomingMessage, RequestListener } from 'node:http';
import { request } from 'node:http';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { afterEach, describe, it } from 'node:test';
import type { ZerocopyOptions } from '../../src/net/index.ts';
import { ask, COPY, dial, HOST, LEND, readAll, type Site, serve, TcpAgent } from '../support/http.ts';
import { event, everything, pattern } from './behaviours/scene.ts';

const TEN_MIB = 10 << 20;
const BODY = pattern(TEN_MIB + 1);

const sites: Site[] = [];

async function site(zerocopy: ZerocopyOptions, listener: RequestListener): Promise<Site> {
  const made = await serve(zerocopy, listener);
  sites.push(made);
  return made;
}

afterEach(async () => {
  await Promise.all(sites.splice(0).map((one) => one.close()));
});

/** Sends the body back. */
const echo: RequestListener = (asked, answer) => {
  answer.writeHead(200, { 'content-type': asked.headers['content-type'] ?? 'application/octet-stream' });
  asked.pipe(answer);
};

for (const [name, zerocopy] of [
  ['copied', COPY],
  ['lent', LEND],
] as const) {
  describe(`node:http over zerotx/net, ${name}`, { timeout: 30_000 }, () => {
    it('answers a request, and knows the addresses of both ends', async () => {
      const one = await site(zerocopy, (asked, answer) => {
        answer.end(`${asked.method} ${asked.url} ${asked.socket.remoteAddress} ${asked.socket.localPort}`);
      });
      const answer = await ask(one, { path: '/hello' });
      assert.equal(answer.statusCode, 200);
      assert.equal(String(await readAll(answer)), `GET /hello ${HOST} ${one.port}`);
    });

    it('keeps a connection for many requests', async () => {
      const one = await site(zerocopy, echo);
      const agent = new TcpAgent(one, { keepAlive: true, maxSockets: 1 });
      for (let i = 0; i < 30; i++) {
        const answer = await ask(one, { method: 'POST', agent }, Buffer.from(`request ${i}`));
        assert.equal(String(await readAll(answer)), `request ${i}`);
      }
      assert.equal(one.connections.length, 1);
      agent.destroy();
    });

    it('makes several connections for requests at once', async () => {
      const one = await site(zerocopy, echo);
      const agent = new TcpAgent(one, { keepAlive: true, maxSockets: 4 });
      const bodies = Array.from({ length: 16 }, (_, i) => pattern(50_000 + i));
      const answers = await Promise.all(
        bodies.map(async (body) => readAll(await ask(one, { method: 'PUT', agent }, body))),
      );
      for (const [i, answer] of answers.entries()) assert.ok(answer.equals(bodies[i] as Buffer));
      assert.equal(one.connections.length, 4);
      agent.destroy();
    });

    it('answers pipelined requests in their order', async () => {
      const one = await site(zerocopy, (asked, answer) => {
        // The later, the sooner: the answers must be put in order.
        const turns = 10 - Number(asked.url?.slice(1));
        const later = (left: number): void => {
          if (left === 0) answer.end(`<${asked.url}>`);
          else setImmediate(later, left - 1);
        };
        later(turns);
      });
      const socket = dial(one);
      let text = '';
      for (let i = 0; i < 10; i++) {
        const close = i === 9 ? 'Connection: close\r\n' : '';
        text += `GET /${i} HTTP/1.1\r\nHost: ${HOST}\r\n${close}\r\n`;
      }
      socket.write(text);
      const answers = String(await everything(socket));
      const order = [...answers.matchAll(/<\/(\d)>/g)].map(([, digit]) => Number(digit));
      assert.deepEqual(order, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
      assert.equal(one.connections.length, 1);
    });

    it('carries 10 MiB down with a length, in one write', async () => {
      const one = await site(zerocopy, (_asked, answer) => {
        answer.writeHead(200, { 'content-length': BODY.length });
        answer.end(BODY);
      });
      const answer = await ask(one, {});
      assert.ok(BODY.equals(await readAll(answer)));
      const { lentBytes } = one.connections[0]?.stats().zerocopy ?? { lentBytes: -1 };
      if (zerocopy === LEND) assert.ok(lentBytes > TEN_MIB / 2, `${lentBytes} bytes were lent`);
      else assert.equal(lentBytes, 0);
    });

    it('carries 10 MiB up with a length', async () => {
      const one = await site(zerocopy, async (asked, answer) => {
        const body = await readAll(asked);
        answer.end(String(body.equals(BODY)));
      });
      const headers = { 'content-length': BODY.length };
      const answer = await ask(one, { method: 'PUT', headers }, BODY);
      assert.equal(String(await readAll(answer)), 'true');
    });

    it('carries 10 MiB up and down at once in chunks', async () => {
      const one = await site(zerocopy, echo);
      const parts = Array.from({ length: 80 }, (_, i) => BODY.subarray(i * 131_072, (i + 1) * 131_072));
      const answer = await ask(one, { method: 'POST' }, Readable.from(parts));
      assert.equal(answer.headers['transfer-encoding'], 'chunked');
      assert.ok(Buffer.concat(parts).equals(await readAll(answer)));
    });

    it('holds the writer back while nobody reads the answer', async () => {
      let written = 0;
      const one = await site(zerocopy, (_asked, answer) => {
        const chunk = pattern(64 * 1024);
        const more = (): void => {
          while (written < BODY.length) {
            written += chunk.length;
            if (!answer.write(chunk)) {
              answer.once('drain', more);
              return;
            }
          }
          answer.end();
        };
        more();
      });
      const answer = await ask(one, {});
      await once(answer, 'readable');
      assert.ok(written < BODY.length, `${written} bytes were taken`);
      const body = await readAll(answer);
      assert.equal(body.length, written);
      assert.ok(written >= BODY.length);
    });

    it('runs the callbacks of answer.write() and answer.end()', async () => {
      const order: string[] = [];
      const one = await site(zerocopy, (_asked, answer) => {
        answer.on('finish', () => order.push('finish'));
        answer.write(BODY.subarray(0, 200_000), () => order.push('write'));
        answer.end(BODY.subarray(0, 10), () => order.push('end'));
      });
      const answer = await ask(one, {});
      assert.equal((await readAll(answer)).length, 200_010);
      assert.equal(await one.closings[0], false);
      assert.deepEqual([...order].sort(), ['end', 'finish', 'write']);
    });

    it('tells the server that the client went away', async () => {
      let gone: Promise<unknown> | undefined;
      const one = await site(zerocopy, (_asked, answer) => {
        gone = event(answer, 'close');
        answer.write(BODY);
      });
      const answer = await ask(one, {});
      answer.on('error', () => {});
      await once(answer, 'readable');
      answer.destroy();
      await Promise.all([gone, one.closings[0]]);
    });

    it('tells the client that the server went away', async () => {
      const one = await site(zerocopy, (asked, answer) => {
        answer.writeHead(200, { 'content-length': 1_000 });
        answer.write('only this', () => asked.socket.destroy());
      });
      const answer = await ask(one, {});
      await assert.rejects(readAll(answer), { code: 'ECONNRESET' });
    });

    it('aborts a request by its signal', async () => {
      const abort = new AbortController();
      const one = await site(zerocopy, () => abort.abort());
      await assert.rejects(ask(one, { signal: abort.signal }), { code: 'ABORT_ERR' });
    });

    it('emits timeout for an answer that does not come', async () => {
      const one = await site(zerocopy, () => {});
      const asked = request({ host: HOST, port: one.port, createConnection: () => dial(one) });
      asked.on('error', () => {});
      asked.setTimeout(25);
      asked.end();
      await once(asked, 'timeout');
      asked.destroy();
    });

    it('asks before it sends: 100-continue', async () => {
      const one = await site(zerocopy, echo);
      const asked = request({
        host: HOST,
        port: one.port,
        method: 'POST',
        headers: { expect: '100-continue' },
        createConnection: () => dial(one),
      });
      asked.flushHeaders();
      await once(asked, 'continue');
      asked.end('now');
      const [answer] = (await once(asked, 'response')) as [IncomingMessage];
      assert.equal(String(await readAll(answer)), 'now');
    });

    it('hands the connection over by CONNECT, with what came already', async () => {
      const one = await site(zerocopy, () => {});
      one.http.on('connect', (_asked, socket, head) => {
        socket.write('HTTP/1.1 200 Connection Established\r\n\r\n');
        socket.write(head);
        socket.pipe(socket);
      });
      const socket = dial(one);
      socket.write(`CONNECT ${HOST}:1 HTTP/1.1\r\nHost: ${HOST}\r\n\r\nearly `);
      socket.end('late');
      const text = String(await everything(socket));
      assert.ok(text.endsWith('\r\n\r\nearly late'), text);
    });

    it('closes all connections when the HTTP server says so', async () => {
      const one = await site(zerocopy, echo);
      const agent = new TcpAgent(one, { keepAlive: true });
      await readAll(await ask(one, { method: 'POST', agent }, Buffer.from('x')));
      one.http.closeAllConnections();
      await one.closings[0];
      agent.destroy();
    });

    it('refuses what is no HTTP', async () => {
      const one = await site(zerocopy, echo);
      const socket = dial(one);
      socket.write('what is this?\r\n\r\n');
      assert.match(String(await everything(socket)), /^HTTP\/1\.1 400 Bad Request/);
    });

    it('serves through pipeline()', async () => {
      const one = await site(zerocopy, (_asked, answer) => {
        const parts = Array.from({ length: 10 }, (_, i) => BODY.subarray(i * 100_000, (i + 1) * 100_000));
        pipeline(Readable.from(parts), answer).catch((error) => answer.destroy(error));
      });
      assert.ok(BODY.subarray(0, 1_000_000).equals(await readAll(await ask(one, {}))));
    });
  });
}
