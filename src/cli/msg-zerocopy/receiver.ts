/** The three kinds of receiver: they count, and throw away what they count. */
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { createServer, UdpSocket } from '../../net/index.ts';
import { RdsNode } from '../../rds/index.ts';
import { addressOf, DEFAULT_PORT, type Settings, type Test } from './settings.ts';

export interface Received {
  /** Reads of a TCP stream, datagrams, or messages. */
  readonly packets: number;
  readonly bytes: number;
  /** From the first packet to the last. */
  readonly seconds: number;
  readonly cpuUserSeconds: number;
  readonly cpuSystemSeconds: number;
  /** Why it broke off; null if it did not. */
  readonly error: string | null;
}

export interface ReceiverOptions {
  /** Ends the run. */
  readonly stop: AbortSignal;
  readonly listening: (address: string, port: number) => void;
}

/** Asked of the kernel, which gives what net.core.rmem_max admits. */
const UDP_BUFFER_BYTES = 4 << 20;
/** A moment for what is on its way, or not read yet, when the end comes. */
const LAST_MS = 50;

class Tally {
  #packets = 0;
  #bytes = 0;
  #firstMs = 0;
  #lastMs = 0;
  readonly #cpu = process.cpuUsage();

  count(packets: number, bytes: number): void {
    this.#lastMs = performance.now();
    if (this.#packets === 0) this.#firstMs = this.#lastMs;
    this.#packets += packets;
    this.#bytes += bytes;
  }

  result(error: Error | null = null): Received {
    const { user, system } = process.cpuUsage(this.#cpu);
    return {
      packets: this.#packets,
      bytes: this.#bytes,
      seconds: (this.#lastMs - this.#firstMs) / 1000,
      cpuUserSeconds: user / 1e6,
      cpuSystemSeconds: system / 1e6,
      error: error === null ? null : error.message,
    };
  }
}

type Receive = (at: Address, options: ReceiverOptions) => Promise<Received>;

interface Address {
  readonly address: string;
  readonly family: 4 | 6;
  readonly port: number;
}

/** Receives until `stop`, or until the sender ends a TCP connection. Throws EADDRINUSE and its kin. */
export async function receive(settings: Settings, options: ReceiverOptions): Promise<Received> {
  const name = settings.destination ?? (settings.family === 6 ? '::' : '0.0.0.0');
  const { address, family } = await addressOf(name, settings.family);
  return receivers[settings.test]({ address, family, port: settings.port ?? DEFAULT_PORT }, options);
}

const receivers: Readonly<Record<Test, Receive>> = { tcp: receiveTcp, udp: receiveUdp, rds: receiveRds };

async function receiveTcp({ address, port }: Address, { stop, listening }: ReceiverOptions) {
  const tally = new Tally();
  const server = createServer();
  const over = new Promise<Error | null>((resolve) => {
    stop.addEventListener('abort', () => resolve(null));
    server.on('connection', (socket) => {
      server.close();
      socket.on('data', ({ length }: Buffer) => tally.count(1, length));
      socket.on('error', resolve);
      socket.on('close', () => resolve(null));
      stop.addEventListener('abort', () => socket.destroy());
    });
  });
  server.listen({ host: address, port });
  await once(server, 'listening');
  const bound = server.address() as AddressInfo;
  listening(bound.address, bound.port);
  const error = await over;
  server.close();
  return tally.result(error);
}

async function receiveUdp({ address, family, port }: Address, { stop, listening }: ReceiverOptions) {
  const tally = new Tally();
  const socket = new UdpSocket({
    type: family === 6 ? 'udp6' : 'udp4',
    recvBufferSize: UDP_BUFFER_BYTES,
  });
  socket.on('batch', ({ length }, segmentBytes) => {
    tally.count(Math.max(1, Math.ceil(length / segmentBytes)), length);
  });
  socket.bind(port, address);
  await once(socket, 'listening');
  const bound = socket.address();
  listening(bound.address, bound.port);
  await stopped(stop);
  socket.close();
  return tally.result();
}

async function receiveRds({ address, port }: Address, { stop, listening }: ReceiverOptions) {
  const tally = new Tally();
  const node = await RdsNode.open({ address });
  const socket = node.bind(port);
  socket.on('readable', () => {
    for (let message = socket.recvmsg(); message !== null; message = socket.recvmsg()) {
      if (message.kind !== 'data') continue;
      tally.count(1, message.length);
      message.recycle();
    }
  });
  listening(node.address, socket.port);
  await stopped(stop);
  await node.close();
  return tally.result();
}

function stopped(stop: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const onAbort = (): void => {
      setTimeout(resolve, LAST_MS);
    };
    if (stop.aborted) onAbort();
    else stop.addEventListener('abort', onAbort, { once: true });
  });
}
