/**
 * The RDS handshake: a probe ping from port 1 to port 0, its pong back, and what both carry as extension headers. It tells how
 * many lanes a peer takes (NPATHS), whether it has restarted (GEN_NUM, drawn once per node), and whether it encodes the lane in the
 * dialler's source port (SPORT_IDX).
 *
 *   us                               peer with SPORT_IDX (7.x, zerotx)        peer without (6.x)
 *   ping GEN, SPORT_IDX        ──▶
 *                              ◀──   pong NPATHS = 8, GEN, SPORT_IDX          pong NPATHS = 8
 *   ping NPATHS, GEN, SPORT_IDX ──▶  fans out, or takes lanes                 (NPATHS = 1: one lane)
 *
 * The first probe of a connection names no number of lanes: to a peer that has never heard one it means one, and one that knows
 * keeps what it knows (rds_recv_hs_exthdrs). More than one is only ever said to a peer that has shown SPORT_IDX, because others
 * map lanes by the order of arrival and shuffle them at every reconnect. A pong answers the ping at hand in the same way.
 * So this keeps what the peer was told and has said; peer.ts does what follows of it.
 *
 * SPORT_IDX must be last: kernels that do not know it stop reading at the zero byte behind it.
 */
import { EXTHDR_BYTES } from '../wire/rds.ts';
import { encodeExtensions, type ProbeExtensions, parseExtensions } from '../wire/rds-exthdr.ts';

/** RDS_MPATH_WORKERS. */
export const LANES_MAX = 8;

/** A peer that does not answer pings (`net.rds.ping_enable=0`) gets data after this long all the same. */
export const HANDSHAKE_TIMEOUT_MS = 1000;

/** What a probe of the peer says. */
export interface ProbeNews {
  /** Lanes that both sides can have: a power of two, as senders take the low bits of a hash (RDS_MPATH_HASH). */
  readonly lanes: number;
  readonly hasSportIdx: boolean;
  /** Its generation is another than the one known. */
  readonly hasRestarted: boolean;
  /** It is a late word of a process before, from a connection that was not read until now. */
  readonly isLate: boolean;
}

/** What follows from an answer. */
export interface Step {
  /** Extension area of the next probe; null for none. */
  readonly tell: Uint8Array | null;
  /** The number of lanes is agreed. */
  readonly isAgreed: boolean;
}

export class Handshake {
  /** Lanes that are offered to peers with SPORT_IDX. */
  readonly offered: number;
  /** Extension areas: without a number of lanes, with one lane, and with all that are offered. */
  readonly neutral: Uint8Array;
  readonly single: Uint8Array;
  readonly full: Uint8Array;
  readonly #dials: boolean;
  #hasSportIdx: boolean | null = null;
  #hasSeveralLanes: boolean | null = null;
  #peerGeneration = 0;
  /** The latest connection on which it was heard. */
  #heardOn = 0;
  /** The peer was told on this connection of lane 0 how many lanes are offered; has shown that it knows. */
  #isOfferTold = false;
  #isOfferKnown = false;
  /** The probe that is on its way tells it. */
  #isProbeFull = false;
  /** Its last answer had no SPORT_IDX: it gets one lane. */
  #isLegacy = false;
  /** It has not answered a probe when there was time to. */
  #isMute = false;

  constructor(genNum: number, lanes: number, dials: boolean) {
    this.#dials = dials;
    this.offered = powerOfTwo(lanes);
    this.single = area({ npaths: 1, genNum, sportIdx: true });
    this.neutral = this.offered === 1 ? this.single : area({ genNum, sportIdx: true });
    this.full = area({ npaths: this.offered, genNum, sportIdx: true });
  }

  /** The peer's generation number; 0 while unknown. */
  get peerGeneration(): number {
    return this.#peerGeneration;
  }

  /** The peer may have several lanes, by its last probe: a number may be named later. Null before the first. */
  get hasSeveralLanes(): boolean | null {
    return this.#hasSeveralLanes;
  }

