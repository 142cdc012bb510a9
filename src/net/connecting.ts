/**
 * From options to an established connection: name lookup, then one address after the other.
 *
 *   lookup ──▶ addresses, families taking turns ──▶ attempt ──▶ established
 *                                                     │ refused, or no answer within the attempt's time
 *                                                     └──▶ next attempt; behind the last one: failed
 *
 * With one address there is one attempt, without a time limit, as in Node. Of several attempts only one is ever under way
 * (Node's autoSelectFamily, which is a sequential form of RFC 8305).
 */
import { ADDRCONFIG, lookup as dnsLookup, type LookupAddress } from 'node:dns';
import { getDefaultAutoSelectFamily, getDefaultAutoSelectFamilyAttemptTimeout, isIP } from 'node:net';
import { errnoError, errnoOf, type ZerotxError } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import { AF_INET, AF_INET6, AF_UNIX, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET } from '../sys/constants.ts';
import { encodeSockaddr, encodeSockaddrUn } from '../wire/sockaddr.ts';
import type { TcpConnectOptions } from './connect-options.ts';
import type { Endpoint } from './endpoint.ts';
import { ipBlocked, nodeError, nodeTypeError } from './node-errors.ts';
import { TcpChannel, type TcpHandler, type TcpOptions } from './tcp.ts';
import { scopeIdOf } from './zones.ts';

/** Who hears how the connection comes about; the names are those of net.Socket's events. */
export interface ConnectObserver {
  lookup(error: Error | null, address: string | undefined, family: number | undefined, host: string): void;
  attempt(address: string, port: number, family: number): void;
  attemptFailed(address: string, port: number, family: number, error: Error): void;
  attemptTimeout(address: string, port: number, family: number): void;
  /** `remote` is null for a Unix socket. */
  established(channel: TcpChannel, remote: Endpoint | null): void;
  failed(error: Error): void;
}

interface Target {
  readonly address: string;
  readonly family: number;
}

const EINPROGRESS = -errnoOf('EINPROGRESS');
/** Node's own lower bound for an attempt. */
const ATTEMPT_MS_MIN = 10;

export class Connecting {
  readonly #options: TcpConnectOptions;
  readonly #tcp: TcpOptions;
  readonly #observer: ConnectObserver;
  readonly #errors: Error[] = [];
  #targets: readonly Target[] = [];
  #next = 0;
  #channel: TcpChannel | null = null;
  #timer: NodeJS.Timeout | undefined;
  #over = false;
  #refed = true;

  constructor(options: TcpConnectOptions, tcp: TcpOptions, observer: ConnectObserver) {
    this.#options = options;
    this.#tcp = tcp;
    this.#observer = observer;
  }

