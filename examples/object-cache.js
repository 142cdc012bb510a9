/**
 * A cache of large objects that many clients read: each object lies once in a lease, filled once, and every answer is sent
 * from there, to several clients at the same time. The pool is the limit: to make room, release() the object that was not
 * used for longest. If it is being sent just now, its memory comes back when the kernel is done, and acquire() waits for it.
 *
 *   node examples/object-cache.js                   shows itself on loopback
 *   node examples/object-cache.js <port> [host]     serves; ask with:  printf '7\n' | nc <host> <port> | wc -c
 *
 * The protocol: a line with the name of an object, answered by its length in four bytes and the object.
 */
import { once } from 'node:events';
import { connect, createServer, Pool } from 'zerotx/net';

const OBJECT_BYTES = 1 << 20;
const pool = new Pool({ maxBytes: 8 << 20 });
/** Promises of leases by name, the one that was used last at the end. */
const objects = new Map();
const counts = { sent: 0, filled: 0, evicted: 0, bytes: 0, copiedBytes: 0 };

/** Stands for whatever makes objects: a file, a database, a renderer. */
function fill(buffer, name) {
  buffer.fill(name);
}

/** The lease with the object, filled if need be. */
async function objectOf(name) {
  const known = objects.get(name);
  if (known !== undefined) {
    objects.delete(name);
    objects.set(name, known);
    return known;
  }
  const made = make(name);
  made.catch(() => objects.delete(name));
  objects.set(name, made);
  return made;
}

async function make(name) {
  let lease = pool.tryAcquire(OBJECT_BYTES);
  if (lease === undefined) {
    evictOldest();
    lease = await pool.acquire(OBJECT_BYTES);
  }
  fill(lease.buffer, name);
  counts.filled += 1;
  return lease;
}

function evictOldest() {
  const [name, made] = objects.entries().next().value;
  objects.delete(name);
  counts.evicted += 1;
  made.then((lease) => lease.release());
}

/** Answers one request. */
async function answer(socket, name) {
  let lease = await objectOf(name);
  // Evicted before its turn came.
  while (lease.state === 'released') lease = await objectOf(name);
  const header = Buffer.alloc(4);
  header.writeUInt32BE(lease.length);
  socket.write(header);
  const { bytes, copiedBytes } = await socket.send(lease);
  counts.sent += 1;
  counts.bytes += bytes;
  counts.copiedBytes += copiedBytes;
}

async function serve(socket) {
  let rest = '';
  for await (const chunk of socket.setEncoding('utf8')) {
    const lines = (rest + chunk).split('\n');
    rest = lines.pop();
    if (rest.length > 100) throw new Error('no name is that long');
    for (const name of lines.filter((line) => line !== '')) await answer(socket, name);
  }
  socket.end();
}

async function listen(port, host, zerocopy) {
  const server = createServer({ zerocopy, allowHalfOpen: true }, (socket) => {
    // A client that goes away ends its own connection only.
    serve(socket).catch(() => socket.destroy());
  });
  server.listen(port, host);
  await once(server, 'listening');
  return server;
}

/** Asks for objects, one after the other, and looks at every byte. */
async function readAll(port, names) {
  const socket = connect(port, '127.0.0.1');
  socket.write(`${names.join('\n')}\n`);
  let expected = names.flatMap((name) => [null, name]);
  let data = Buffer.alloc(0);
  for await (const chunk of socket) {
    data = Buffer.concat([data, chunk]);
    for (let bytes = 4; expected.length > 0 && data.length >= bytes; bytes = 4) {
      const [name] = expected;
      if (name !== null) bytes = OBJECT_BYTES;
      if (data.length < bytes) break;
      if (name !== null && !data.subarray(0, bytes).equals(Buffer.alloc(bytes, name)))
        throw new Error('mixed up');
      data = data.subarray(bytes);
      expected = expected.slice(1);
    }
    if (expected.length === 0) socket.end();
  }
}

/** Eight clients, twelve objects, and room for eight of them. */
async function demonstrate() {
  // On loopback nothing is lent by itself, because it does not pay there: forced, to be seen.
  const server = await listen(0, '127.0.0.1', { mode: 'force' });
  const { port } = server.address();
  const clients = Array.from({ length: 8 }, (_, client) =>
    readAll(
      port,
      Array.from({ length: 12 }, (_, i) => String(100 + ((client + i) % 12))),
    ),
  );
  await Promise.all(clients);
  server.close();
  await once(server, 'close');
  const { sent, filled, evicted, bytes, copiedBytes } = counts;
  console.log(
    `${sent} objects sent, ${filled} filled, ${evicted} evicted; ${pool.stats().mappedBytes} bytes of memory`,
  );
  console.log(`${bytes} bytes sent without a copy of ours, of which ${copiedBytes} were copied after all:`);
  console.log(
    'over loopback the kernel copies whatever is lent; a network card would have read those pages itself.',
  );
}

const [port, host = '127.0.0.1'] = process.argv.slice(2);
if (port === undefined) await demonstrate();
else if (!/^\d+$/.test(port)) {
  console.error('usage: node object-cache.js [port [host]]');
  process.exitCode = 2;
} else {
  await listen(port, host);
  console.log(`objects of ${OBJECT_BYTES} bytes at ${host}:${port}`);
}