  /**
   * Reads a probe's extension area at `offset`, which came on connection `age`: those that came, or were established, later have
   * higher numbers. A probe without GEN_NUM says nothing of restarts (rds_conn_peer_gen_update), but where SPORT_IDX comes or goes a kernel of another
   * version was started. Numbers of processes are random, but of two processes at one address the later one has the later connections.
   */
  read(bytes: Uint8Array, offset: number, age: number): ProbeNews {
    const { genNum = 0, npaths, sportIdx = false } = parseExtensions(bytes, offset);
    const isOtherVersion = this.#hasSportIdx !== null && sportIdx !== this.#hasSportIdx;
    const isOther = isOtherVersion || (genNum !== 0 && genNum !== this.#peerGeneration);
    const isLate = isOther && age < this.#heardOn;
    const hasRestarted = isOther && !isLate && (isOtherVersion || this.#peerGeneration !== 0);
    if (!isLate) {
      if (genNum !== 0 || isOtherVersion) this.#peerGeneration = genNum;
      this.#heardOn = Math.max(age, this.#heardOn);
      this.#hasSportIdx = sportIdx;
      this.#hasSeveralLanes = sportIdx && npaths !== 1;
    }
    const lanes = sportIdx ? powerOfTwo(Math.min(this.offered, npaths ?? 1)) : 1;
    return { lanes, hasSportIdx: sportIdx, hasRestarted, isLate };
  }

  /** How long data waits for the answer to a probe. */
  get patienceMs(): number {
    return this.#isMute ? 0 : HANDSHAKE_TIMEOUT_MS;
  }

  /** For the first probe of a connection. It says nothing of lanes, except to a peer that is known to have but one. */
  opening(isLane0: boolean): Uint8Array {
    if (isLane0) {
      this.#isOfferTold = false;
      this.#isProbeFull = false;
      if (this.#peerGeneration === 0) this.#isOfferKnown = false;
    }
    return this.#isLegacy ? this.single : this.neutral;
  }

  /** For the answer to the peer's probe. */
  pong({ hasSportIdx }: ProbeNews, isLane0: boolean): Uint8Array {
    if (!hasSportIdx) return this.single;
    if (isLane0) this.#isOfferTold = true;
    return this.full;
  }

  /** Our probe was answered. */
  answered({ hasSportIdx }: ProbeNews, isLane0: boolean): void {
    this.#isMute = false;
    this.#isLegacy = !hasSportIdx;
    if (!isLane0 || !this.#isProbeFull) return;
    this.#isProbeFull = false;
    this.#isOfferKnown = true;
  }

  /** It was not, in time. */
  unanswered(): void {
    this.#isMute = true;
  }

  /** Behind answered(), on lane 0. `hadOne`: nothing but one lane was agreed before. */
  next({ lanes, hasSportIdx }: ProbeNews, hadOne: boolean): Step {
    // Whatever it has heard from others at this address: one lane.
    if (!hasSportIdx) return { tell: hadOne ? null : this.single, isAgreed: true };
    if (lanes === 1 || this.#isOfferKnown) return { tell: null, isAgreed: true };
    const mustKnow = this.#dials || !this.#isOfferTold;
    if (mustKnow) {
      this.#isOfferTold = true;
      this.#isProbeFull = true;
    }
    // A kernel that does not know yet takes a second connection for a stray one, and stops accepting while it is there.
    return { tell: mustKnow ? this.full : null, isAgreed: !this.#dials };
  }

  /** The peer is another process by now. */
  restarted(): void {
    this.#isOfferTold = false;
    this.#isProbeFull = false;
    this.#isOfferKnown = false;
  }
}

function area(extensions: ProbeExtensions): Uint8Array {
  const bytes = new Uint8Array(EXTHDR_BYTES);
  encodeExtensions(bytes, 0, extensions);
  return bytes;
}

/** The largest one that is not above `lanes`; at least 1. */
function powerOfTwo(lanes: number): number {
  return lanes < 2 ? 1 : 2 ** (31 - Math.clz32(Math.min(lanes, LANES_MAX)));
}
