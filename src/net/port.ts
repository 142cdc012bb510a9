/** Port numbers as node:net and node:dgram take them: a number, or its text. */
import { wrongType } from '../core/arguments.ts';
import { nodeRangeError } from './node-errors.ts';

/** Null: not a number from 0 to 65535. */
export function toPort(value: unknown): number | null {
  const port = typeof value === 'string' && value.trim() !== '' ? Number(value) : value;
  return typeof port === 'number' && Number.isInteger(port) && port >= 0 && port <= 0xffff ? port : null;
}

/** A port to connect to or to listen on. Throws ERR_INVALID_ARG_TYPE or ERR_SOCKET_BAD_PORT. */
export function checkPort(name: string, value: unknown): number {
  if (typeof value !== 'number' && typeof value !== 'string') {
    throw wrongType(name, 'of type number or string', value);
  }
  const port = toPort(value);
  if (port !== null) return port;
  const text = typeof value === 'string' ? `'${value}'` : value;
  throw badPort(`${name} should be >= 0 and < 65536. Received type ${typeof value} (${text}).`);
}

/** A port to send datagrams to: 0 is none. Throws ERR_SOCKET_BAD_PORT. */
export function checkTargetPort(value: unknown): number {
  const port = toPort(value);
  if (port !== null && port > 0) return port;
  const received = value === undefined ? 'undefined' : `type ${typeof value} (${String(value)})`;
  throw badPort(`Port should be > 0 and < 65536. Received ${received}.`);
}

function badPort(message: string): RangeError {
  return nodeRangeError('ERR_SOCKET_BAD_PORT', message);
}
