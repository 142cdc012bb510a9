/**
 * Two RDS end points in one program: a server that sends every message back, and a client that lends it a megabyte.
 * Both addresses are open in this process, so the messages are copied over without TCP; run it as two programs to see
 * the wire:  node examples/echo.js server 127.0.0.2   and   node examples/echo.js client 127.0.0.1 127.0.0.2
 */
import { RdsNode } from 'zerotx/rds';

const PORT = 4000;

async function serve(address) {
  const node = await RdsNode.open({ address });
  const socket = node.bind(PORT);
  for await (const message of socket) {
    await socket.send(message.data, { address: message.address, port: message.port });
    message.recycle();
  }
}

async function ask(address, server) {
  const node = await RdsNode.open({ address });
  const socket = node.bind(0, { zerocopy: true });
  const outcome = await socket.send(Buffer.alloc(1 << 20, 'z'), { address: server, port: PORT });
  console.log(`lent ${outcome.bytes} bytes, of which ${outcome.copiedBytes} were copied after all`);
  for await (const message of socket) {
    console.log(`${message.length} bytes came back from ${message.address}`);
    break;
  }
  await node.close();
}

const [role = 'both', address = '127.0.0.1', server = '127.0.0.2'] = process.argv.slice(2);
if (role === 'server') await serve(address);
else if (role === 'client') await ask(address, server);
else if (role !== 'both') {
  console.error('usage: node echo.js [server [address] | client [address [server]]]');
  process.exitCode = 2;
} else {
  serve(server).catch((error) => {
    throw error;
  });
  await ask(address, server);
  process.exit();
}
