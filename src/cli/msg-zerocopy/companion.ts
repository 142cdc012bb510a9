/** The parent's side of receiver-process.ts. */
import { fork } from 'node:child_process';
import { ZerotxError } from '../../index.ts';
import type { Received } from './receiver.ts';
import type { Said } from './receiver-process.ts';
import type { Settings } from './settings.ts';

export interface Companion {
  readonly address: string;
  readonly port: number;
  /** What it got. It ends with the connection where there is one, else, and if that `failed`, it is told to. */
  result(failed: boolean): Promise<Received>;
  kill(): void;
}

/** Starts a receiver; rejects with what it could not do. */
export function startCompanion(settings: Settings): Promise<Companion> {
  const child = fork(new URL('./receiver-process.js', import.meta.url), [JSON.stringify(settings)], {
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  });
  return new Promise<Companion>((resolve, reject) => {
    let told: (received: Received) => void = () => {};
    let failed: (error: unknown) => void = reject;
    const result = new Promise<Received>((resolveResult) => {
      told = resolveResult;
    });
    const broken = new Promise<never>((_, rejectResult) => {
      failed = (error) => {
        reject(error);
        rejectResult(error);
      };
    });
    // Whoever does not wait for the result has been told before.
    broken.catch(() => {});
    child.on('error', (error) => failed(error));
    child.on('exit', (code) => failed(new ZerotxError('EIO', `the receiver ended with ${code}`)));
    child.on('message', (said: Said) => {
      if ('received' in said) told(said.received);
      else if ('port' in said) {
        const resultOf = (runFailed: boolean): Promise<Received> => {
          if (child.connected && (runFailed || settings.test !== 'tcp')) child.send('stop');
          return Promise.race([result, broken]);
        };
        resolve({ ...said, result: resultOf, kill: () => child.kill('SIGKILL') });
        return;
      } else failed(new ZerotxError(said.code, said.message));
      // It has nothing more to say, and ends when nobody listens.
      child.disconnect();
    });
  });
}
