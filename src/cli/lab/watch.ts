/** Opens ports, and tells what happens to them, beside whoever joined them: only one can listen to `onChange`. */
import { DgramPort, type PcapPort, type Port, StreamPort, ZerotxError } from '../../ports/index.ts';
import type { VhostUserDevice } from '../../vhost/index.ts';
import type { CaptureFile } from './capture-file.ts';
import type { Tell } from './events.ts';

/** Opens a port; what it throws says which one. */
export async function openPort(port: Port): Promise<void> {
  try {
    await port.open();
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === undefined) throw error;
    throw new ZerotxError(code, `${port.name}: ${message}`, { cause: error });
  }
}

function reasonOf(port: Port): string | undefined {
  const error = port instanceof StreamPort || port instanceof DgramPort ? port.lastError : null;
  return error === null ? undefined : ((error as NodeJS.ErrnoException).code ?? error.message);
}

function waitingAt(port: Port): { readonly waitsAt?: string } {
  const waitsAt = port instanceof StreamPort ? port.listensAt : null;
  return waitsAt === null ? {} : { waitsAt };
}

/** What may fail and tells nobody. */
interface Failing {
  readonly failure: Error | null;
}

export class PortWatch {
  readonly #tell: Tell;
  readonly #failing = new Map<Failing, { readonly port: string; readonly event: 'lost' | 'capture' }>();
  #isOver = false;

  constructor(tell: Tell) {
    this.#tell = (event) => {
      if (!this.#isOver) tell(event);
    };
  }

  /**
   * Tells when `port` goes up and down. To be called when it has been joined; `isFinal`: a port of this kind does not come up
   * again, as a tap whose device was removed. Of a stream that cannot connect, or datagrams that nobody takes, each reason is told once.
   */
  port(port: Port, isFinal: boolean): void {
    let wasUp = port.isUp;
    let reason: string | undefined;
    const joined = port.onChange;
    port.onChange = () => {
      joined?.();
      const now = reasonOf(port);
      if (port.isUp === wasUp && (now === undefined || now === reason)) return;
      wasUp = port.isUp;
      reason = now;
      this.#tell({
        ...{ event: 'link', port: port.name, up: wasUp },
        ...(now === undefined ? {} : { reason: now }),
        ...(wasUp ? {} : waitingAt(port)),
      });
      if (!wasUp && isFinal) this.#tell({ event: 'lost', port: port.name, reason: 'its device is gone' });
    };
    if ('failure' in port) this.#failing.set(port as PcapPort, { port: port.name, event: 'lost' });
  }

  /** Tells of a stream that listens, once it is open. */
  opened(port: Port): void {
    const waits = waitingAt(port);
    if (!port.isUp && 'waitsAt' in waits) this.#tell({ event: 'link', port: port.name, up: false, ...waits });
  }

  /** Tells of a device's socket, its guest, and what these do wrong. */
  device(device: VhostUserDevice): void {
    const port = device.name;
    let leaves = false;
    device.on('state', (state) => {
      if (leaves) this.#tell({ event: 'left', port });
      leaves = state === 'connected';
      this.#tell({ event: 'socket', port, state, path: device.path });
    });
    device.on('link', (up) => this.#tell({ event: 'link', port, up }));
    device.on('broken', (ring, reason) => this.#tell({ event: 'ring', port, ring, reason }));
    device.on('failure', ({ message }) => {
      leaves = false;
      this.#tell({ event: 'disconnect', port, reason: message });
    });
  }

  file(port: string, file: CaptureFile): void {
    this.#failing.set(file, { port, event: 'capture' });
  }

  /** Looks for failures that came since the last time. */
  check(): void {
    for (const [failing, { port, event }] of this.#failing) {
      if (failing.failure === null) continue;
      this.#failing.delete(failing);
      this.#tell({ event, port, reason: failing.failure.message });
    }
  }

  /** Tells nothing any more: what happens now was asked for. */
  end(): void {
    this.#isOver = true;
  }
}
