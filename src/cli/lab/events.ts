/**
 * What `zerotx vhost` and `zerotx switch` tell while they run: a line each on standard error, or with --json on standard
 * output. Plain data, since workers tell it too.
 */
import type { VhostUserDeviceStats } from '../../vhost/index.ts';
import { printable } from '../printable.ts';

export type LabEvent =
  /** The socket of a device. */
  | {
      readonly event: 'socket';
      readonly port: string;
      readonly state: VhostUserDeviceStats['state'];
      readonly path: string;
    }
  /** A port has a carrier, or no longer: a guest's driver, a peer. */
  | {
      readonly event: 'link';
      readonly port: string;
      readonly up: boolean;
      /** Of a stream: why it is not connected; it tries again. */
      readonly reason?: string;
      /** Of a stream: where it listens for its peer. */
      readonly waitsAt?: string;
    }
  /** A front-end has closed its connection. It may come again. */
  | { readonly event: 'left'; readonly port: string }
  /** A driver did what no driver does, and its ring stands still until it is reset. */
  | { readonly event: 'ring'; readonly port: string; readonly ring: number; readonly reason: string }
  /** A front-end was disconnected for what it did. It may come again. */
  | { readonly event: 'disconnect'; readonly port: string; readonly reason: string }
  /** A port has come to its end, and does not come back: its device was removed, its file cannot be written. */
  | { readonly event: 'lost'; readonly port: string; readonly reason: string }
  /** A capture ends: its file cannot be written any more. The port goes on. */
  | { readonly event: 'capture'; readonly port: string; readonly reason: string }
  /** Worth knowing; nothing failed. */
  | { readonly event: 'note'; readonly text: string };

export type Tell = (event: LabEvent) => void;

const SOCKET_TEXTS: Readonly<Record<VhostUserDeviceStats['state'], (path: string) => string>> = {
  listening: (path) => `waits for a front-end at ${path}`,
  waiting: (path) => `looks for a front-end at ${path}`,
  connected: () => 'a front-end is connected',
  closed: () => 'closed',
};

export function eventText(event: LabEvent): string {
  const text = event.event === 'note' ? event.text : `${event.port}: ${portText(event)}`;
  return printable(text);
}

function linkText({ up, reason, waitsAt }: Extract<LabEvent, { event: 'link' }>): string {
  if (up) return 'up';
  if (waitsAt !== undefined) return `waits for its peer at ${waitsAt}`;
  return reason === undefined ? 'down' : `not connected: ${reason}, tries again`;
}

function portText(event: Exclude<LabEvent, { event: 'note' }>): string {
  switch (event.event) {
    case 'socket':
      return SOCKET_TEXTS[event.state](event.path);
    case 'link':
      return linkText(event);
    case 'left':
      return 'its front-end has left';
    case 'ring':
      return `ring ${event.ring} is broken and stands still: ${event.reason}`;
    case 'disconnect':
      return `the front-end was disconnected: ${event.reason}`;
    case 'capture':
      return `its capture ends: ${event.reason}`;
    case 'lost':
      return `lost: ${event.reason}`;
  }
}
