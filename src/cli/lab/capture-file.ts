/**
 * A capture file of a port: takes what withCapture() writes. Frames never wait for the disk: while too much waits for it,
 * records are left out and counted. What is written stays a proper capture, as chunks are whole records.
 */
import { createWriteStream, openSync, type WriteStream } from 'node:fs';

const WAITING_BYTES_MAX = 32 * 1024 * 1024;

export class CaptureFile {
  readonly path: string;
  /** Bytes of records that were left out. */
  omittedBytes = 0;
  /** What ended the writing. */
  failure: Error | null = null;
  #stream: WriteStream | null = null;
  /** The head of the file, which comes before it is open. */
  #head: Uint8Array[] = [];

  constructor(path: string) {
    this.path = path;
  }

  /** Creates the file; throws what open(2) says. */
  open(): void {
    const stream = createWriteStream(this.path, { fd: openSync(this.path, 'w') });
    stream.on('error', (error) => {
      this.failure ??= error;
      this.#stream = null;
    });
    for (const chunk of this.#head) stream.write(chunk);
    this.#head = [];
    this.#stream = stream;
  }

  readonly write = (chunk: Uint8Array): void => {
    const stream = this.#stream;
    if (stream === null) {
      if (this.failure === null) this.#head.push(chunk.slice());
    } else if (stream.writableLength > WAITING_BYTES_MAX) this.omittedBytes += chunk.length;
    // The chunk is the writer's own again when we return.
    else stream.write(chunk.slice());
  };

  /** Resolves when all is in the file, or cannot be. */
  async close(): Promise<void> {
    const stream = this.#stream;
    this.#stream = null;
    if (stream === null) return;
    await new Promise<void>((resolve) => {
      stream.once('close', resolve);
      stream.end();
    });
  }
}
