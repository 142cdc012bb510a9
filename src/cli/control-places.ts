/** Where control sockets were looked for, for the error of a tool that found none: what is missing, and who else could look. */
import { controlFolders } from '../net/index.ts';

const PLACES_SHOWN = 8;

/** `looked in /run/user/1000/zerotx (it is not there) and /tmp/zerotx-1000; ...` */
export function lookedIn(): string {
  const all = controlFolders().map(({ path, refused }) =>
    refused === undefined ? path : `${path} (${refused})`,
  );
  const shown = all.slice(0, PLACES_SHOWN);
  if (all.length > shown.length) shown.push(`${all.length - shown.length} more`);
  const text = `looked in ${shown.join(', ')}`;
  if (process.geteuid?.() === 0) return `${text} and at all listening sockets of /proc/net/unix`;
  return `${text}; programs of other users show themselves to root (sudo)`;
}
