/**
 * Which warnings are said aloud: those of one kind about one peer at most every ten seconds, and of one kind no more than a few dozen
 * in that time, whatever the number of addresses. Counters have them all. Pure; the memory is bounded by the kinds.
 */
export interface Warning {
  readonly event: string;
  readonly address: string;
  readonly detail: string;
}

const INTERVAL_MS = 10_000;
/** Of one kind in an interval. */
const KIND_MAX = 32;

interface Kind {
  /** When each address was last spoken of; oldest first. */
  readonly said: Map<string, number>;
  suppressed: number;
}

export class Warnings {
  readonly #kinds = new Map<string, Kind>();

  /** The warning to emit, perhaps with the number of those that were not; null: none. */
  admit(warning: Warning, now: number): Warning | null {
    const { event, address, detail } = warning;
    const kind = this.#kind(event, now);
    const last = kind.said.get(address);
    if (last !== undefined && now - last < INTERVAL_MS) return null;
    if (kind.said.size >= KIND_MAX && last === undefined) {
      kind.suppressed += 1;
      return null;
    }
    // At the end, so that the map stays in order of time.
    kind.said.delete(address);
    kind.said.set(address, now);
    if (kind.suppressed === 0) return warning;
    const others = kind.suppressed;
    kind.suppressed = 0;
    return { event, address, detail: `${detail} (and ${others} more of this kind, about other addresses)` };
  }

  #kind(event: string, now: number): Kind {
    let kind = this.#kinds.get(event);
    if (kind === undefined) {
      kind = { said: new Map(), suppressed: 0 };
      this.#kinds.set(event, kind);
    }
    for (const [address, last] of kind.said) {
      if (now - last < INTERVAL_MS) break;
      kind.said.delete(address);
    }
    return kind;
  }
}
