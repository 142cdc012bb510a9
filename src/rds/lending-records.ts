/**
 * What the nodes of a program lent to each peer, on its way through a control socket: for `zerotx explain`. As in info-records.ts, whoever asks
 * may be root and who answers anybody, so each field that comes must be of its kind.
 */
import { zerocopyStatsFrom } from '../net/control-client.ts';
import type { ZerocopyMode } from '../net/policy.ts';
import { snapshot, type ZerocopyStats } from '../net/stats.ts';
import { broken, field } from './info-records.ts';
import type { NodeStats, PeerStats } from './stats.ts';

/** Of one node. */
export interface NodeLending {
  readonly address: string;
  readonly mode: ZerocopyMode;
  readonly thresholdBytes: number;
  /** Of all peers, those that are gone or not listed included. */
  readonly zerocopy: ZerocopyStats;
  /** Those of which most was copied come first. */
  readonly peers: readonly PeerStats[];
}

/** Of one node; an answer has to stay below the limit of a line. */
const PEERS_LISTED_MAX = 500;
const NODES_LISTED_MAX = 16;
const MODES: readonly ZerocopyMode[] = ['auto', 'force', 'off'];

export function lendingRecords(nodes: readonly NodeStats[]): NodeLending[] {
  let room = PEERS_LISTED_MAX;
  return nodes.slice(0, NODES_LISTED_MAX).map(({ address, mode, thresholdBytes, zerocopy, peers }) => {
    const listed = [...peers].sort((a, b) => copiedBytes(b) - copiedBytes(a)).slice(0, room);
    room -= listed.length;
    return { address, mode, thresholdBytes, zerocopy: snapshot(zerocopy), peers: listed };
  });
}

function copiedBytes({ zerocopy }: PeerStats): number {
  return zerocopy.fallbackBytes + zerocopy.kernelCopiedBytes;
}

/** Throws EPROTO if something is not what it should be. */
export function lendingFromJson(value: unknown): NodeLending[] {
  return list(value, 'lending').map((node) => {
    const { address, mode, thresholdBytes, zerocopy, peers } = record(node);
    const known = MODES.find((one) => one === mode);
    if (known === undefined || typeof thresholdBytes !== 'number') throw broken('mode');
    return {
      address: text(address),
      mode: known,
      thresholdBytes,
      zerocopy: zerocopyStatsFrom(zerocopy),
      peers: list(peers, 'peers').map((peer) => {
        const found = record(peer);
        return { address: text(found.address), zerocopy: zerocopyStatsFrom(found.zerocopy) };
      }),
    };
  });
}

function list(value: unknown, name: string): readonly unknown[] {
  if (!Array.isArray(value)) throw broken(name);
  return value;
}

function record(value: unknown): Readonly<Record<string, unknown>> {
  if (typeof value !== 'object' || value === null) throw broken('record');
  return value as Readonly<Record<string, unknown>>;
}

function text(value: unknown): string {
  return field(value, 'text', 'address') as string;
}
