/**
 * The baseline cells as the suites start them.
 */
import type { CellSpec } from '../harness.ts';

const small = 64;
const large = 1 << 20;
/** Large messages under way at once, in every transport. */
export const depth = 8;
/** Small messages zeromq may queue on each side: its own default. */
const zmqSmallDepth = 1000;

export const netStream1M: CellSpec = spec('net-stream', ['sender', 'receiver'], {
  messageBytes: large,
  depth,
});
export const netFramed64: CellSpec = spec('net-framed', ['sender', 'receiver'], { messageBytes: small });
export const zmq1M: CellSpec = spec('zmq', ['receiver', 'sender'], { messageBytes: large, depth });
export const zmq64: CellSpec = spec('zmq', ['receiver', 'sender'], {
  messageBytes: small,
  depth: zmqSmallDepth,
});

function spec(cell: string, sides: readonly string[], options: CellSpec['options']): CellSpec {
  const module = new URL(`./${cell}.js`, import.meta.url).href;
  return { name: cell, sides: sides.map((side) => ({ module, side })), starter: 'sender', options };
}