  /** Begins. The observer may hear of a lookup from inside; what the program's lookup throws comes through. */
  start(): void {
    const { path } = this.#options;
    const host = this.#options.host || 'localhost';
    const family = path === undefined || path === null ? isIP(host.split('%')[0] as string) : 0;
    if (typeof path === 'string') process.nextTick(() => this.#try(() => this.#connectPath(path)));
    else if (family !== 0) process.nextTick(() => this.#start([{ address: host, family }]));
    else this.#lookup(host);
  }

  /** Nobody wants the connection any more. */
  cancel(): void {
    this.#over = true;
    clearTimeout(this.#timer);
    this.#channel?.close();
  }

  ref(on: boolean): void {
    this.#refed = on;
    if (on) this.#channel?.ref();
    else this.#channel?.unref();
  }

  #lookup(host: string): void {
    const {
      family,
      localAddress,
      hints = 0,
      autoSelectFamily = getDefaultAutoSelectFamily(),
    } = this.#options;
    const oneFamily = family === 4 || family === 6;
    const all = autoSelectFamily && !oneFamily && !localAddress;
    const lookup = (this.#options.lookup ?? dnsLookup) as typeof dnsLookup;
    const options = { family: family ?? 0, hints: hints === 0 && !oneFamily ? ADDRCONFIG : hints, all };
    lookup(host, options, (error: Error | null, found: string | LookupAddress[], foundFamily?: number) => {
      const entries = Array.isArray(found) ? found : [{ address: found, family: foundFamily ?? 0 }];
      if (error) this.#observer.lookup(error, undefined, undefined, host);
      else for (const { address, family } of entries) this.#observer.lookup(null, address, family, host);
      if (this.#over) return;
      if (error) return this.#failLater(error);
      const usable = entries.filter(({ address }) => isIP(address) !== 0);
      if (usable.length === 0) {
        const text = `Invalid IP address: ${entries[0]?.address}`;
        return this.#failLater(nodeTypeError('ERR_INVALID_IP_ADDRESS', text));
      }
      const wrong = usable.find(({ family }) => family !== 4 && family !== 6);
      if (wrong !== undefined) {
        const text = `Invalid address family: ${wrong.family} ${host}:${this.#options.port}`;
        return this.#failLater(
          Object.assign(nodeTypeError('ERR_INVALID_ADDRESS_FAMILY', text), {
            host,
            port: this.#options.port,
          }),
        );
      }
      this.#start(takeTurns(usable));
    });
  }

  #start(targets: readonly Target[]): void {
    this.#targets = targets;
    this.#attempt();
  }

  #attempt(): void {
    if (this.#over) return;
    const target = this.#targets[this.#next] as Target;
    this.#next += 1;
    const port = Number(this.#options.port);
    this.#observer.attempt(target.address, port, target.family);
    if (this.#over) return;
    this.#try(() => this.#connect(target, port), target);
    if (this.#channel === null || this.#next === this.#targets.length) return;
    const limit = this.#options.autoSelectFamilyAttemptTimeout ?? getDefaultAutoSelectFamilyAttemptTimeout();
    this.#timer = setTimeout(
      () => {
        this.#channel?.close();
        this.#channel = null;
        this.#observer.attemptTimeout(target.address, port, target.family);
        this.#errors.push(errnoError(errnoOf('ETIMEDOUT'), 'connect', { address: target.address, port }));
        this.#attempt();
      },
      Math.max(ATTEMPT_MS_MIN, limit),
    );
  }

  /** Runs a step that may throw: the attempt, or with no target the whole, then fails. */
  #try(step: () => void, target?: Target): void {
    if (this.#over) return;
    try {
      step();
    } catch (error) {
      if (target === undefined) this.#failLater(error as Error);
      else process.nextTick(() => this.#attemptFailed(target, error as Error));
    }
  }

  #connect(target: Target, port: number): void {
    const [address, zone] = target.address.split('%') as [string, string?];
    const { localAddress, localPort, blockList } = this.#options;
    if (blockList?.check(address, target.family === 6 ? 'ipv6' : 'ipv4') === true) throw ipBlocked(address);
    const domain = domainOf(target);
    const sockaddr = encodeSockaddr(address, port, scopeIdOf(zone), domain);
    const fd = native().socket(domain, SOCK_STREAM, 0);
    if (fd < 0) throw errnoError(fd, 'connect', { address, port });
    try {
      if (localAddress || localPort) {
        const [local, localZone] = (localAddress || (target.family === 6 ? '::' : '0.0.0.0')).split('%');
        // libuv sets it, too: a fixed local port would be refused while an earlier connection is in TIME_WAIT.
        calls.setOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
        calls.bind(fd, local as string, localPort ?? 0, scopeIdOf(localZone));
      }
      this.#open(fd, sockaddr, { address, port }, target);
    } catch (error) {
      native().close(fd);
      throw error;
    }
  }

  #connectPath(path: string): void {
    const sockaddr = encodeSockaddrUn(path);
    const fd = calls.socket(AF_UNIX, SOCK_STREAM);
    try {
      this.#open(fd, sockaddr, { address: path, port: 0 });
    } catch (error) {
      native().close(fd);
      throw error;
    }
  }

  #open(fd: number, sockaddr: Uint8Array, remote: { address: string; port: number }, target?: Target): void {
    const result = native().connect(fd, sockaddr);
    if (result < 0 && result !== EINPROGRESS) {
      throw errnoError(result, 'connect', target === undefined ? { address: remote.address } : remote);
    }
    const handler: TcpHandler = {
      connected: () => this.#connected(target === undefined ? null : endpointOf(target, remote.port)),
      failed: (error: ZerotxError) => {
        this.#channel = null;
        if (target === undefined) this.#fail(error);
        else this.#attemptFailed(target, this.#withLocal(error));
      },
      readable() {},
      writable() {},
      released() {},
    };
    this.#channel = TcpChannel.connecting(fd, remote, this.#tcp, handler);
    if (!this.#refed) this.#channel.unref();
  }

  /** Names the local end, if the program chose it: it may be what is wrong. */
  #withLocal(error: ZerotxError): ZerotxError {
    const { localAddress, localPort } = this.#options;
    if (!localAddress) return error;
    const suffix = localPort ? ` - Local (${localAddress}:${localPort})` : '';
    return Object.assign(error, { localAddress, localPort, message: `${error.message}${suffix}` });
  }

  #connected(remote: Endpoint | null): void {
    const channel = this.#channel as TcpChannel;
    clearTimeout(this.#timer);
    this.#over = true;
    this.#observer.established(channel, remote);
  }

  #attemptFailed(target: Target, error: Error): void {
    if (this.#over) return;
    clearTimeout(this.#timer);
    this.#errors.push(error);
    this.#observer.attemptFailed(target.address, Number(this.#options.port), target.family, error);
    if (this.#next < this.#targets.length) this.#attempt();
    else this.#fail(this.#errors.length === 1 ? error : allFailed(this.#errors));
  }

  #failLater(error: Error): void {
    process.nextTick(() => this.#fail(error));
  }

  #fail(error: Error): void {
    if (this.#over) return;
    this.#over = true;
    this.#observer.failed(error);
  }
}

/** As the kernel would name it. */
function endpointOf(target: Target, port: number): Endpoint {
  const [address, zone] = target.address.split('%') as [string, string?];
  return { address, port, family: domainOf(target), scopeId: scopeIdOf(zone) };
}

function domainOf(target: Target): number {
  return target.family === 6 ? AF_INET6 : AF_INET;
}

/** The families in turn, beginning with that of the first address. */
function takeTurns(targets: readonly Target[]): Target[] {
  const first = targets[0]?.family;
  const one = targets.filter(({ family }) => family === first);
  const other = targets.filter(({ family }) => family !== first);
  const merged: Target[] = [];
  for (let i = 0; i < Math.max(one.length, other.length); i++) {
    for (const list of [one, other]) if (list[i] !== undefined) merged.push(list[i] as Target);
  }
  return merged;
}

/** As Node's: no text of its own, the code of the first. */
function allFailed(errors: readonly Error[]): Error {
  const { code } = errors[0] as Error & { code?: string };
  return Object.assign(new AggregateError(errors), { code: code ?? nodeError('ERR_SOCKET_CLOSED').code });
}
