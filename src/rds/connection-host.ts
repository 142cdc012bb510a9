/**
 * What a connection (connection.ts) asks of whoever runs it: lane.ts, or a test. Wishes are answered by later events, but for readRest()
 * and adoptNext(), which come back within the call; questions are answered from what the peer knows.
 */
export interface ConnectionHost {
  // --- the channel ---

  /** Open a connection to the peer; dialed() or dialFailed() answers. */
  dial(): void;
  /** Say FIN on the current channel. */
  halfClose(): void;
  /** Bytes of the current channel that the peer's TCP has acknowledged. */
  ackedBytes(): number;
  /** Read what the current channel still holds, whatever holds reading back: its bytes are acknowledged, so they must not be lost. */
  readRest(): void;
  /** The current channel (or the attempt) has bytes that nobody has looked at: an event is to come. */
  hasUnread(): boolean;
  /** Reading is held back because too much waits to be read. */
  heldBack(): boolean;
  /** Close the current channel (or the attempt). */
  closeChannel(how: 'close' | 'reset'): void;
  /** The lane is free: adopt the oldest waiting inbound channel, if any, by calling adopted(). */
  adoptNext(): void;
  /** Something can be sent. */
  wake(): void;

  // --- what the peer's state allows ---

  /** May this lane be dialled now. */
  mayDial(): boolean;
  /** Somebody else needs this lane to be up. */
  needed(): boolean;
  /** What was begun on an earlier connection may go before the handshake: this one is the same lane's to the peer, too. */
  mayResend(): boolean;
  /** A connection of this lane begins with our map. */
  opensWithMap(): boolean;

  // --- the handshake ---

  /** A connection begins. */
  begins(): void;
  /** Extension headers for the probe that opens a connection. */
  opening(): Uint8Array;
  /** How long data waits for the answer to it. */
  patienceMs(): number;
  /** It was not answered in that time: settle() is to be called, or this is said again. */
  unanswered(): void;

  // --- news ---

  peerUp(): void;
  peerDown(reason: string): void;
  /** shutdown() is complete. */
  closed(): void;
}
