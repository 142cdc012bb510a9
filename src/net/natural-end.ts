/**
 * The natural end of the process, when nothing keeps the event loop alive any more.
 *
 * What the kernel has accepted would be delivered if it had been copied. Lent memory goes away with the process, and the
 * addon resets its connections first; so those that are unref()ed and have something lent are held until it is acknowledged.
 */
export interface Holdable {
  /** The process would end now; it may ask again, and is then not held again. */
  holdForExit(): void;
}

const unrefed = new Set<Holdable>();

/** Tells `connection`, which does not keep the event loop alive, of the natural end. */
export function watchNaturalEnd(connection: Holdable): void {
  if (unrefed.size === 0) process.on('beforeExit', holdAll);
  unrefed.add(connection);
}

export function forgetNaturalEnd(connection: Holdable): void {
  if (unrefed.delete(connection) && unrefed.size === 0) process.removeListener('beforeExit', holdAll);
}

function holdAll(): void {
  for (const connection of unrefed) connection.holdForExit();
}
