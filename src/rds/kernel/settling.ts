/**
 * Memory of messages that were withdrawn, until TCP has let go of it.
 *
 * The kernel gives a cookie back as soon as nothing of RDS refers to its message. For one that was acknowledged that is
 * enough. One that was withdrawn (RDS_CANCEL_SENT_TO) may have been handed to TCP before, which goes on sending it from the
 * same pages; whoever wrote to them then would send what he wrote. TCP's positions tell when it is done: of every connection
 * to that address the kernel shows where the last message ends (last_expected_una) and how far the peer has acknowledged
 * (last_seen_una; rds_tcp_tc_info in net/rds/tcp.c). A connection that is gone has let go, too.
 */
import type { TcpSocketInfo } from '../info.ts';
import type { Runtime, Timer } from '../transport.ts';
import { withoutZone } from './address.ts';

const FIRST_LOOK_MS = 2;
const LOOK_MS_MAX = 100;
/** A peer that reads nothing for so long may never do: no timer looks after the memory any more, which stays as it is. */
const QUARANTINE_MS = 60_000;
/**
 * No send buffer is as large. A position further away than this is one of an earlier connection, whose numbers began elsewhere:
 * nothing was sent over this one yet.
 */
const STREAM_BYTES_MAX = 2 ** 28;

/** By connection: the position up to which the peer must have acknowledged. */
type Marks = ReadonlyMap<string, number>;

interface Settled {
  readonly address: string;
  readonly bytes: number;
  readonly sinceMs: number;
  readonly release: () => void;
  /** Null until the kernel has told its positions. */
  marks: Marks | null;
}

export class Settling {
  readonly #runtime: Runtime;
  readonly #look: () => readonly TcpSocketInfo[] | null;
  #waiting: Settled[] = [];
  /** Looked at only when the kernel gives something back; here, so that nobody else gets the memory. */
  #quarantine: Settled[] = [];
  #timer: Timer | null = null;
  #delayMs = FIRST_LOOK_MS;

  /** `look` asks the kernel for all its connections; null when it did not tell. */
  constructor(runtime: Runtime, look: () => readonly TcpSocketInfo[] | null) {
    this.#runtime = runtime;
    this.#look = look;
  }

  /** Bytes that TCP may still read. */
  get bytes(): number {
    return bytesOf(this.#waiting);
  }

  get quarantinedBytes(): number {
    return bytesOf(this.#quarantine);
  }

  /** Calls `release` when TCP has nothing more of what was sent to `address` so far; at once, if so. */
  add(address: string, bytes: number, release: () => void): void {
    const connections = this.#look();
    const marks = connections === null ? null : marksOf(connections, address);
    if (marks?.size === 0) {
      release();
      return;
    }
    this.#waiting.push({ address, bytes, sinceMs: this.#runtime.now(), release, marks });
    this.#delayMs = FIRST_LOOK_MS;
    this.#lookLater();
  }

  /** The kernel gave some message back: connections make progress, and what was in quarantine may be free. */
  progress(): void {
    if (this.#quarantine.length === 0) return;
    const connections = this.#look();
    if (connections === null) return;
    const free = this.#quarantine.filter((each) => isFree(each, connections));
    this.#quarantine = this.#quarantine.filter((each) => !free.includes(each));
    for (const { release } of free) release();
  }

  #lookLater(): void {
    this.#timer ??= this.#runtime.timer(() => {
      this.#timer = null;
      this.#lookAgain();
    }, this.#delayMs);
    this.#delayMs = Math.min(2 * this.#delayMs, LOOK_MS_MAX);
  }

  #lookAgain(): void {
    const connections = this.#look();
    const now = this.#runtime.now();
    const free: Settled[] = [];
    const waiting: Settled[] = [];
    for (const each of this.#waiting) {
      if (connections !== null && isFree(each, connections)) free.push(each);
      else if (now - each.sinceMs < QUARANTINE_MS) waiting.push(each);
      else this.#quarantine.push(each);
    }
    this.#waiting = waiting;
    if (waiting.length > 0) this.#lookLater();
    for (const { release } of free) release();
  }
}

/** What is not acknowledged yet of what was written to `address`. */
function marksOf(connections: readonly TcpSocketInfo[], address: string): Marks {
  const plain = withoutZone(address);
  return new Map(
    connections
      .filter((each) => each.remoteAddress === plain && isBehind(each.lastSeenUna, each.lastExpectedUna))
      .map((each) => [keyOf(each), each.lastExpectedUna]),
  );
}

function isFree(settled: Settled, connections: readonly TcpSocketInfo[]): boolean {
  settled.marks ??= marksOf(connections, settled.address);
  const { marks } = settled;
  return connections.every((each) => {
    const mark = marks.get(keyOf(each));
    return mark === undefined || !isBehind(each.lastSeenUna, mark);
  });
}

function bytesOf(list: readonly Settled[]): number {
  return list.reduce((sum, { bytes }) => sum + bytes, 0);
}

function keyOf({ localAddress, localPort, remoteAddress, remotePort }: TcpSocketInfo): string {
  return `${localAddress} ${localPort} ${remoteAddress} ${remotePort}`;
}

/** Positions are modulo 2^32. */
function isBehind(una: number, mark: number): boolean {
  const missing = (mark - una) | 0;
  return missing > 0 && missing <= STREAM_BYTES_MAX;
}
