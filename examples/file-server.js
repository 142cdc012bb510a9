/**
 * An HTTP server for large files: node:http for the protocol, zerotx/net for the bytes. Files of up to 8 MiB are kept in
 * memory of a Pool, read from disk straight into it, and every response is sent from there; larger ones are streamed.
 *
 *   node examples/file-server.js                           shows itself on loopback
 *   node examples/file-server.js <folder> [port [host]]    serves a folder; Ctrl-C ends it and prints what was copied
 */
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createReadStream } from 'node:fs';
import { mkdtemp, open, realpath, rm, writeFile } from 'node:fs/promises';
import { Agent, createServer as createHttpServer, get } from 'node:http';
import { tmpdir } from 'node:os';
import { join, sep } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { createServer, Pool, stats } from 'zerotx/net';

const CACHED_BYTES_MAX = 8 << 20;
const pool = new Pool({ maxBytes: 64 << 20 });
/** By path, the one that was used last at the end. */
const cache = new Map();

/** The file in memory that the kernel may read: { lease, users, etag }. Undefined if there is no room. */
async function load(path, file, { size, mtimeMs }) {
  const etag = `"${size}-${mtimeMs}"`;
  const known = cache.get(path);
  if (known !== undefined) cache.delete(path);
  if (known?.etag === etag) {
    cache.set(path, known);
    return known;
  }
  if (known !== undefined) giveBack(known, true);
  let lease = pool.tryAcquire(size);
  for (const [oldest, entry] of cache) {
    if (lease !== undefined) break;
    cache.delete(oldest);
    giveBack(entry, true);
    lease = pool.tryAcquire(size);
  }
  if (lease === undefined) return undefined;
  try {
    lease.length = (await file.read(lease.buffer, 0, size, 0)).bytesRead;
  } catch (error) {
    lease.release();
    throw error;
  }
  const entry = { lease, users: 0, etag, evicted: false };
  const other = cache.get(path);
  if (other !== undefined) giveBack(other, true);
  cache.set(path, entry);
  return entry;
}

/** A response may not have been sent yet, and release() takes the Buffer away: so the last user does it. */
function giveBack(entry, evict) {
  if (evict) entry.evicted = true;
  else entry.users -= 1;
  if (entry.evicted && entry.users === 0) entry.lease.release();
}

async function answer(root, request, response) {
  const { pathname } = new URL(request.url, 'http://host');
  // What links and dots lead to must lie in the folder.
  const path = await realpath(join(root, decodeURIComponent(pathname)));
  if (!path.startsWith(root + sep)) throw Object.assign(new Error('outside'), { code: 'ENOENT' });
  const file = await open(path);
  try {
    const status = await file.stat();
    if (!status.isFile()) throw Object.assign(new Error('not a file'), { code: 'ENOENT' });
    const small = status.size > 0 && status.size <= CACHED_BYTES_MAX;
    const entry = small ? await load(path, file, status) : undefined;
    if (entry === undefined) {
      response.setHeader('content-length', status.size);
      await pipeline(createReadStream(path, { highWaterMark: 256 << 10 }), response);
      return;
    }
    entry.users += 1;
    response.once('close', () => giveBack(entry, false));
    response.setHeader('content-length', entry.lease.length);
    // A view of a lease is lent as it is: nothing is copied into HTTP's hands, nor out of them.
    response.end(entry.lease.buffer.subarray(0, entry.lease.length));
  } finally {
    await file.close();
  }
}

/** HTTP over the connections of a zerotx/net server. */
async function serve(folder, port, host, zerocopy) {
  const root = await realpath(folder);
  const http = createHttpServer((request, response) => {
    answer(root, request, response).catch(({ code }) => {
      if (!response.headersSent) response.writeHead(code === 'ENOENT' ? 404 : 500).end();
      else response.destroy();
    });
  });
  // An HTTP server that does not listen itself has to be told, or it watches over no time limits.
  http.emit('listening');
  const server = createServer({ zerocopy, noDelay: true }, (socket) => http.emit('connection', socket));
  server.once('close', () => http.close());
  server.listen(port, host);
  await once(server, 'listening');
  return server;
}

function report() {
  const { lentBytes, kernelCopiedBytes, fallbackBytes, copied } = stats().zerocopy;
  const causes = Object.entries(copied).filter(([, bytes]) => bytes > 0);
  console.log(`${lentBytes} bytes lent, of which the kernel copied ${kernelCopiedBytes}`);
  console.log(`${fallbackBytes} bytes copied by zerotx:`, Object.fromEntries(causes));
}

/** Two files, each asked for a few times, and compared. */
async function demonstrate() {
  const folder = await mkdtemp(join(tmpdir(), 'zerotx-files-'));
  const files = { cached: randomBytes(4 << 20), streamed: randomBytes(16 << 20) };
  for (const [name, bytes] of Object.entries(files)) await writeFile(join(folder, name), bytes);
  // On loopback nothing is lent by itself, because it does not pay there: forced, to be seen.
  const server = await serve(folder, 0, '127.0.0.1', { mode: 'force' });
  const agent = new Agent({ keepAlive: true });
  for (const name of ['cached', 'streamed', 'cached', 'cached']) {
    const [response] = await once(get({ agent, port: server.address().port, path: `/${name}` }), 'response');
    const [seen, expected] = [createHash('sha256'), createHash('sha256').update(files[name])];
    for await (const chunk of response) seen.update(chunk);
    const same = seen.digest('hex') === expected.digest('hex');
    console.log(`${name}: ${response.headers['content-length']} bytes, ${same ? 'as on disk' : 'DIFFERENT'}`);
    if (!same) process.exitCode = 1;
  }
  agent.destroy();
  server.close();
  await once(server, 'close');
  await rm(folder, { recursive: true });
  report();
  console.log(
    'Over loopback the kernel copies whatever is lent; a network card would have read those pages itself.',
  );
}

const [folder, port = '8080', host = '127.0.0.1'] = process.argv.slice(2);
if (folder === undefined) await demonstrate();
else if (folder.startsWith('-')) {
  console.error('usage: node file-server.js [folder [port [host]]]');
  process.exitCode = 2;
} else {
  await serve(folder, port, host);
  console.log(`http://${host}:${port}/ serves ${folder}`);
  process.once('SIGINT', () => {
    report();
    process.exit();
  });
}
