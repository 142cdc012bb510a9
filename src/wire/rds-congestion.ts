/**
 * The congestion map: one bit for each of the 65 536 RDS ports of an address, set while the port's receive queue is too
 * full. It travels whole, as the 8192-byte payload of a message whose flags are CONG_BITMAP, and always speaks for the
 * sender's own address.
 *
 *     port p  =  bit (p & 7), least significant first, of byte (p >> 3)
 *
 * A map here is just its bytes, so a received payload is a map and a map is a payload.
 */

export const CONG_MAP_BYTES = 8192;

/** A map with every port clear. */
export function createMap(): Uint8Array {
  return new Uint8Array(CONG_MAP_BYTES);
}

export function testPort(map: Uint8Array, port: number): boolean {
  return ((map[port >> 3]! >> (port & 7)) & 1) === 1;
}

export function setPort(map: Uint8Array, port: number): void {
  map[port >> 3]! |= 1 << (port & 7);
}

export function clearPort(map: Uint8Array, port: number): void {
  map[port >> 3]! &= ~(1 << (port & 7));
}
