/** Checks of public arguments: a TypeError for the wrong kind, a RangeError for the wrong value, naming the argument. */

interface Coded extends Error {
  code: string;
}

function coded<T extends Error>(error: T, code: string): T & Coded {
  return Object.assign(error, { code });
}

/** Describes a value the way Node's own messages do: `type string ('x')`, `an instance of Map`, `undefined`. */
function received(value: unknown): string {
  if (value === null || value === undefined) return String(value);
  if (typeof value === 'object') return `an instance of ${value.constructor?.name ?? 'Object'}`;
  if (typeof value === 'function') return `function ${value.name}`;
  return `type ${typeof value} (${typeof value === 'string' ? JSON.stringify(value) : String(value)})`;
}

export function wrongType(name: string, expected: string, value: unknown): TypeError {
  const message = `The "${name}" argument must be ${expected}. Received ${received(value)}`;
  return coded(new TypeError(message), 'ERR_INVALID_ARG_TYPE');
}

export function wrongRange(name: string, expected: string, value: unknown): RangeError {
  const message = `The value of "${name}" is out of range. It must be ${expected}. Received ${String(value)}`;
  return coded(new RangeError(message), 'ERR_OUT_OF_RANGE');
}

/** An integer in [min, max]. */
export function checkInteger(
  name: string,
  value: unknown,
  min: number,
  max: number,
): asserts value is number {
  if (typeof value !== 'number') throw wrongType(name, 'of type number', value);
  if (!Number.isInteger(value) || value < min || value > max) {
    throw wrongRange(name, `an integer >= ${min} and <= ${max}`, value);
  }
}

export function checkOptionalInteger(name: string, value: unknown, min: number, max: number): void {
  if (value !== undefined) checkInteger(name, value, min, max);
}

export function checkOptionalBoolean(name: string, value: unknown): void {
  if (value !== undefined && typeof value !== 'boolean') throw wrongType(name, 'of type boolean', value);
}

export function checkString(name: string, value: unknown): asserts value is string {
  if (typeof value !== 'string') throw wrongType(name, 'of type string', value);
}

export function checkObject(name: string, value: unknown): asserts value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null) throw wrongType(name, 'of type object', value);
}

export function checkSignal(name: string, value: unknown): void {
  if (value !== undefined && !(value instanceof AbortSignal))
    throw wrongType(name, 'an instance of AbortSignal', value);
}

/** A name that is none of `known` is a slip, and would be passed over: where it says who may connect that matters. */
export function checkNames(name: string, value: object, known: readonly string[]): void {
  const wrong = Object.keys(value).find((key) => !known.includes(key));
  if (wrong === undefined) return;
  const text = `The argument "${name}" has no property "${wrong}". Its properties are ${known.join(', ')}`;
  throw coded(new TypeError(text), 'ERR_INVALID_ARG_VALUE');
}
