/**
 * The baseline cells as the suites start them.
 */
import { type CellSpec, cellSpec } from '../harness.ts';

const small = 64;
const large = 1 << 20;
/** Large messages under way at once, in every transport. */
export const depth = 8;
/** Small messages zeromq may queue on each side: its own default. */
const zmqSmallDepth = 1000;

export const netStream1M: CellSpec = cellSpec('net-stream', ['sender', 'receiver'], 'sender', {
  messageBytes: large,
  depth,
});
export const netFramed64: CellSpec = cellSpec('net-framed', ['sender', 'receiver'], 'sender', {
  messageBytes: small,
});
export const zmq1M: CellSpec = cellSpec('zmq', ['receiver', 'sender'], 'sender', {
  messageBytes: large,
  depth,
});
export const zmq64: CellSpec = cellSpec('zmq', ['receiver', 'sender'], 'sender', {
  messageBytes: small,
  depth: zmqSmallDepth,
});
