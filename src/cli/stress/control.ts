/**
 * The control connection: plain TCP from the active to the passive side, before and during a run.
 *
 *   active                                 passive (port: the start port)
 *     │  options, 59 or 77 bytes, one write   │
 *     │ ────────────────────────────────────▶ │   both bind their RDS sockets
 *     │  1 byte: mine are bound               │
 *     │ ────────────────────────────────────▶ │
 *     │  1 byte: mine too                     │
 *     │ ◀──────────────────────────────────── │   both start; nothing more is said
 *     │  end of stream, from either side: the run is over
 *
 * The passive side of rds-tools insists on getting the first 16 bytes in one read, hence one write; this one takes them
 * in any pieces.
 */
import { connect, type Socket } from 'node:net';
import { ZerotxError } from '../../index.ts';
import {
  decodeOptions,
  encodeOptions,
  OPTIONS_PROBE_BYTES,
  optionsBytes,
  optionsForm,
  type StressOptions,
} from '../../wire/rds-stress-options.ts';
import type { Ending } from './ending.ts';

/** A peer binds some sockets between two of its messages: rds-tools takes a second for each child it waits for. */
const readyTimeoutMs = 60_000;

export class ControlConnection {
  readonly #socket: Socket;
  #error: Error | undefined;

  /** `socket` must have been made with `allowHalfOpen`, so that the end of one direction leaves the other. */
  constructor(socket: Socket) {
    this.#socket = socket;
    socket.setNoDelay(true);
    socket.setKeepAlive(true, 5_000);
    // What failed shows in the read that waits, or as the end of the run.
    socket.on('error', (error) => {
      this.#error = error;
    });
  }

  get localAddress(): string {
    return withoutMapping(this.#socket.localAddress ?? '');
  }

  get remoteAddress(): string {
    return withoutMapping(this.#socket.remoteAddress ?? '');
  }

  get remotePort(): number {
    return this.#socket.remotePort ?? 0;
  }

  sendOptions(options: StressOptions): void {
    this.#socket.write(encodeOptions(options));
  }

  async receiveOptions(timeoutMs: number): Promise<StressOptions> {
    const first = await this.#read(OPTIONS_PROBE_BYTES, timeoutMs);
    const form = optionsForm(first);
    const rest = await this.#read(optionsBytes(form) - OPTIONS_PROBE_BYTES, timeoutMs);
    return decodeOptions(Buffer.concat([first, rest]), form);
  }

  /** The active side's half of the exchange that says both are bound. */
  async offerReady(ending: Ending): Promise<void> {
    this.#socket.write(Buffer.alloc(1));
    await this.#readReady(ending);
  }

  /** The passive side's half. */
  async answerReady(ending: Ending): Promise<void> {
    await this.#readReady(ending);
    this.#socket.write(Buffer.alloc(1));
  }

  /** Ends the run when the peer closes; call it once the exchange is over. */
  watch(ending: Ending): void {
    const gone = (): void => ending.end('peer');
    if (this.#socket.readableEnded || this.#socket.destroyed) gone();
    this.#socket.once('end', gone);
    this.#socket.once('close', gone);
    // Nothing is due any more; what comes all the same is thrown away.
    this.#socket.resume();
  }

  /** Tells the peer that the run is over. */
  end(): void {
    if (!this.#socket.writableEnded) this.#socket.end();
  }

  /** The same, and waits a little for the peer to say it too: then nothing more is sent to us. */
  async finish(waitMs: number): Promise<void> {
    const socket = this.#socket;
    if (!socket.destroyed) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, waitMs);
        const done = (): void => {
          clearTimeout(timer);
          resolve();
        };
        socket.once('end', done);
        socket.once('close', done);
        if (socket.readableEnded) done();
        this.end();
        socket.resume();
      });
    }
    socket.destroy();
  }

  destroy(): void {
    this.#socket.destroy();
  }

  async #readReady(ending: Ending): Promise<void> {
    const interrupted = new AbortController();
    void ending.whenEnded().then(() => interrupted.abort());
    await this.#read(1, readyTimeoutMs, interrupted.signal);
  }

  /** Exactly `bytes` bytes. */
  #read(bytes: number, timeoutMs: number, signal?: AbortSignal): Promise<Buffer> {
    const socket = this.#socket;
    return new Promise((resolve, reject) => {
      const settle = (finish: () => void): void => {
        clearTimeout(timer);
        socket.off('readable', attempt);
        socket.off('end', closed);
        socket.off('close', closed);
        signal?.removeEventListener('abort', aborted);
        finish();
      };
      const fail = (code: string, why: string): void =>
        settle(() => reject(new ZerotxError(code, `control connection: ${why}`, { cause: this.#error })));
      const closed = (): void => fail('ECONNRESET', this.#error?.message ?? 'the peer closed it');
      const aborted = (): void => fail('ABORT_ERR', 'interrupted');
      const attempt = (): void => {
        const chunk = socket.read(bytes) as Buffer | null;
        if (chunk === null) return;
        if (chunk.length === bytes) settle(() => resolve(chunk));
        else closed();
      };
      const timer = setTimeout(() => fail('ETIMEDOUT', `nothing came for ${timeoutMs} ms`), timeoutMs);
      socket.on('readable', attempt);
      socket.once('end', closed);
      socket.once('close', closed);
      signal?.addEventListener('abort', aborted);
      if (socket.destroyed || socket.readableEnded) closed();
      else attempt();
    });
  }
}

/** One try to reach the passive side. */
export function connectControl(options: {
  host: string;
  port: number;
  localAddress: string | undefined;
}): Promise<ControlConnection> {
  const { host, port, localAddress } = options;
  const socket = connect({
    host,
    port,
    allowHalfOpen: true,
    ...(localAddress === undefined ? {} : { localAddress }),
  });
  return new Promise((resolve, reject) => {
    socket.once('error', reject);
    socket.once('connect', () => {
      socket.off('error', reject);
      resolve(new ControlConnection(socket));
    });
  });
}

/** A dual-stack listener shows IPv4 addresses as `::ffff:10.0.0.1`. */
function withoutMapping(address: string): string {
  return address.replace(/^::ffff:(?=\d+\.)/i, '');
}
