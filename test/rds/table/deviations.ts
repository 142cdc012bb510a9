/**
 * Where a transport does otherwise than the table says, and why. The table is about what the kernel documents; what it cannot be
 * asked, as our API has no word for it, stands at the end.
 */
import type { Deviation } from './shape.ts';

export const deviations: readonly Deviation[] = [
  {
    transport: 'tcp',
    row: 'connect: an IPv6 address, from an IPv4 socket',
    instead: 'EOPNOTSUPP',
    reason:
      'Said at connect(), where the program can see its mistake; the kernel says it at the first sendmsg().',
  },
  {
    transport: 'tcp',
    row: 'sendmsg accepts: empty messages without an end',
    instead: 64,
    reason:
      'In the kernel empty messages cost nothing in the send buffer and may use up its memory. Here each counts as 64 bytes.',
  },
  {
    transport: 'tcp',
    row: 'a closed socket: sends and connects no more',
    instead: ['ENOTCONN', 'ENOTCONN', 'ENOTCONN', 'ENOTCONN'],
    reason: 'There is no descriptor that could be bad.',
  },
  {
    transport: 'kernel',
    row: 'connect: an IPv6 address, from an IPv4 socket',
    instead: 'EOPNOTSUPP',
    reason: 'As over TCP: addresses are looked at before the kernel sees them.',
  },
  {
    transport: 'kernel',
    row: 'a closed socket: sends and connects no more',
    instead: ['ENOTCONN', 'ENOTCONN', 'ENOTCONN', 'ENOTCONN'],
    reason: 'As over TCP: the descriptor may be open still, until lent memory is free.',
  },
];

/** What of the kernel's API has no counterpart, so that no row can ask for it. */
export const notExpressible: readonly { readonly what: string; readonly why: string }[] = [
  {
    what: 'flags of sendmsg(2) other than MSG_DONTWAIT and MSG_ZEROCOPY (EOPNOTSUPP)',
    why: 'sendmsg() has options, not flags; it never waits.',
  },
  {
    what: 'sockets that are not bound (ENOTCONN of sendmsg, getsockname of zeros)',
    why: 'bind() makes the socket.',
  },
  { what: 'binding twice (EINVAL)', why: 'bind() makes the socket.' },
  { what: 'addresses of another family or length (EINVAL, EAFNOSUPPORT)', why: 'Addresses are text.' },
  {
    what: 'several cookies in one message, malformed control messages, RDMA and atomic operations (EINVAL, EOPNOTSUPP)',
    why: 'There is one cookie, a number, and no other control message to send.',
  },
  {
    what: 'listen, accept, shutdown, socketpair, mmap (EOPNOTSUPP)',
    why: 'Sockets do not have these methods.',
  },
  { what: 'MSG_OOB', why: 'recvmsg() has no such option.' },
  {
    what: 'EINTR',
    why: 'A promise is not interrupted by signals; an AbortSignal ends it with its own reason.',
  },
  {
    what: 'POLLERR, and POLLIN without data after any congestion map',
    why: 'The events are readable and writable; writable says that a congested port may be free.',
  },
  {
    what: 'values of SO_ZEROCOPY other than 0 and 1 (EINVAL), structures of another length (EINVAL, EFAULT)',
    why: 'Values are booleans, numbers and arrays; a wrong kind is a TypeError.',
  },
];
