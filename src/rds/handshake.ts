/**
 * The RDS handshake: a probe ping from port 1 to port 0, its pong back, and what both carry as extension headers.
 *
 * zerotx runs one lane a connection, so it always announces NPATHS = 1 (6.x peers would shuffle more lanes at every
 * reconnect), a GEN_NUM drawn once per node, by which the peer sees a restart, and SPORT_IDX, which must be last.
 * Old kernels stop reading at the zero byte that follows it.
 *
 * Numbers: the first two of a lane are reserved for its first ping and its first pong, which must come before all data
 * while the peer has not answered yet. The lane is *proven* when a pong came: until then no data is sent, so that no
 * message can have been received without our knowing whether the peer still expects the numbers of an earlier process.
 */
import { EXTHDR_BYTES } from '../wire/rds.ts';
import { encodeExtensions, parseExtensions } from '../wire/rds-exthdr.ts';

/** A peer that does not answer pings (`net.rds.ping_enable=0`) gets data after this long all the same. */
export const HANDSHAKE_TIMEOUT_MS = 1000;

export class Handshake {
  readonly extensions: Uint8Array;
  readonly pingSeq: { readonly hi: number; readonly lo: number };
  readonly pongSeq: { readonly hi: number; readonly lo: number };
  /** The peer answered a ping of this process, or had the time to. */
  proven = false;
  #peerGeneration = 0;

  constructor(genNum: number, reserveSeq: () => { hi: number; lo: number }) {
    this.extensions = new Uint8Array(EXTHDR_BYTES);
    encodeExtensions(this.extensions, 0, { npaths: 1, genNum, sportIdx: true });
    this.pingSeq = reserveSeq();
    this.pongSeq = reserveSeq();
  }

  get peerGeneration(): number {
    return this.#peerGeneration;
  }

  /**
   * Reads a probe's extension area at `offset`. True if the peer has restarted: its generation is known, and another
   * (rds_conn_peer_gen_update). A probe without GEN_NUM says nothing.
   */
  read(bytes: Uint8Array, offset: number): boolean {
    const { genNum } = parseExtensions(bytes, offset);
    if (genNum === undefined || genNum === 0) return false;
    const restarted = this.#peerGeneration !== 0 && this.#peerGeneration !== genNum;
    this.#peerGeneration = genNum;
    return restarted;
  }
}
