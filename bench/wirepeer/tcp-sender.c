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
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "zerocopy-sender.h"

/* Completions of small messages are read in batches, as a program with an event loop does. */
enum { SEND_BUFFER_BYTES = 4 << 20, DRAIN_BYTES = 1 << 20 };

static void send_message(int fd, const char *bytes, size_t length, int zerocopy, struct counts *counts) {
  while (length > 0) {
    ssize_t n = send(fd, bytes, length, MSG_NOSIGNAL | (zerocopy ? MSG_ZEROCOPY : 0));
    if (n < 0 && errno == ENOBUFS && zerocopy && counts->done != counts->sent) {
      drain_some(fd, counts); /* small calls fill net.core.optmem_max with what their completions need */
      continue;
    }
    if (n < 0) fail("send");
    if (zerocopy) counts->sent++;
    bytes += n;
    length -= (size_t)n;
  }
}

static void run(int fd, const char *memory, size_t size, size_t slots, unsigned long count, int zerocopy) {
  static unsigned long next;
  struct counts counts = {0};
  size_t since_drain = 0;
  const int64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID), begin = clock_ns(CLOCK_MONOTONIC);
  for (unsigned long i = 0; i < count; i++) {
    send_message(fd, memory + size * (next++ % slots), size, zerocopy, &counts);
    if (zerocopy && (since_drain += size) >= DRAIN_BYTES) {
      drain(fd, &counts);
      since_drain = 0;
    }
  }
  drain_all(fd, &counts);
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
