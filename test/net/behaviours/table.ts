/**
 * What a row of the table of behaviours is.
 *
 * Each row is one thing that programs rely on in `node:net`. The same code runs over `node:net` and over `zerotx/net`:
 * over the former to prove that the row is true, over the latter to prove that a program may change the import. Where
 * the two are meant to differ, the row says why, and what is asserted of `zerotx/net` instead.
 */
import type * as node from 'node:net';
import type { Scene } from './scene.ts';

/** The part of `node:net` that both modules have. */
export type NetModule = Pick<
  typeof node,
  'createServer' | 'connect' | 'createConnection' | 'Socket' | 'Server'
>;

export type Run = (net: NetModule, t: Scene) => void | Promise<void>;

export interface Difference {
  /** One sentence; docs/net.md has it in its table of differences. */
  readonly why: string;
  readonly run: Run;
}

export interface Behaviour {
  readonly name: string;
  readonly areas: readonly string[];
  readonly run: Run;
  /** Runs over zerotx/net in the place of `run`. */
  readonly differs?: Difference;
  /** Minor version in which Node got it, by major version; newer majors have it, older ones do not. */
  readonly since?: Readonly<Record<number, number>>;
  /** The row needs ::1 on the loopback interface. */
  readonly ipv6?: boolean;
}

export type Table = readonly Behaviour[];

/** Error as Node's sockets emit it; the last two only where a local end was asked for. */
export interface ConnectError extends NodeJS.ErrnoException {
  readonly address?: string;
  readonly port?: number;
  readonly localAddress?: string;
  readonly localPort?: number;
}
