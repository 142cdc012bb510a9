/**
 * A program that sends out by a device, in the network namespace that the parent made, and asks `zerotx explain` about
 * itself: prints what that says.
 *
 *   sink      UDP by i0, an ifb, whose driver drops what it is given: nothing is copied
 *   tap       the same while a packet socket is open
 *   veth      TCP by z0, a veth whose other end has a receiver in another namespace
 */
import assert from 'node:assert/strict';
import { execFile, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { promisify } from 'node:util';
import { connect, openControl, UdpSocket } from '../../../src/net/index.ts';
import { native } from '../../../src/sys/binding.ts';

const [mode = 'sink', tool = ''] = process.argv.slice(2);
const AF_PACKET = 17;
const SOCK_RAW = 3;
/** ETH_P_ALL in network order. */
const ALL_PROTOCOLS = 0x0300;

async function explain(...args: string[]): Promise<string> {
  const { stdout } = await promisify(execFile)(process.execPath, [
    tool,
    'explain',
    ...args,
    `${process.pid}`,
  ]);
  return stdout;
}

async function print(): Promise<void> {
  process.stdout.write(
    JSON.stringify({ report: JSON.parse(await explain('--json')), text: await explain() }),
  );
}

async function sendToSink(): Promise<void> {
  const socket = new UdpSocket({ type: 'udp4', zerocopy: { pin: true } });
  socket.connect(9, '10.98.0.2');
  await once(socket, 'connect');
  for (let i = 0; i < 40; i++) await socket.sendSegments(Buffer.alloc(64_000), 1000);
  await print();
  socket.close();
}

async function sendOverVeth(): Promise<void> {
  const receiver = `
    require('node:net').createServer((socket) => socket.resume()).listen(9000, () => console.log('ready'));
    process.stdin.resume().on('end', () => process.exit());`;
  const child = spawn('unshare', ['--net', process.execPath, '-e', receiver], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  await once(child.stdout, 'data');
  execFileSync('ip', ['link', 'set', 'z1', 'netns', `${child.pid}`]);
  for (const args of ['addr add 10.99.0.2/24 dev z1', 'link set z1 up']) {
    execFileSync('nsenter', ['-t', `${child.pid}`, '-n', 'ip', ...args.split(' ')]);
  }
  const socket = connect({ port: 9000, host: '10.99.0.2', zerocopy: { pin: true } });
  for (let i = 0; i < 40; i++) await socket.send(Buffer.alloc(300_000));
  await print();
  socket.destroy();
  child.stdin.end();
}

openControl();
if (mode === 'tap') assert.ok(native().socket(AF_PACKET, SOCK_RAW, ALL_PROTOCOLS) >= 0);
await (mode === 'veth' ? sendOverVeth() : sendToSink());
