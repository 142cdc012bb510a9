/**
 * A port around a port, which changes nothing: what middleware start from.
 *
 *   switch ── send() ──▶ wrapper ── send() ──▶ inner
 *          ◀─ receiver ─         ◀─ receiver ─
 */
import { ZerotxError } from '../../core/errors.ts';
import type { FrameTable } from '../../core/frames.ts';
import type { Capability, FrameReceiver, Port, PortCounters } from '../../core/port.ts';

export class Wrapper implements Port {
  receiver: FrameReceiver | null = null;
  onWritable: (() => void) | null = null;
  onChange: (() => void) | null = null;
  protected readonly inner: Port;

  /** Throws `ZTX_PORT_TAKEN` for a port that somebody has joined. */
  constructor(inner: Port) {
    if (inner.receiver !== null) {
      throw new ZerotxError('ZTX_PORT_TAKEN', `port ${inner.name}: it is joined already`);
    }
    this.inner = inner;
    inner.receiver = (table) => this.received(table);
    inner.onWritable = () => this.writable();
    inner.onChange = () => this.onChange?.();
  }

  get name(): string {
    return this.inner.name;
  }

  get capability(): Capability {
    return this.inner.capability;
  }

  get counters(): PortCounters {
    return this.inner.counters;
  }

  get isUp(): boolean {
    return this.inner.isUp;
  }

  send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    return this.inner.send(table, which, from, count);
  }

  resume(): void {
    this.inner.resume();
  }

  open(): Promise<void> {
    return this.inner.open();
  }

  close(): Promise<void> {
    return this.inner.close();
  }

  /** Frames came out of the inner port. */
  protected received(table: FrameTable): number {
    if (this.receiver !== null) return this.receiver(table, this);
    this.inner.counters.rxDropped += table.count;
    return table.count;
  }

  /** The inner port takes frames again. */
  protected writable(): void {
    this.onWritable?.();
  }
}
