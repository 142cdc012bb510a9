/**
 * The side without `-s`: waits for one active side, takes its options, and runs until it leaves.
 *
 * Anybody can connect to the control port. A connection that sends no options within a few seconds, or options that
 * cannot be run, is told off in one line and closed; the wait goes on. Connections are read side by side, so that a
 * silent one does not keep the real peer out.
 *
 * Who says that it waits can also run: with `-r` the RDS node is open by then, without it, where the peer decides which
 * of our addresses it will be, at least the addon is loaded.
 */
import { type AddressInfo, createServer, type Server } from 'node:net';
import { ZerotxError } from '../../index.ts';
import type { StressOptions } from '../../wire/rds-stress-options.ts';
import { resolve } from './active.ts';
import { ControlConnection } from './control.ts';
import { refusal } from './limits.ts';
import { addressNumber, dotted } from './numbers.ts';
import type { Output } from './report.ts';
import { type Context, closeNode, openNode, run } from './run.ts';

const optionsTimeoutMs = 5_000;
const connectionsMax = 16;

export async function runPassive(context: Context): Promise<void> {
  const { settings } = context;
  const own = settings.receiveAddress === undefined ? 0 : await resolve(settings.receiveAddress);
  const node = own === 0 ? undefined : await openNode(own, context);
  if (node === undefined) await context.loadAddon();
  const { control, options } = await awaitPeer(own, settings.run.startingPort, context).catch(
    async (error) => {
      if (node !== undefined) await closeNode(node, context);
      throw error;
    },
  );
  // Its addresses, seen from here.
  const sendAddr =
    options.receiveAddr === 0 ? (addressNumber(control.remoteAddress) ?? 0) : options.receiveAddr;
  const receiveAddr = own === 0 ? (addressNumber(control.localAddress) ?? 0) : own;
  try {
    await run('passive', { ...options, sendAddr, receiveAddr }, control, context, node);
  } finally {
    control.destroy();
  }
}

interface Accepted {
  control: ControlConnection;
  options: StressOptions;
}

/** Resolves with the first connection that sends options which can be run; then nobody else is let in. */
async function awaitPeer(
  own: number,
  port: number,
  context: Pick<Context, 'output' | 'ending'>,
): Promise<Accepted> {
  const { output, ending } = context;
  const server = createServer({ allowHalfOpen: true });
  server.maxConnections = connectionsMax;
  await listen(server, dotted(own), port);
  const { port: bound } = server.address() as AddressInfo;
  output.line(`waiting for incoming connection on ${dotted(own)}:${bound}`);
  const pending = new Set<ControlConnection>();
  try {
    return await new Promise<Accepted>((resolve, reject) => {
      server.on('error', reject);
      server.on('connection', (socket) => {
        const control = new ControlConnection(socket);
        pending.add(control);
        void negotiate(control, output).then((options) => {
          // Not pending any more: another one was quicker, and this one is closed.
          if (options === undefined || !pending.delete(control)) return;
          resolve({ control, options });
        });
      });
      void ending.whenEnded().then(() => reject(new ZerotxError('ABORT_ERR', 'interrupted')));
    });
  } finally {
    server.close();
    for (const control of pending) control.destroy();
    pending.clear();
  }
}

function listen(server: Server, host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen({ host, port, backlog: connectionsMax }, () => {
      server.off('error', reject);
      resolve();
    });
  });
}

/** The options a new connection sends, or undefined after closing it. */
async function negotiate(control: ControlConnection, output: Output): Promise<StressOptions | undefined> {
  const from = `${control.remoteAddress}:${control.remotePort}`;
  try {
    const options = await control.receiveOptions(optionsTimeoutMs);
    const why = refusal(options);
    if (why !== undefined) throw new ZerotxError('EINVAL', `options refused: ${why}`);
    output.line(`accepted connection from ${from} on ${control.localAddress}`);
    return options;
  } catch (error) {
    output.error(`ignored connection from ${from}: ${(error as Error).message}`);
    control.destroy();
    return undefined;
  }
}
