/** The messages that rds-guest.c sends and insists on: a number, and a pattern that depends on number and position. */
import assert from 'node:assert/strict';

export const BYE: Buffer = Buffer.from('ffffffff', 'hex');

export function pattern(index: number, length: number): Buffer {
  const bytes = Buffer.allocUnsafe(length);
  for (let k = 0; k < length; k++) bytes[k] = (index * 31 + k * 7 + (k >> 8)) & 0xff;
  if (length >= 4) bytes.writeUInt32BE(index);
  return bytes;
}

export function checkMessage(data: Buffer, index: number, length: number): void {
  assert.equal(data.byteLength, length, `length of message ${index}`);
  assert.equal(data.readUInt32BE(0), index, 'the next message, and no other');
  assert.ok(data.equals(pattern(index, length)), `content of message ${index}`);
}
