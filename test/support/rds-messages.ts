/**
 * Cuts a captured direction of an RDS connection into its messages.
 */
import { HEADER_BYTES, payloadLength } from '../../src/wire/rds.ts';

export interface WireMessage {
  /** Header and payload. */
  bytes: Uint8Array;
  payload: Uint8Array;
}

export interface WireMessages {
  messages: WireMessage[];
  /** The beginning of a message whose end was not captured. */
  rest: Uint8Array;
}

/** `stream` must begin with a header. */
export function splitMessages(stream: Uint8Array): WireMessages {
  const messages: WireMessage[] = [];
  let at = 0;
  while (at + HEADER_BYTES <= stream.length) {
    const end = at + HEADER_BYTES + payloadLength(stream, at);
    if (end > stream.length) break;
    messages.push({ bytes: stream.subarray(at, end), payload: stream.subarray(at + HEADER_BYTES, end) });
    at = end;
  }
  return { messages, rest: stream.subarray(at) };
}
