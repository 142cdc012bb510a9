/** The call forms of net.connect() and server.listen(): (options | port[, host] | path)[, backlog][, callback]. */
import type { BlockList, LookupFunction } from 'node:net';
import { isIP } from 'node:net';
import { checkOptionalBoolean, checkOptionalInteger, wrongType } from '../core/arguments.ts';
import { nodeTypeError } from './node-errors.ts';
import { checkPort, toPort } from './port.ts';
import type { TcpSocketOptions } from './socket-settings.ts';

export interface TcpConnectOptions {
  port?: number | string | undefined;
  /** `localhost` if left out. */
  host?: string | undefined;
  /** Path of a Unix socket, instead of host and port. */
  path?: string | undefined;
  localAddress?: string | undefined;
  localPort?: number | undefined;
  family?: number | undefined;
  hints?: number | undefined;
  lookup?: LookupFunction | undefined;
  autoSelectFamily?: boolean | undefined;
  autoSelectFamilyAttemptTimeout?: number | undefined;
  timeout?: number | undefined;
  /** Its addresses are not connected to: ERR_IP_BLOCKED. */
  blockList?: BlockList | undefined;
}

/** What connect() takes: where to, and what kind of socket. */
export type ConnectOptions = TcpSocketOptions & TcpConnectOptions;

export interface Normalized<T> {
  readonly options: T;
  readonly callback: (() => void) | null;
}

type Args = readonly unknown[];

/** What the arguments of connect() and listen() have in common; a path is what is no port number. */
export function normalizeArgs<T extends object>(args: Args): Normalized<T> {
  const last = args.at(-1);
  const callback = typeof last === 'function' ? (last as () => void) : null;
  const [first, second] = args;
  if (typeof first === 'object' && first !== null) return { options: { ...first } as T, callback };
  if (args.length === 0 || typeof first === 'function' || first === null || first === undefined) {
    return { options: {} as T, callback };
  }
  if (isPipeName(first)) return { options: { path: first } as T, callback };
  const host = typeof second === 'string' ? { host: second } : {};
  return { options: { port: first, ...host } as T, callback };
}

function isPipeName(value: unknown): value is string {
  return typeof value === 'string' && toPort(value) === null;
}

/** Throws what net.connect() throws for options that cannot work. */
export function checkConnectOptions(options: TcpConnectOptions): void {
  const { host, port, path, localAddress, localPort, lookup } = options;
  if (path !== undefined && path !== null) {
    if (typeof path !== 'string') throw wrongType('options.path', 'of type string', path);
    return;
  }
  if (port === undefined) {
    throw nodeTypeError('ERR_MISSING_ARGS', 'The "options" or "port" or "path" argument must be specified');
  }
  if (localAddress && isIP(localAddress) === 0) {
    throw nodeTypeError('ERR_INVALID_IP_ADDRESS', `Invalid IP address: ${localAddress}`);
  }
  if (localPort !== undefined && typeof localPort !== 'number') {
    throw wrongType('options.localPort', 'of type number', localPort);
  }
  checkPort('options.port', port);
  if (lookup !== undefined && lookup !== null && typeof lookup !== 'function') {
    throw wrongType('options.lookup', 'of type function', lookup);
  }
  checkOptionalBoolean('options.autoSelectFamily', options.autoSelectFamily);
  checkOptionalInteger(
    'options.autoSelectFamilyAttemptTimeout',
    options.autoSelectFamilyAttemptTimeout,
    1,
    2 ** 31 - 1,
  );
  if (host !== undefined && host !== null && typeof host !== 'string') {
    throw wrongType('options.host', 'of type string', host);
  }
}
