/**
 * Numbers of the Linux system-call interface, as the kernel's uapi headers define them for x86-64 and arm64 (both use
 * asm-generic/socket.h). They are ABI and never change.
 */

// linux/socket.h
export const AF_UNIX = 1;
export const AF_INET = 2;
export const AF_INET6 = 10;

export const SOCK_STREAM = 1;
export const SOCK_DGRAM = 2;
export const SOCK_SEQPACKET = 5;

export const IPPROTO_IP = 0;
export const IPPROTO_TCP = 6;
export const IPPROTO_IPV6 = 41;

export const SHUT_WR = 1;

// asm-generic/socket.h
export const SOL_SOCKET = 1;
export const SO_REUSEADDR = 2;
export const SO_ERROR = 4;
export const SO_BROADCAST = 6;
export const SO_SNDBUF = 7;
export const SO_RCVBUF = 8;
export const SO_KEEPALIVE = 9;
export const SO_LINGER = 13;
export const SO_REUSEPORT = 15;
export const SO_PEERCRED = 17;
export const SO_DOMAIN = 39;
export const SO_ZEROCOPY = 60;

// linux/tcp.h
export const TCP_NODELAY = 1;
export const TCP_KEEPIDLE = 4;
export const TCP_KEEPINTVL = 5;
export const TCP_KEEPCNT = 6;
export const TCP_CONGESTION = 13;
export const TCP_MD5SIG_EXT = 32;
export const TCP_AO_ADD_KEY = 38;

// linux/in.h, linux/in6.h
export const IPV6_V6ONLY = 26;

// linux/socket.h; the addon adds MSG_DONTWAIT and MSG_NOSIGNAL itself
export const MSG_PEEK = 0x2;
export const MSG_MORE = 0x8000;
export const MSG_ZEROCOPY = 0x4000000;

// linux/eventpoll.h; the addon adds EPOLLET itself
export const EPOLLIN = 0x1;
export const EPOLLPRI = 0x2;
export const EPOLLOUT = 0x4;
export const EPOLLERR = 0x8;
export const EPOLLHUP = 0x10;
export const EPOLLRDHUP = 0x2000;

// linux/socket.h: families and types that only questions about the system use
export const AF_NETLINK = 16;
export const AF_RDS = 21;
export const AF_VSOCK = 40;
export const AF_XDP = 44;
export const SOCK_RAW = 3;

// linux/tcp.h, linux/udp.h
export const TCP_REPAIR = 19;
export const SOL_UDP = 17;
export const UDP_SEGMENT = 103;
export const UDP_GRO = 104;

// linux/in.h, linux/in6.h, asm-generic/socket.h: what tunnels set
export const SO_NO_CHECK = 11;
export const IP_MTU_DISCOVER = 10;
export const IPV6_MTU_DISCOVER = 23;
/** The device's MTU counts, whatever ICMP says; nothing is fragmented here, and routers may (ip(7)). */
export const IP_PMTUDISC_INTERFACE = 4;

// linux/socket.h, linux/rds.h, asm-generic/socket.h: the kernel's own RDS
export const SOL_RDS = 276;
export const MSG_TRUNC = 0x20;
export const SO_TIMESTAMP = 29;
export const RDS_CANCEL_SENT_TO = 1;
export const RDS_RECVERR = 5;
export const RDS_CONG_MONITOR = 6;
export const SO_RDS_TRANSPORT = 8;
export const SO_RDS_MSG_RXPATH_LATENCY = 10;
