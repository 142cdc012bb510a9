/**
 * The side with `-s`: reaches the passive side, tells it the options, and ends the run after `-T`.
 */
import { lookup } from 'node:dns/promises';
import { ZerotxError } from '../../index.ts';
import { type ControlConnection, connectControl } from './control.ts';
import { addressNumber, dotted } from './numbers.ts';
import { type Context, refuseSameAddress, run } from './run.ts';

/** What a peer that is not up yet, or a route that is not, looks like. */
const retried = new Set(['ECONNREFUSED', 'EHOSTUNREACH', 'ENETUNREACH']);

export async function runActive(context: Context, sendAddress: string): Promise<void> {
  const { settings } = context;
  const options = { ...settings.run };
  options.sendAddr = await resolve(sendAddress);
  if (settings.receiveAddress !== undefined) options.receiveAddr = await resolve(settings.receiveAddress);
  if (options.showParams !== 0) printParams(context);
  const control = await reach(context, dotted(options.sendAddr), options.receiveAddr);
  try {
    if (options.receiveAddr === 0) options.receiveAddr = addressNumber(control.localAddress) ?? 0;
    refuseSameAddress(options);
    control.sendOptions(options);
    await run('active', options, control, context);
  } finally {
    control.destroy();
  }
}

/** The IPv4 address of a name or dotted quad, as a number: the options that travel have room for no other kind. */
export async function resolve(name: string): Promise<number> {
  const address = addressNumber(name) ?? addressNumber(await lookUp(name));
  if (address !== undefined) return address;
  throw new ZerotxError('EINVAL', `'${name}' is not an IPv4 address`);
}

/** What the resolver makes of `name`; an IPv6 address, whatever family is asked for, it gives back as it is. */
async function lookUp(name: string): Promise<string> {
  try {
    const { address } = await lookup(name, { family: 4 });
    return address;
  } catch (cause) {
    throw new ZerotxError('EADDRNOTAVAIL', `invalid host name or dotted quad '${name}'`, { cause });
  }
}

async function reach(context: Context, host: string, receiveAddr: number): Promise<ControlConnection> {
  const { output, ending, settings } = context;
  const port = settings.run.startingPort;
  const localAddress = receiveAddr === 0 ? undefined : dotted(receiveAddr);
  output.part(`connecting to ${host}:${port}`);
  for (let tries = 0; ; tries++) {
    try {
      const control = await connectControl({ host, port, localAddress });
      output.line('');
      return control;
    } catch (error) {
      const code = (error as NodeJS.ErrnoException).code ?? 'EIO';
      if (tries === 0) output.part(`: ${code}`);
      if (tries >= settings.run.connectRetries || !retried.has(code)) {
        output.line('');
        throw new ZerotxError(code, `cannot connect to ${host}:${port}: ${code}`, { cause: error });
      }
      output.part(tries === 0 ? ' - retrying.' : '.');
      if (await ending.within(1000)) throw new ZerotxError('ABORT_ERR', 'interrupted');
    }
  }
}

function printParams(context: Context): void {
  const { nrTasks, reqSize, ackSize, rdmaSize } = context.settings.run;
  context.output.line('Options:');
  for (const [name, value] of [
    ['Tasks', nrTasks],
    ['Req size', reqSize],
    ['ACK size', ackSize],
    ['RDMA size', rdmaSize],
  ] as const)
    context.output.line(`  ${name.padEnd(10)} ${String(value).padEnd(7)}`);
  context.output.line('');
}
