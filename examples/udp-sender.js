/**
 * A sender of numbered datagrams, 46 to a system call, and a receiver that counts which ones are missing. The sender is
 * paced by its pool: a lease is filled, sent and released at once, and comes back when the kernel has let go of it. So at
 * most eight calls are under way, however fast the program is, and memory is never written to while it is being sent.
 *
 *   node examples/udp-sender.js                                    both on loopback
 *   node examples/udp-sender.js receive <port> [address]           Ctrl-C prints what came
 *   node examples/udp-sender.js send <port> <address> [megabytes]
 */
import { once } from 'node:events';
import { createUdpSocket, Pool } from 'zerotx/net';

const DATAGRAM_BYTES = 1400;
const DATAGRAMS = 46;
const CALL_BYTES = DATAGRAM_BYTES * DATAGRAMS;
/** Eight units of 64 KiB. */
const pool = new Pool({ maxBytes: 512 << 10 });

/** Numbers the datagrams from `first` on; the rest of each is whatever was there, as a real program's payload would be. */
function number(buffer, first) {
  for (let i = 0; i < DATAGRAMS; i++) buffer.writeUInt32BE(first + i, i * DATAGRAM_BYTES);
}

async function send(port, address, megabytes, zerocopy) {
  const socket = createUdpSocket({ type: address.includes(':') ? 'udp6' : 'udp4', zerocopy });
  const total = { bytes: 0, copiedBytes: 0 };
  const sends = new Set();
  let failure = null;
  for (let first = 0; first * DATAGRAM_BYTES < megabytes * 1e6 && failure === null; first += DATAGRAMS) {
    const lease = await pool.acquire(CALL_BYTES);
    number(lease.buffer, first);
    const sent = socket.sendSegments(lease, DATAGRAM_BYTES, { port, address }).then(
      ({ bytes, copiedBytes }) => {
        total.bytes += bytes;
        total.copiedBytes += copiedBytes;
        sends.delete(sent);
      },
      (error) => {
        failure = error;
      },
    );
    sends.add(sent);
    // To the pool: now, or when the kernel is done.
    lease.release();
  }
  await Promise.all(sends);
  if (failure !== null) throw failure;
  const { datagramsWritten, zerocopy: counts } = socket.stats();
  const causes = Object.entries(counts.copied).filter(([, bytes]) => bytes > 0);
  console.log(`sent ${datagramsWritten} datagrams, ${total.bytes} bytes`);
  console.log(`copied ${total.copiedBytes} of them: ${counts.kernelCopiedBytes} by the kernel, by zerotx`, {
    ...Object.fromEntries(causes),
  });
  socket.close();
}

/** Counts what comes: undivided runs of datagrams, as the kernel put them together. */
async function receive(port, address) {
  const socket = createUdpSocket({
    type: address.includes(':') ? 'udp6' : 'udp4',
    recvBufferSize: 4 << 20,
  });
  const seen = { datagrams: 0, runs: 0, highest: -1, late: 0 };
  socket.on('batch', (run, segmentBytes) => {
    seen.runs += 1;
    for (let at = 0; at + 4 <= run.length; at += segmentBytes) {
      const its = run.readUInt32BE(at);
      if (its <= seen.highest) seen.late += 1;
      else seen.highest = its;
      seen.datagrams += 1;
    }
  });
  socket.bind(port, address);
  await once(socket, 'listening');
  const report = () => {
    const missing = seen.highest + 1 - seen.datagrams;
    console.log(
      `received ${seen.datagrams} datagrams in ${seen.runs} runs, ${seen.late} late, ${missing} missing`,
    );
    socket.close();
  };
  return { port: socket.address().port, report };
}

async function demonstrate() {
  const receiver = await receive(0, '127.0.0.1');
  // On loopback nothing is lent by itself, because it does not pay there: forced, to be seen.
  await send(receiver.port, '127.0.0.1', 100, { mode: 'force' });
  // What is left in the receive buffer comes in the next turns of the event loop.
  await new Promise((resolve) => setTimeout(resolve, 100));
  receiver.report();
  console.log(
    'Over loopback the kernel copies whatever is lent; a network card would have read those pages itself.',
  );
}

const [role, port, address = '127.0.0.1', megabytes = '1000'] = process.argv.slice(2);
if (role === undefined) await demonstrate();
else if (role === 'receive' && port !== undefined) {
  const receiver = await receive(Number(port), address);
  console.log(`receiving at ${address}, port ${receiver.port}`);
  process.once('SIGINT', receiver.report);
} else if (role === 'send' && port !== undefined) await send(Number(port), address, Number(megabytes));
else {
  console.error('usage: node udp-sender.js [receive port [address] | send port address [megabytes]]');
  process.exitCode = 2;
}
