/*
 * What the C senders share: completions read from the error queue and counted, clocks, and the end when a call fails.
 */
#ifndef ZEROCOPY_SENDER_H
#define ZEROCOPY_SENDER_H

#include <errno.h>
#include <linux/errqueue.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
enum { COMPLETION_TIMEOUT_MS = 5000 };

struct counts {
  uint32_t sent;   /* zero-copy calls */
  uint32_t done;   /* of these, completed */
  uint32_t copied; /* of these, in records flagged COPIED */
};

static inline void fail(const char *what) {
  fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
  exit(1);
}

static inline void drain(int fd, struct counts *counts) {
  for (;;) {
    char control[512];
    struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
      if (errno == EAGAIN) return;
      fail("error queue");
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header == NULL) continue;
    const struct sock_extended_err *record = (void *)CMSG_DATA(header);
    if (record->ee_origin != SO_EE_ORIGIN_ZEROCOPY || record->ee_errno != 0) continue;
    const uint32_t length = record->ee_data - record->ee_info + 1;
    counts->done += length;
    if (record->ee_code & SO_EE_CODE_ZEROCOPY_COPIED) counts->copied += length;
  }
}

/* Waits for completions, of which there must be some to come. */
static inline void drain_some(int fd, struct counts *counts) {
  struct pollfd wait = {.fd = fd, .events = 0};
  if (poll(&wait, 1, COMPLETION_TIMEOUT_MS) <= 0) fail("completions");
  drain(fd, counts);
}

static inline void drain_all(int fd, struct counts *counts) {
  while (counts->done != counts->sent) drain_some(fd, counts);
}

static inline int64_t clock_ns(clockid_t id) {
  struct timespec t;
  clock_gettime(id, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

#endif
