/**
 * The network cards of a guest: virtio-net-pci, and what is at the other end of each. As QEMU's objects, in the form that
 * both its command line and QMP take.
 *
 * vectors=0: without it QEMU 7.2 crashes under software emulation when vhost-user sets its MSI-X notifiers.
 */

/** A Unix socket's path, or HOST:PORT. */
export type SocketName = string;

export type NicPeer =
  /**
   * A vhost-user back-end: QEMU connects to the socket, and then waits for it before the guest starts, or listens there.
   * As a client it dials again after a lost connection only with `reconnectSeconds`.
   */
  | {
      readonly kind: 'vhost-user';
      readonly path: string;
      readonly server?: boolean;
      readonly reconnectSeconds?: number;
    }
  /** A tap that exists, in the network namespace of this process. */
  | { readonly kind: 'tap'; readonly name: string }
  /** Frames with a length before each, over a stream; one end listens. */
  | { readonly kind: 'stream'; readonly listen?: SocketName; readonly connect?: SocketName }
  /** A datagram a frame. */
  | { readonly kind: 'dgram'; readonly local: SocketName; readonly remote: SocketName };

export interface Nic {
  readonly peer: NicPeer;
  readonly mac: string;
  /** With prefix length; the guest has none without. */
  readonly address?: string;
  /** More than one makes it a multi-queue card, for vhost-user; give the guest as many processors. */
  readonly queuePairs?: number;
  /** More of QEMU's properties, as { host_tso4: false, rx_queue_size: 1024, packed: true }. */
  readonly properties?: Readonly<Record<string, string | number | boolean>>;
}

type Json = Readonly<Record<string, unknown>>;

export interface NicObjects {
  /** In both forms, as the command line takes no JSON for these. */
  readonly chardev: { readonly flags: string; readonly json: Json } | null;
  readonly netdev: Json;
  readonly device: Json;
}

/** `id` names the card for QMP, `c-id` its socket and `b-id` its back-end. */
export function nicObjects(id: string, nic: Nic): NicObjects {
  const pairs = nic.queuePairs ?? 1;
  return {
    chardev: nic.peer.kind === 'vhost-user' ? chardev(`c-${id}`, nic.peer) : null,
    netdev: { id: `b-${id}`, ...netdev(id, nic.peer, pairs) },
    device: {
      driver: 'virtio-net-pci',
      ...{ id, netdev: `b-${id}`, mac: nic.mac, romfile: '', vectors: 0 },
      ...(pairs > 1 ? { mq: true } : {}),
      ...nic.properties,
    },
  };
}

function chardev(id: string, peer: NicPeer & { kind: 'vhost-user' }): NicObjects['chardev'] {
  const { path, server = false, reconnectSeconds } = peer;
  const flags = `socket,id=${id},path=${path}${server ? ',server=on,wait=off' : ''}`;
  const data = {
    addr: { type: 'unix', data: { path } },
    server,
    ...(server ? { wait: false } : {}),
    ...(reconnectSeconds === undefined ? {} : { reconnect: reconnectSeconds }),
  };
  return {
    flags: reconnectSeconds === undefined ? flags : `${flags},reconnect=${reconnectSeconds}`,
    json: { id, backend: { type: 'socket', data } },
  };
}

function netdev(id: string, peer: NicPeer, queuePairs: number): Json {
  switch (peer.kind) {
    case 'vhost-user':
      return { type: 'vhost-user', chardev: `c-${id}`, queues: queuePairs };
    case 'tap':
      return { type: 'tap', ifname: peer.name, script: 'no', downscript: 'no' };
    case 'stream':
      return peer.listen === undefined
        ? { type: 'stream', server: false, addr: socketAddress(peer.connect ?? '') }
        : { type: 'stream', server: true, addr: socketAddress(peer.listen) };
    case 'dgram':
      return { type: 'dgram', local: socketAddress(peer.local), remote: socketAddress(peer.remote) };
  }
}

function socketAddress(name: SocketName): Json {
  if (name.startsWith('/')) return { type: 'unix', path: name };
  const colon = name.lastIndexOf(':');
  return { type: 'inet', host: name.slice(0, colon), port: name.slice(colon + 1) };
}
