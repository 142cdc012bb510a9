/** The first look at a frame that came in, for switches and links alike: before anything in it is believed. */
import {
  FRAME_BYTES,
  FRAME_STATUS,
  FRAME_WORDS,
  type FrameTable,
  HEAD_BYTES,
  VNET_FLAGS,
} from '../core/frames.ts';
import { ETHERNET_BYTES } from '../wire/ethernet.ts';
import { isSound, maskFlags, VNET_ASKS } from './vnet.ts';

export const ADMITTED = 0;
/** Shorter than an Ethernet header, or the native layer could not read it. */
export const MALFORMED = 1;
/** The vnet header contradicts the frame. */
const BAD_OFFLOAD = 2;

/** Whether the frame can be looked at and passed on. Afterwards its vnet header has known flags only. */
export function admit(table: FrameTable, frame: number): number {
  const { records } = table;
  const record = frame * FRAME_WORDS;
  const isShort =
    records[record + HEAD_BYTES]! < ETHERNET_BYTES || records[record + FRAME_BYTES]! < ETHERNET_BYTES;
  if (isShort || records[record + FRAME_STATUS] !== 0) return MALFORMED;
  if ((records[record + VNET_FLAGS]! & VNET_ASKS) === 0) return ADMITTED;
  maskFlags(records, record);
  return isSound(table, frame) ? ADMITTED : BAD_OFFLOAD;
}
