/** Programmer errors stop the program; operating errors never come here. */
export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new Error(`zerotx bug: ${message}`);
}
