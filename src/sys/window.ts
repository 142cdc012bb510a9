/**
 * Windows: what a program sees of a unit, an ArrayBuffer that can be taken away from it again.
 *
 *   slab's own ArrayBuffer   ├──────── unit ────────┤      what we send from; no program ever sees it
 *   window                   ├──────── unit ────────┤      what the program writes to, until it is closed
 *
 * Closing detaches the window: every view of it has length 0 from then on, so nothing the program still holds reaches the
 * bytes while the kernel reads them, or after they went to somebody else.
 *
 * Where the runtime has ArrayBuffer.transfer() (Node 21 and later), that is what closes a window. It moves the memory to a
 * new ArrayBuffer that nobody has seen, which is kept as the unit's next window: a cycle costs 0.2 us, where making a window
 * and detaching it in native code costs 1.3 us. It is also the only safe way: a window that the program marked as
 * untransferable has a detach key on Node 24 and later, detaching it natively would abort the process, and nothing tells
 * (isMarkedAsUntransferable() is true for every ArrayBuffer that native code made). transfer() just throws.
 *
 * The window that native code made is best never shown: if the program marked that one, Node 24 and later would abort at the
 * end of the environment, where it detaches all such buffers that are left. What transfer() made is free of this; but it can
 * be posted to another thread, which the native one cannot. On the main thread that is harmless: it ends last, and the
 * mapping stays for as long as the memory is in use anywhere. A worker may end first, and its slabs with it; so there every
 * window is a native one, used once. Whoever marks a lease's memory in a worker meets the abort.
 */
import { isMainThread } from 'node:worker_threads';
import { errnoError } from '../core/errors.ts';
import { native } from './binding.ts';
import type { Unit } from './slab.ts';

/** ArrayBuffer.prototype.transfer as it was before the program could replace it. */
const transfer = (ArrayBuffer.prototype as { transfer?: (this: ArrayBuffer) => ArrayBuffer }).transfer;

/** Whether what transfer() made may be shown to the program. */
const keepsMoved = isMainThread;

/** Its constructor gives back what it was given, so that a class derived from it adds its fields to that. */
class Given {
  constructor(object: object) {
    // biome-ignore lint/correctness/noConstructorReturn: that is the purpose
    return object;
  }
}

/**
 * A field of a window that programs neither see nor forge: who handed it out. Beside telling, it keeps the holder
 * reachable for as long as anything looks at the window. A WeakMap would do the same at five times the cost.
 */
class Held extends Given {
  readonly #holder: object;

  constructor(window: ArrayBuffer, holder: object) {
    super(window);
    this.#holder = holder;
  }

  static holderOf(memory: object): object | undefined {
    return #holder in memory ? memory.#holder : undefined;
  }
}

/** A window over the whole of `unit`, handed out by `holder`. Close it before the unit goes to somebody else. */
export function openWindow(unit: Unit, holder: object): ArrayBuffer {
  const window = unit.window ?? createWindow(unit);
  unit.window = undefined;
  new Held(window, holder);
  return window;
}

/** Whoever opened the window that `memory` is, or undefined for any other memory. */
export function windowHolder(memory: ArrayBufferLike): object | undefined {
  return Held.holderOf(memory);
}

/**
 * Takes the window away from the program. False when that is impossible, because the program took the memory elsewhere or
 * fixed it in place with markAsUntransferable(): then it may write to the unit for as long as it likes.
 */
export function closeWindow(unit: Unit, window: ArrayBuffer): boolean {
  if (transfer === undefined) return native().slabDetach(unit.memory, window) === 0;
  let moved: ArrayBuffer;
  try {
    moved = transfer.call(window);
  } catch {
    return false;
  }
  if (keepsMoved) unit.window = moved;
  else native().slabDetach(unit.memory, moved);
  return true;
}

function createWindow(unit: Unit): ArrayBuffer {
  const window = native().slabWindow(unit.memory, unit.bytes.byteOffset, unit.bytes.byteLength);
  if (typeof window === 'number') throw errnoError(window, 'napi_create_external_arraybuffer');
  return keepsMoved && transfer !== undefined ? transfer.call(window) : window;
}
