/*
 * Numbers of the kernel's interface that older libc headers lack. They are ABI: the same on every architecture that
 * Node runs on (include/uapi/asm-generic/socket.h, linux/socket.h, linux/errqueue.h, linux/vm_sockets.h, linux/udp.h).
 */
#ifndef ZEROTX_CONSTANTS_H
#define ZEROTX_CONSTANTS_H

#include <sys/mman.h>
#include <sys/socket.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif
#ifndef SO_EE_ORIGIN_ZEROCOPY
#define SO_EE_ORIGIN_ZEROCOPY 5
#endif
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef SOL_VSOCK
#define SOL_VSOCK 287
#endif
#ifndef MADV_HUGEPAGE
#define MADV_HUGEPAGE 14
#endif
#ifndef MADV_DONTFORK
#define MADV_DONTFORK 10
#endif

#endif
