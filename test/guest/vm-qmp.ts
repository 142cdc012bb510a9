/**
 * QEMU's machine protocol (QMP): commands with answers, and events, a JSON object a line, over a connected stream.
 *
 *   await qmp.execute('device_del', { id: 'n1' });
 *   await qmp.event('DEVICE_DELETED', (data) => data.device === 'n1');
 */
import { createInterface } from 'node:readline';
import type { Duplex, Readable } from 'node:stream';

export type QmpData = Readonly<Record<string, unknown>>;

interface QmpLine {
  readonly QMP?: unknown;
  readonly event?: string;
  readonly data?: QmpData;
  readonly id?: number;
  readonly return?: unknown;
  readonly error?: { readonly class: string; readonly desc: string };
}

interface Pending {
  resolve(value: unknown): void;
  reject(error: Error): void;
}

const ANSWER_MS = 20_000;
/** Older ones are forgotten. */
const EVENTS_MAX = 1000;

export class Qmp {
  readonly #stream: Duplex;
  readonly #pending = new Map<number, Pending>();
  readonly #events: { readonly name: string; readonly data: QmpData }[] = [];
  readonly #looks = new Set<() => void>();
  #nextId = 1;
  #gone: Error | null = null;

  constructor(stream: Duplex) {
    this.#stream = stream;
    stream.on('close', () => this.#close());
    lines(stream, (line) => this.#line(JSON.parse(line) as QmpLine));
    // Until this has been said no other command is taken; an error of it shows in the next.
    void this.execute('qmp_capabilities').catch(() => {});
  }

  /** What the command returns; rejects with QEMU's words. */
  execute(command: string, args: QmpData = {}): Promise<unknown> {
    const id = this.#nextId++;
    return within(`QMP ${command}`, (resolve, reject) => {
      if (this.#gone !== null) return reject(this.#gone);
      this.#pending.set(id, {
        resolve,
        reject: (error) => reject(new Error(`QMP ${command}: ${error.message}`)),
      });
      this.#stream.write(`${JSON.stringify({ execute: command, arguments: args, id })}\n`);
    });
  }

  /** The first event of that name that suits, come or to come; each is given once. */
  async event(name: string, suits: (data: QmpData) => boolean = () => true): Promise<QmpData> {
    let look: () => void = () => {};
    try {
      return await within(`QMP event ${name}`, (resolve, reject) => {
        look = () => {
          const index = this.#events.findIndex((event) => event.name === name && suits(event.data));
          if (index >= 0) resolve(this.#events.splice(index, 1)[0]?.data ?? {});
          else if (this.#gone !== null) reject(this.#gone);
        };
        this.#looks.add(look);
        look();
      });
    } finally {
      this.#looks.delete(look);
    }
  }

  #line(line: QmpLine): void {
    if (line.event !== undefined) {
      this.#events.push({ name: line.event, data: line.data ?? {} });
      if (this.#events.length > EVENTS_MAX) this.#events.shift();
      for (const look of [...this.#looks]) look();
      return;
    }
    const pending = this.#pending.get(line.id ?? 0);
    this.#pending.delete(line.id ?? 0);
    if (line.error === undefined) pending?.resolve(line.return);
    else pending?.reject(new Error(line.error.desc));
  }

  #close(): void {
    this.#gone = new Error('QEMU has closed the connection');
    for (const { reject } of this.#pending.values()) reject(this.#gone);
    this.#pending.clear();
    for (const look of [...this.#looks]) look();
  }
}

/** Errors of the stream are not the reader's: QEMU's end is noticed elsewhere, and readline would pass them on. */
export function lines(stream: Readable, take: (line: string) => void): void {
  stream.on('error', () => {});
  createInterface(stream)
    .on('line', take)
    .on('error', () => {});
}

async function within<T>(
  what: string,
  begin: (resolve: (value: T) => void, reject: (error: Error) => void) => void,
): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  try {
    return await new Promise<T>((resolve, reject) => {
      timer = setTimeout(() => reject(new Error(`${what}: nothing within ${ANSWER_MS} ms`)), ANSWER_MS);
      begin(resolve, reject);
    });
  } finally {
    clearTimeout(timer);
  }
}
