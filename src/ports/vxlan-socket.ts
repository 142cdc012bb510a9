/** Descriptors of VXLAN ports, and the options they get. */
import { isIPv4 } from 'node:net';
import { native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import {
  IP_MTU_DISCOVER,
  IP_PMTUDISC_INTERFACE,
  IPPROTO_IP,
  IPPROTO_IPV6,
  IPV6_MTU_DISCOVER,
  IPV6_V6ONLY,
  SO_NO_CHECK,
  SO_RCVBUF,
  SO_SNDBUF,
  SO_ZEROCOPY,
  SOCK_DGRAM,
  SOL_SOCKET,
  SOL_UDP,
  UDP_SEGMENT,
} from '../sys/constants.ts';

/** A socket that receives on `port`, of the family of `remote`. */
export function openVxlanReceiver(
  remote: string,
  local: string | undefined,
  port: number,
  bufferBytes: number,
): number {
  const fd = calls.socketFor(remote, SOCK_DGRAM);
  try {
    if (!isIPv4(remote)) calls.setOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    native().setsockoptInt(fd, SOL_SOCKET, SO_RCVBUF, bufferBytes);
    calls.bind(fd, local ?? anyOf(remote), port);
    return fd;
  } catch (error) {
    native().close(fd);
    throw error;
  }
}

/**
 * A socket that sends to `remote`, from a port that the kernel chooses; whether it lends, and whether the kernel cuts what it sends
 * (UDP_SEGMENT). Where it does, datagrams have a checksum, which a cut packet must have.
 */
export function openVxlanSender(
  remote: string,
  local: string | undefined,
  port: number,
  bufferBytes: number,
): { readonly fd: number; readonly canLend: boolean; readonly canCut: boolean } {
  const sys = native();
  const fd = calls.socketFor(remote, SOCK_DGRAM);
  try {
    if (isIPv4(remote)) {
      calls.setOption(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_INTERFACE);
    } else calls.setOption(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IP_PMTUDISC_INTERFACE);
    sys.setsockoptInt(fd, SOL_SOCKET, SO_SNDBUF, bufferBytes);
    // What comes to this port is for nobody.
    sys.setsockoptInt(fd, SOL_SOCKET, SO_RCVBUF, 0);
    const canLend = sys.setsockoptInt(fd, SOL_SOCKET, SO_ZEROCOPY, 1) === 0;
    const canCut = sys.getsockoptInt(fd, SOL_UDP, UDP_SEGMENT) >= 0;
    if (!canCut) leaveOutChecksum(fd, remote);
    calls.bind(fd, local ?? anyOf(remote), 0);
    calls.connect(fd, remote, port);
    return { fd, canLend, canCut };
  } catch (error) {
    sys.close(fd);
    throw error;
  }
}

/** Over IPv4, where it may be left out (RFC 7348, section 5). */
export function leaveOutChecksum(fd: number, remote: string): void {
  if (isIPv4(remote)) native().setsockoptInt(fd, SOL_SOCKET, SO_NO_CHECK, 1);
}

function anyOf(remote: string): string {
  return isIPv4(remote) ? '0.0.0.0' : '::';
}
