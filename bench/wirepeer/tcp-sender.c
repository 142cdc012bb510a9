/*
 * tcp-sender: the smallest program that sends with and without MSG_ZEROCOPY, to show what the kernel alone costs.
 *
 * It connects, sends FIRST_BYTES bytes, reads GREETING_BYTES bytes, and then sends messages in a blocking loop out of a
 * working set large enough to be cold. A message counts as done when its last byte is with the kernel; a zero-copy
 * slice ends only when all its completions are in, so their cost is inside the slice.
 *
 * usage: tcp-sender ADDRESS PORT FIRST_BYTES GREETING_BYTES MESSAGE_BYTES WORKING_SET_BYTES
 * stdin: lines "COUNT ZEROCOPY(0|1)"; stdout: one JSON line for each, and one at the start.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
enum { SEND_BUFFER_BYTES = 4 << 20, COMPLETION_TIMEOUT_MS = 5000 };

struct counts {
  uint32_t sent;   /* zero-copy calls */
  uint32_t done;   /* of these, completed */
  uint32_t copied; /* of these, in records flagged COPIED */
};

static void fail(const char *what) {
  fprintf(stderr, "tcp-sender: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void drain(int fd, struct counts *counts) {
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

static void send_message(int fd, const char *bytes, size_t length, int zerocopy, struct counts *counts) {
  while (length > 0) {
    ssize_t n = send(fd, bytes, length, MSG_NOSIGNAL | (zerocopy ? MSG_ZEROCOPY : 0));
    if (n < 0) fail("send");
    if (zerocopy) counts->sent++;
    bytes += n;
    length -= (size_t)n;
  }
}

static int64_t clock_ns(clockid_t id) {
  struct timespec t;
  clock_gettime(id, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void run(int fd, const char *memory, size_t size, size_t slots, unsigned long count, int zerocopy) {
  static unsigned long next;
  struct counts counts = {0};
  const int64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID), begin = clock_ns(CLOCK_MONOTONIC);
  for (unsigned long i = 0; i < count; i++) {
    send_message(fd, memory + size * (next++ % slots), size, zerocopy, &counts);
    if (zerocopy) drain(fd, &counts);
  }
  while (counts.done != counts.sent) {
    struct pollfd wait = {.fd = fd, .events = 0};
    if (poll(&wait, 1, COMPLETION_TIMEOUT_MS) <= 0) fail("completions");
    drain(fd, &counts);
  }
  const int64_t cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu, elapsed_ns = clock_ns(CLOCK_MONOTONIC) - begin;
  struct tcp_info info;
  socklen_t length = sizeof info;
  getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length);
  printf("{\"count\":%lu,\"cpuNs\":%ld,\"elapsedNs\":%ld,\"zerocopyCalls\":%u,\"copiedCalls\":%u,\"retransmits\":%u,"
         "\"congestionWindow\":%u}\n",
         count, cpu_ns, elapsed_ns, counts.sent, counts.copied, info.tcpi_total_retrans, info.tcpi_snd_cwnd);
  fflush(stdout);
}

int main(int argc, char **argv) {
  if (argc != 7) {
    fprintf(stderr, "usage: tcp-sender ADDRESS PORT FIRST_BYTES GREETING_BYTES MESSAGE_BYTES WORKING_SET_BYTES\n");
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const size_t first = strtoul(argv[3], NULL, 10), greeting = strtoul(argv[4], NULL, 10);
  const size_t size = strtoul(argv[5], NULL, 10), slots = strtoul(argv[6], NULL, 10) / size;
  char *memory = aligned_alloc(4096, size * slots);
  memset(memory, 'z', size * slots);

  const int one = 1, buffer = SEND_BUFFER_BYTES;
  struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
  if (inet_pton(AF_INET, argv[1], &peer.sin_addr) != 1) fail("address");
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  if (setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) < 0) fail("SO_ZEROCOPY");
  if (connect(fd, (struct sockaddr *)&peer, sizeof peer) < 0) fail("connect");
  struct counts none = {0};
  send_message(fd, memory, first, 0, &none);
  static char sink[65536];
  for (size_t got = 0; got < greeting;) {
    ssize_t n = read(fd, sink, sizeof sink);
    if (n <= 0) fail("greeting");
    got += (size_t)n;
  }
  printf("{\"connected\":true}\n");
  fflush(stdout);
  unsigned long count;
  int zerocopy;
  while (scanf("%lu %d", &count, &zerocopy) == 2) run(fd, memory, size, slots, count, zerocopy);
  return 0;
}
