/** The call forms of send() and bind(), which are those of node:dgram. */
import { checkString, wrongType } from '../core/arguments.ts';
import { nodeRangeError } from './node-errors.ts';
import { checkTargetPort, toPort } from './port.ts';
import { dgramError } from './udp-options.ts';

export type UdpPayload = string | NodeJS.ArrayBufferView | readonly (string | NodeJS.ArrayBufferView)[];
export type SendCallback = (error: Error | null, bytes: number) => void;

export interface SendArguments {
  readonly pieces: readonly Uint8Array[];
  /** Undefined on a connected socket. */
  readonly port: number | undefined;
  readonly address: string | undefined;
  readonly callback: SendCallback | undefined;
}

const EXPECTED = 'of type string or an instance of Buffer, TypedArray, or DataView';

/**
 *   send(pieces[, port[, address]][, callback])
 *   send(buffer, offset, length[, port[, address]][, callback])         port and address on unconnected sockets only
 */
export function sendArguments(args: readonly unknown[], connected: boolean): SendArguments {
  const [payload, second, third, fourth, fifth, sixth] = args;
  const sliced = connected
    ? typeof third === 'number'
    : Boolean(fifth) || (Boolean(fourth) && typeof fourth !== 'function');
  const slice = sliced ? [sliceOf(payload, second, third)] : null;
  let rest: readonly unknown[];
  if (sliced) rest = [fourth, fifth, sixth];
  else if (connected)
    rest = typeof second === 'function' ? [undefined, undefined, second] : [second, third, fourth];
  else rest = [second, third, fourth];
  let [port, address, callback] = rest;
  if (typeof port === 'function') [port, callback] = [undefined, port];
  if (typeof address === 'function') [address, callback] = [undefined, address];
  if (connected && (port || address)) throw dgramError('ERR_SOCKET_DGRAM_IS_CONNECTED');
  const pieces = slice ?? piecesOf(payload);
  const to = connected ? undefined : checkTargetPort(port);
  if (address !== undefined && address !== null) checkString('address', address);
  return {
    pieces,
    port: to,
    address: typeof address === 'string' ? address : undefined,
    callback: typeof callback === 'function' ? (callback as SendCallback) : undefined,
  };
}

function bytesOf(value: unknown, name: string): Uint8Array {
  if (typeof value === 'string') return Buffer.from(value);
  if (value instanceof Uint8Array) return value;
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  throw wrongType(name, EXPECTED, value);
}

function piecesOf(payload: unknown): Uint8Array[] {
  if (!Array.isArray(payload)) return [bytesOf(payload, 'buffer')];
  return payload.map((piece) => bytesOf(piece, 'buffer list arguments'));
}

function sliceOf(payload: unknown, offset: unknown, length: unknown): Uint8Array {
  const bytes = bytesOf(payload, 'buffer');
  const from = (offset as number) >>> 0;
  const count = (length as number) >>> 0;
  if (from > bytes.byteLength) throw outOfBounds('offset');
  if (from + count > bytes.byteLength) throw outOfBounds('length');
  return bytes.subarray(from, from + count);
}

function outOfBounds(name: string): RangeError {
  return nodeRangeError('ERR_BUFFER_OUT_OF_BOUNDS', `"${name}" is outside of buffer bounds`);
}

export interface BindOptions {
  port?: number | undefined;
  address?: string | undefined;
  /** Understood and without effect: no socket is ever shared with other processes of a cluster. */
  exclusive?: boolean | undefined;
}

export interface BindArguments {
  readonly port: number;
  /** Empty: all addresses of the family. */
  readonly address: string;
  readonly callback: (() => void) | undefined;
}

/** bind([port][, address][, callback]) and bind(options[, callback]) */
export function bindArguments(args: readonly unknown[]): BindArguments {
  const last = args.at(-1);
  const callback = typeof last === 'function' ? (last as () => void) : undefined;
  const [first, second] = args;
  let port: unknown = typeof first === 'function' ? undefined : first;
  let address: unknown = typeof second === 'function' ? undefined : second;
  if (typeof first === 'object' && first !== null) ({ port, address } = first as BindOptions);
  if (address) checkString('address', address);
  const number = port === undefined || port === null || port === '' ? 0 : toPort(port);
  if (number === null) {
    const text = `options.port should be >= 0 and < 65536. Received ${typeof port} ${String(port)}.`;
    throw nodeRangeError('ERR_SOCKET_BAD_PORT', text);
  }
  return { port: number, address: (address as string | undefined) || '', callback };
}
