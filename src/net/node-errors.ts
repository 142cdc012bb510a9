/** Errors with the codes that Node's own net and dgram use, for programs that compare `error.code`. */
export interface Coded extends Error {
  code: string;
}

const messages = {
  ERR_SOCKET_CLOSED: 'Socket is closed',
  ERR_SOCKET_CLOSED_BEFORE_CONNECTION: 'Socket closed before the connection was established',
  ERR_SOCKET_CONNECTION_TIMEOUT: 'Socket connection timeout',
  ERR_SERVER_ALREADY_LISTEN: 'Listen method has been called more than once without closing.',
  ERR_SERVER_NOT_RUNNING: 'Server is not running.',
  ERR_STREAM_WRITE_AFTER_END: 'write after end',
  ERR_STREAM_DESTROYED: 'Cannot call write after a stream was destroyed',
  EPIPE: 'This socket has been ended by the other party',
} as const;

export function nodeError(code: keyof typeof messages): Coded {
  return Object.assign(new Error(messages[code]), { code });
}

export function nodeTypeError(code: string, message: string): TypeError & Coded {
  return Object.assign(new TypeError(message), { code });
}

export function nodeRangeError(code: string, message: string): RangeError & Coded {
  return Object.assign(new RangeError(message), { code });
}

/** What an aborted operation ends with, as Node's own: name AbortError, code ABORT_ERR, the signal's reason as cause. */
export function abortError(signal: AbortSignal): Coded {
  const error = new Error('The operation was aborted', { cause: signal.reason });
  error.name = 'AbortError';
  return Object.assign(error, { code: 'ABORT_ERR' });
}

export function ipBlocked(address: string): Coded {
  return Object.assign(new Error(`IP(${address}) is blocked by net.BlockList`), { code: 'ERR_IP_BLOCKED' });
}
