/**
 * Descriptors that are closed for the program while the kernel still reads lent pages.
 *
 * close(2) would be wrong for them: the kernel goes on sending, and the completions can never be read, so the memory
 * could never be given back. They wait here until the last completion; when the deadline passes, connect(AF_UNSPEC)
 * stops the wire at once and releases everything (measured: all completions arrive at once). What even that does not
 * release is in quarantine: counted, and lent until the kernel lets go, if ever.
 */
import type { Native } from '../sys/binding.ts';
import { EPOLLERR, SHUT_WR } from '../sys/constants.ts';
import { type Registration, reactor } from '../sys/reactor.ts';
import type { ZerocopyEngine } from './zerocopy.ts';

/** How long a closed connection may take to deliver what was accepted. */
export const LINGER_MS = 30_000;

/** What the closer holds. Quarantined descriptors did not let go even after an abort: they stay open and counted. */
const held = { lingering: 0, quarantinedSockets: 0, quarantinedBytes: 0 };

export function closerStats(): Readonly<typeof held> {
  return { ...held };
}

const lingering = new Set<ZerocopyEngine>();

/** Null: the kernel has no memory for it. Then the deadline is the next chance to look. */
function watch(fd: number, released: () => void): Registration | null {
  try {
    return reactor().add(fd, EPOLLERR, released);
  } catch {
    return null;
  }
}

/**
 * Takes over a descriptor that is registered nowhere; `ended` is called when it is closed, and nothing is lent any more. What is
 * returned brings the deadline forward to now.
 */
export function lingerClosed(
  sys: Native,
  fd: number,
  engine: ZerocopyEngine,
  how: 'linger' | 'abort',
  ended: () => void = () => {},
  lingerMs: number = LINGER_MS,
): () => void {
  if (how === 'linger' && engine.outstanding > 0) {
    // Say FIN now: the peer need not wait for our last completion to learn the end.
    sys.shutdown(fd, SHUT_WR);
    engine.drain();
  }
  if (how === 'abort') abort(sys, fd, engine);
  if (engine.outstanding === 0) {
    sys.close(fd);
    ended();
    return () => {};
  }
  let quarantinedBytes = 0;
  const quarantine = (): void => {
    quarantinedBytes = engine.pendingBytes();
    held.quarantinedSockets += 1;
    held.quarantinedBytes += quarantinedBytes;
    // Nothing more can be done: it must not keep the process from ending.
    registration?.unref();
    engine.quarantine();
  };
  held.lingering += 1;
  // Keeps Ubufs and memory reachable, whatever happens below; if the process ends meanwhile, the addon's clean-up hook
  // aborts the connection and leaves the memory mapped.
  lingering.add(engine);
  const registration = watch(fd, () => finishIfReleased());
  let isOver = how === 'abort';
  const giveUp = (): void => {
    if (isOver) return;
    isOver = true;
    clearTimeout(timer);
    abort(sys, fd, engine);
    if (engine.outstanding > 0) quarantine();
    finishIfReleased();
  };
  const timer = setTimeout(giveUp, Math.min(lingerMs, LINGER_MS));
  const finishIfReleased = (): void => {
    engine.drain();
    if (engine.outstanding > 0) return;
    isOver = true;
    clearTimeout(timer);
    held.lingering -= 1;
    if (quarantinedBytes > 0) {
      held.quarantinedSockets -= 1;
      held.quarantinedBytes -= quarantinedBytes;
    }
    registration?.remove();
    lingering.delete(engine);
    sys.close(fd);
    ended();
  };
  if (how === 'abort') {
    clearTimeout(timer);
    quarantine();
  }
  return giveUp;
}

function abort(sys: Native, fd: number, engine: ZerocopyEngine): void {
  sys.abort(fd);
  engine.drain();
}
