/** The messages that rds-guest.c sends and insists on: a number, and a pattern that depends on number and position. */
import assert from 'node:assert/strict';

export const BYE: Buffer = Buffer.from('ffffffff', 'hex');

export interface Flow {
  /** Of every message, or of one after the other, repeated. */
  readonly bytes: number | readonly number[];
  readonly count: number;
}

export function sizeOf({ bytes }: Flow, index: number): number {
  return typeof bytes === 'number' ? bytes : (bytes[index % bytes.length] ?? 0);
}

/** All of the flow's payload. */
export function flowBytes(flow: Flow): number {
  let sum = 0;
  for (let i = 0; i < flow.count; i++) sum += sizeOf(flow, i);
  return sum;
}

export function pattern(index: number, length: number): Buffer {
  const bytes = Buffer.allocUnsafe(length);
  for (let k = 0; k < length; k++) bytes[k] = (index * 31 + k * 7 + (k >> 8)) & 0xff;
  if (length >= 4) bytes.writeUInt32BE(index);
  return bytes;
}

/** Of a message that has no room for its number only the pattern tells it from others. */
export function checkMessage(data: Buffer, index: number, length: number): void {
  if (length >= 4 && data.byteLength >= 4) {
    assert.equal(data.readUInt32BE(0), index, 'the next message, and no other');
  }
  assert.equal(data.byteLength, length, `length of message ${index}`);
  assert.ok(data.equals(pattern(index, length)), `content of message ${index}`);
}
