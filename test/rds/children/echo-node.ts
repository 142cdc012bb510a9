/**
 * A node that echoes: argv[2] is JSON for RdsNode.open(). Prints a line when it listens, or the code and text of the error; what
 * comes to port 4000 goes back with the sender's address, as this side names it, before it. Ends with its standard input.
 */
import { RdsNode, type ZerotxError } from '../../../src/rds/index.ts';

const ECHO_PORT = 4000;

try {
  const node = await RdsNode.open(JSON.parse(process.argv[2] as string));
  const socket = node.bind(ECHO_PORT);
  socket.on('readable', () => {
    for (let message = socket.recvmsg(); message !== null; message = socket.recvmsg()) {
      if (message.kind !== 'data') continue;
      const text = Buffer.concat([Buffer.from(`${message.address} `), message.data]);
      socket.sendmsg(text, { address: message.address, port: message.port });
      message.recycle();
    }
  });
  process.stdin.once('end', () => process.exit()).resume();
  console.log(node.address);
} catch (error) {
  const { code, message } = error as ZerotxError;
  console.log(`${code} ${message}`);
  process.stdin.resume();
}
