/** WebSockets (the package `ws`) over zerotx/net: a server on an HTTP server fed by ours, clients over connect(). */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { afterEach, describe, it } from 'node:test';
import { type ClientOptions, WebSocket, WebSocketServer } from 'ws';
import type { ZerocopyOptions } from '../../src/net/index.ts';
import { COPY, dial, HOST, LEND, type Site, serve } from '../support/http.ts';
import { pattern } from './behaviours/scene.ts';

interface Chat {
  readonly site: Site;
  /** The server's ends, in their order. */
  readonly ends: WebSocket[];
  dial(options?: ClientOptions): Promise<WebSocket>;
}

const chats: { readonly site: Site; readonly clients: WebSocket[] }[] = [];

/** Accepts WebSockets, and sends back what comes. */
async function chat(zerocopy: ZerocopyOptions, perMessageDeflate = false): Promise<Chat> {
  const site = await serve(zerocopy);
  const ends: WebSocket[] = [];
  const clients: WebSocket[] = [];
  chats.push({ site, clients });
  const server = new WebSocketServer({ server: site.http, perMessageDeflate });
  server.on('connection', (end) => {
    ends.push(end);
    end.on('message', (data, isBinary) => end.send(data, { binary: isBinary }));
  });
  return {
    site,
    ends,
    async dial(options = {}) {
      const over = { createConnection: () => dial(site) } as ClientOptions;
      const client = new WebSocket(`ws://${HOST}:${site.port}/`, { perMessageDeflate, ...over, ...options });
      clients.push(client);
      await once(client, 'open');
      return client;
    },
  };
}

afterEach(async () => {
  for (const { site, clients } of chats.splice(0)) {
    for (const client of clients) client.terminate();
    await site.close();
  }
});

for (const [name, zerocopy] of [
  ['copied', COPY],
  ['lent', LEND],
] as const) {
  describe(`ws over zerotx/net, ${name}`, { timeout: 30_000 }, () => {
    it('echoes text and bytes', async () => {
      const client = await (await chat(zerocopy)).dial();
      for (const message of ['grüße', '', 'x'.repeat(70_000)]) {
        client.send(message);
        const [data, isBinary] = (await once(client, 'message')) as [Buffer, boolean];
        assert.equal(String(data), message);
        assert.equal(isBinary, false);
      }
      client.send(pattern(1_000));
      const [data, isBinary] = (await once(client, 'message')) as [Buffer, boolean];
      assert.ok(data.equals(pattern(1_000)));
      assert.equal(isBinary, true);
    });

    it('carries 10 MiB both ways', async () => {
      const { site, dial: open } = await chat(zerocopy);
      const client = await open();
      const message = pattern(10 << 20);
      client.send(message);
      const [data] = (await once(client, 'message')) as [Buffer];
      assert.ok(data.equals(message));
      const { lentBytes } = site.connections[0]?.stats().zerocopy ?? { lentBytes: -1 };
      if (zerocopy === LEND) assert.ok(lentBytes > message.length / 2, `${lentBytes} bytes were lent`);
      else assert.equal(lentBytes, 0);
    });

    it('keeps many messages in their order, and calls each back', async () => {
      const client = await (await chat(zerocopy)).dial();
      const count = 500;
      let sent = 0;
      const got: number[] = [];
      const all = new Promise<void>((resolve) => {
        client.on('message', (data: Buffer) => {
          got.push(data.readUInt32BE(0));
          if (got.length === count) resolve();
        });
      });
      for (let i = 0; i < count; i++) {
        const message = Buffer.alloc(4 + ((i * 97) % 40_000));
        message.writeUInt32BE(i, 0);
        client.send(message, (error) => {
          assert.ok(error === undefined || error === null);
          sent++;
        });
      }
      await all;
      assert.deepEqual(
        got,
        Array.from({ length: count }, (_, i) => i),
      );
      assert.equal(sent, count);
    });

    it('compresses, if both sides want to', async () => {
      const client = await (await chat(zerocopy, true)).dial();
      assert.match(client.extensions, /permessage-deflate/);
      const message = 'repeat '.repeat(100_000);
      client.send(message);
      const [data] = (await once(client, 'message')) as [Buffer];
      assert.equal(String(data), message);
    });

    it('pings and pongs', async () => {
      const client = await (await chat(zerocopy)).dial();
      client.ping('are you there?');
      const [data] = (await once(client, 'pong')) as [Buffer];
      assert.equal(String(data), 'are you there?');
    });

    it('closes with a code and a reason at both ends', async () => {
      const { ends, site, dial: open } = await chat(zerocopy);
      const client = await open();
      const [end] = ends as [WebSocket];
      const both = Promise.all([once(client, 'close'), once(end, 'close')]);
      client.close(4_000, 'done');
      const [[, atClient], [code, reason]] = (await both) as [[number, Buffer], [number, Buffer]];
      assert.deepEqual([code, String(reason), String(atClient)], [4_000, 'done', 'done']);
      assert.equal(await site.closings[0], false);
    });

    it('notices that the other end broke off', async () => {
      const { ends, dial: open } = await chat(zerocopy);
      const client = await open();
      const [end] = ends as [WebSocket];
      const gone = once(end, 'close');
      client.terminate();
      assert.equal((await gone)[0], 1_006);
    });

    it('fails to open where nobody listens', async () => {
      const { site } = await chat(zerocopy);
      await site.close();
      const over = { createConnection: () => dial(site) } as ClientOptions;
      const client = new WebSocket(`ws://${HOST}:${site.port}/`, over);
      const [error] = (await once(client, 'error')) as [NodeJS.ErrnoException];
      assert.equal(error.code, 'ECONNREFUSED');
    });
  });
}
