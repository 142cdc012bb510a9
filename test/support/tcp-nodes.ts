/**
 * RDS nodes over real TCP for tests: each is a process of its own as far as the others can tell, may live in faster
 * time (back-off, drain and handshake waits are seconds), and notes what it receives and warns of.
 */
import assert from 'node:assert/strict';
import { ownHost } from '../../src/rds/address.ts';
import { processEnvironment } from '../../src/rds/environment.ts';
import { allowedBlocks, type NodeKey, tcpKeys } from '../../src/rds/keys.ts';
import { RdsNode } from '../../src/rds/node.ts';
import type { NodeLimits, SocketOptions } from '../../src/rds/options.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import type { Runtime } from '../../src/rds/transport.ts';
import { until } from './raw-peer.ts';

export interface TestNodeOptions {
  readonly limits?: Partial<NodeLimits>;
  /** Offered to peers; 8 if left out. */
  readonly lanes?: number;
  /** Addresses and blocks. */
  readonly allow?: readonly string[];
  readonly keys?: readonly NodeKey[];
  readonly mode?: 'auto' | 'force' | 'off';
  /** Virtual milliseconds per real one. */
  readonly speed?: number;
  readonly socket?: SocketOptions;
  /** The wall clock, from which sequence numbers start. */
  readonly epochMs?: () => number;
  /** Share it between nodes that are to be in one process. */
  readonly nodes?: Map<string, RdsNode>;
}

export interface Received {
  readonly address: string;
  readonly port: number;
  readonly data: Buffer;
}

/** The port every test node listens on. */
export const PORT = 4000;

let exchanged = 0;

export class TestNode {
  readonly node: RdsNode;
  readonly socket: RdsSocket;
  readonly warnings: { event: string; address: string; detail: string }[] = [];
  readonly received: Received[] = [];
  /** Cookies in the order in which they came. */
  readonly cookies: number[] = [];
  /** While false the program does not read. */
  reading = true;

  constructor(address: string, options: TestNodeOptions = {}) {
    const keys = tcpKeys(options.keys, ownHost(address).ip);
    const environment = processEnvironment({ mode: options.mode ?? 'off', keys });
    const runtime = faster(environment.runtime, options.speed ?? 1);
    const nodes = options.nodes ?? new Map();
    const epochMs = options.epochMs ?? environment.epochMs;
    const allow = allowedBlocks(options.allow, keys);
    this.node = new RdsNode(
      address,
      { ...environment, runtime, nodes, epochMs },
      options.limits,
      allow,
      options.lanes,
    );
    this.node.on('warning', (warning) => this.warnings.push(warning));
    this.socket = this.node.bind(PORT, options.socket);
    this.socket.on('readable', () => this.read());
  }

  get address(): string {
    return this.node.address;
  }

  /** Reads all there is, if the program reads at all. */
  read(): void {
    while (this.reading) {
      const next = this.socket.recvmsg();
      if (next === null) return;
      if (next.kind !== 'congestion') this.cookies.push(...next.cookies);
      if (next.kind !== 'data') continue;
      this.received.push({ address: next.address, port: next.port, data: Buffer.from(next.data) });
      next.recycle();
    }
  }

  /** Payloads of one peer, as text. */
  from(address: string): string[] {
    return this.received.filter((one) => one.address === address).map(({ data }) => data.toString());
  }

  warningsOf(address: string): string[] {
    return this.warnings.filter((warning) => warning.address === address).map(({ event }) => event);
  }

  /** One message there and one back: both nodes work, and are connected. */
  async exchange(other: TestNode): Promise<void> {
    for (const [sender, receiver] of [
      [this, other],
      [other, this],
    ] as const) {
      const text = `${sender.address} ${exchanged++}`;
      sender.socket.sendmsg(Buffer.from(text), { address: receiver.address, port: PORT });
      await until(`${text} at ${receiver.address}`, () => receiver.from(sender.address).includes(text));
    }
    // Once each: the last of each is the newest.
    assert.equal(new Set(other.from(this.address)).size, other.from(this.address).length);
    assert.equal(new Set(this.from(other.address)).size, this.from(other.address).length);
  }

  async close(): Promise<void> {
    await this.node.close({ timeoutMs: 5000 });
  }
}

function faster(runtime: Runtime, speed: number): Runtime {
  if (speed === 1) return runtime;
  return {
    ...runtime,
    now: () => runtime.now() * speed,
    timer: (task, delayMs) => runtime.timer(task, delayMs / speed),
  };
}
