/**
 * By which rule messages on a lane are duplicates or not, while that is in doubt: until a probe of the peer tells. A wrong guess loses
 * messages or delivers them twice, so both rules are kept (two-views.ts).
 *
 * - How many lanes? A peer that dials, and knew our former process, comes with several connections before anything is agreed. Are
 *   they lanes with numbers of their own (7.x, zerotx), or one lane, connected again (6.x), which repeats what was not acknowledged? SPORT_IDX
 *   tells. In the end several are taken, which loses nothing. All that on lane 0.
 * - The same process? What a peer repeats on a new connection comes before its probe. If it has restarted, and its first
 *   connection was lost before we read it, what it repeats has low numbers and is new. GEN_NUM tells. In the end it is the same.
 */
import { LanesByPort } from './lanes-by-port.ts';
import type { LaneReceiver } from './receiver.ts';
import { Expectation, type SequenceRule } from './sequence.ts';
import { TwoViews, type ViewsHost } from './two-views.ts';

/** The number of lanes is not agreed. */
export class LanesDoubt {
  readonly views: TwoViews;
  readonly #one = new Expectation();
  readonly #several: LanesByPort;

  /**
   * If the peer has several, it is `count`; `hasSeveral` null: who knows. What comes is from source port `port`, and goes on where `receiver` is:
   * that is lane 0's, which has its rule here from now on.
   */
  constructor(
    host: ViewsHost,
    receiver: LaneReceiver,
    {
      count,
      hasSeveral,
      port,
    }: { readonly count: number; readonly hasSeveral: boolean | null; readonly port: number },
  ) {
    this.#several = new LanesByPort(count);
    this.#several.comesFrom(port);
    this.views = new TwoViews(host, this.#several, this.#one);
    this.views.expect(receiver.rule.next);
    receiver.rule = this.views;
    if (hasSeveral !== null) this.told(hasSeveral);
  }

  /** What comes is, or may be, another lane's than lane 0's; and not all has been. */
  get isOneOfSeveral(): boolean {
    return this.views.decided !== this.#one && this.#several.isOneOfSeveral;
  }

  /** What came from source port `port` has this rule already. */
  follow(port: number, rule: Expectation): void {
    this.#several.follow(port, rule);
  }

  /** From now on what comes is from source port `port`. */
  comesFrom(port: number): void {
    this.#several.comesFrom(port);
  }

  told(hasSeveral: boolean): void {
    this.views.decide(hasSeveral ? this.#several : this.#one);
  }

  /** Ends it: `count` lanes are agreed, and what comes now is lane `index`'s. The rule of each that has been heard of. */
  end(count: number, index: number): ReadonlyMap<number, SequenceRule> {
    this.views.decide();
    return this.views.decided === this.#one
      ? new Map([[index, this.#one]])
      : this.#several.lanes(count, index);
  }
}

/** A connection begins, of a peer that has told its generation before: it may be another process. */
export class ProcessDoubt {
  readonly views: TwoViews;
  readonly #receiver: LaneReceiver;
  readonly #same: SequenceRule;
  /** Of the other process. */
  readonly other: Expectation = new Expectation();

  constructor(host: ViewsHost, receiver: LaneReceiver) {
    this.#receiver = receiver;
    this.#same = receiver.rule;
    this.views = new TwoViews(host, this.#same, this.other);
    receiver.rule = this.views;
  }

  /** The peer's probe was read: the doubt is over. */
  told(hasRestarted: boolean): void {
    const rule = hasRestarted ? this.other : this.#same;
    this.views.decide(rule);
    this.#receiver.rule = rule;
  }
}
