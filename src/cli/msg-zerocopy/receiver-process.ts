/**
 * The receiver of a run whose two ends are on this host: a process of its own, so that the CPU time of the sender is the
 * sender's. The parent starts it with the settings as its argument, hears where it listens, says stop, and hears what came.
 */
import { type Received, receive } from './receiver.ts';
import type { Settings } from './settings.ts';

/** What this process says, each at most once. */
export type Said =
  | { readonly address: string; readonly port: number }
  | { readonly received: Received }
  | { readonly code: string; readonly message: string };

const stop = new AbortController();
// The parent decides when it is over: Ctrl-C reaches both of them, and it has to stop sending first.
process.on('SIGINT', () => {});
process.on('message', () => stop.abort());
process.on('disconnect', () => process.exit(0));

const settings = JSON.parse(process.argv[2] ?? '') as Settings;
const say = (said: Said): void => {
  process.send?.(said);
};
try {
  const listening = (address: string, port: number): void => say({ address, port });
  say({ received: await receive(settings, { stop: stop.signal, listening }) });
} catch (error) {
  const { code = 'EIO', message } = error as NodeJS.ErrnoException;
  say({ code, message });
}
