/** The client `undici` over sockets of zerotx/net, with a server of node:http over ours too. */
import assert from 'node:assert/strict';
import type { RequestListener } from 'node:http';
import { Readable } from 'node:stream';
import { afterEach, describe, it } from 'node:test';
import { Agent, type buildConnector, Client, type Dispatcher, fetch, Pool } from 'undici';
import { connect, type ZerocopyOptions } from '../../src/net/index.ts';
import { asSocket, COPY, HOST, LEND, readAll, type Site, serve } from '../support/http.ts';
import { pattern } from './behaviours/scene.ts';

const BODY = pattern((10 << 20) + 1);

/** A connector as undici wants it: calls back with an open socket. */
function connector(zerocopy: ZerocopyOptions): buildConnector.connector {
  return ({ hostname, port }, callback) => {
    const socket = connect({ host: hostname, port: Number(port), zerocopy, noDelay: true });
    const failed = (error: Error): void => callback(error, null);
    socket.once('error', failed);
    socket.once('connect', () => {
      socket.off('error', failed);
      callback(null, asSocket(socket));
    });
  };
}

const sites: Site[] = [];
const dispatchers: Dispatcher[] = [];

function use<D extends Dispatcher>(dispatcher: D): D {
  dispatchers.push(dispatcher);
  return dispatcher;
}

async function site(
  zerocopy: ZerocopyOptions,
  listener: RequestListener,
): Promise<Site & { origin: string }> {
  const made = await serve(zerocopy, listener);
  sites.push(made);
  return { ...made, origin: `http://${HOST}:${made.port}` };
}

afterEach(async () => {
  await Promise.all(dispatchers.splice(0).map((one) => one.destroy()));
  await Promise.all(sites.splice(0).map((one) => one.close()));
});

const echo: RequestListener = (asked, answer) => {
  asked.pipe(answer);
};

for (const [name, zerocopy] of [
  ['copied', COPY],
  ['lent', LEND],
] as const) {
  describe(`undici over zerotx/net, ${name}`, { timeout: 30_000 }, () => {
    it('Client: many requests over one connection', async () => {
      const one = await site(zerocopy, (asked, answer) => {
        answer.end(asked.url);
      });
      const client = use(new Client(one.origin, { connect: connector(zerocopy) }));
      for (let i = 0; i < 20; i++) {
        const { statusCode, body } = await client.request({ path: `/${i}`, method: 'GET' });
        assert.equal(statusCode, 200);
        assert.equal(await body.text(), `/${i}`);
      }
      assert.equal(one.connections.length, 1);
    });

    it('Client: pipelined requests', async () => {
      const one = await site(zerocopy, (asked, answer) => {
        answer.end(asked.url);
      });
      const client = use(new Client(one.origin, { connect: connector(zerocopy), pipelining: 10 }));
      const answers = await Promise.all(
        Array.from({ length: 50 }, async (_, i) => {
          const { body } = await client.request({ path: `/${i}`, method: 'GET' });
          return body.text();
        }),
      );
      assert.deepEqual(
        answers,
        Array.from({ length: 50 }, (_, i) => `/${i}`),
      );
      assert.equal(one.connections.length, 1);
    });

    it('Client: 10 MiB up and down', async () => {
      const one = await site(zerocopy, echo);
      const client = use(new Client(one.origin, { connect: connector(zerocopy) }));
      const { body } = await client.request({ path: '/', method: 'POST', body: BODY });
      assert.ok(BODY.equals(Buffer.from(await body.arrayBuffer())));
    });

    it('Client: 10 MiB up as a stream, in chunks', async () => {
      const one = await site(zerocopy, echo);
      const client = use(new Client(one.origin, { connect: connector(zerocopy) }));
      const parts = Array.from({ length: 40 }, (_, i) => BODY.subarray(i * 262_144, (i + 1) * 262_144));
      const { body } = await client.request({ path: '/', method: 'POST', body: Readable.from(parts) });
      assert.ok(Buffer.concat(parts).equals(await readAll(body)));
    });

    it('Pool: several connections at once', async () => {
      const one = await site(zerocopy, echo);
      const pool = use(new Pool(one.origin, { connect: connector(zerocopy), connections: 4 }));
      const bodies = Array.from({ length: 24 }, (_, i) => pattern(100_000 + i));
      const answers = await Promise.all(
        bodies.map(async (sent) => {
          const { body } = await pool.request({ path: '/', method: 'PUT', body: sent });
          return Buffer.from(await body.arrayBuffer());
        }),
      );
      for (const [i, answer] of answers.entries()) assert.ok(answer.equals(bodies[i] as Buffer));
      assert.equal(one.connections.length, 4);
    });

    it('fetch() with a dispatcher', async () => {
      const one = await site(zerocopy, echo);
      const dispatcher = use(new Agent({ connect: connector(zerocopy) }));
      const answer = await fetch(one.origin, { method: 'POST', body: BODY, dispatcher });
      assert.ok(BODY.equals(Buffer.from(await answer.arrayBuffer())));
    });

    it('a request that is aborted ends its connection, and the next one gets another', async () => {
      const abort = new AbortController();
      let requests = 0;
      const one = await site(zerocopy, (_asked, answer) => {
        if (++requests === 1) abort.abort();
        else answer.end('second');
      });
      const client = use(new Client(one.origin, { connect: connector(zerocopy) }));
      await assert.rejects(client.request({ path: '/', method: 'GET', signal: abort.signal }), {
        name: 'AbortError',
      });
      const { body } = await client.request({ path: '/', method: 'GET' });
      assert.equal(await body.text(), 'second');
      assert.equal(one.connections.length, 2);
    });

    it('a server that breaks off: the request fails, and the next one gets another connection', async () => {
      let requests = 0;
      const one = await site(zerocopy, (asked, answer) => {
        if (++requests === 1) asked.socket.destroy();
        else answer.end('second');
      });
      const client = use(new Client(one.origin, { connect: connector(zerocopy) }));
      await assert.rejects(client.request({ path: '/', method: 'POST', body: 'x' }), {
        code: 'UND_ERR_SOCKET',
      });
      const { body } = await client.request({ path: '/', method: 'GET' });
      assert.equal(await body.text(), 'second');
    });

    it('a port where nobody listens: ECONNREFUSED', async () => {
      const one = await site(zerocopy, echo);
      await one.close();
      const client = use(new Client(one.origin, { connect: connector(zerocopy) }));
      await assert.rejects(client.request({ path: '/', method: 'GET' }), { code: 'ECONNREFUSED' });
    });
  });
}
