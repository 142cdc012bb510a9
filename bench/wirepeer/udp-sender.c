/*
 * udp-sender: the smallest program that sends segmented datagrams (UDP_SEGMENT) with and without MSG_ZEROCOPY, to show
 * what the kernel alone costs.
 *
 * It sends payloads to whoever does not listen, in a blocking loop, out of a working set large enough to be cold, in
 * memory that may be huge pages, as that of a pool is. It never touches what it sends. Completions are read every
 * DRAIN_CALLS calls, as a program with an event loop reads them in batches; a zero-copy slice ends only when all are in.
 *
 * usage: udp-sender ADDRESS PORT SEGMENT_BYTES PAYLOAD_BYTES WORKING_SET_BYTES
 * stdin: lines "COUNT ZEROCOPY(0|1)"; stdout: one JSON line for each, and one at the start.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "zerocopy-sender.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
enum { PAGE_BYTES = 4096, HUGE_PAGE_BYTES = 2 << 20, DRAIN_CALLS = 16 };

/* Pages that were never written would all be the same one, and warm. */
static char *filled_memory(size_t size) {
  char *memory = aligned_alloc(HUGE_PAGE_BYTES, (size + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES);
  if (memory == NULL) fail("memory");
  madvise(memory, size, MADV_HUGEPAGE); /* a kernel without them costs a little more */
  memset(memory, 'z', size);
  return memory;
}

static void run(int fd, const char *memory, size_t size, size_t slots, unsigned long count, int zerocopy) {
  static unsigned long next;
  const size_t slot = (size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
  struct counts counts = {0};
  const int64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID), begin = clock_ns(CLOCK_MONOTONIC);
  for (unsigned long i = 0; i < count; i++) {
    /* The kernel takes all of it or nothing. */
    if (send(fd, memory + slot * (next++ % slots), size, zerocopy ? MSG_ZEROCOPY : 0) < 0) fail("send");
    if (!zerocopy) continue;
    counts.sent++;
    if (counts.sent % DRAIN_CALLS == 0) drain(fd, &counts);
  }
  drain_all(fd, &counts);
  const int64_t cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu, elapsed_ns = clock_ns(CLOCK_MONOTONIC) - begin;
  printf("{\"count\":%lu,\"cpuNs\":%ld,\"elapsedNs\":%ld,\"zerocopyCalls\":%u,\"copiedCalls\":%u}\n", count, cpu_ns,
         elapsed_ns, counts.sent, counts.copied);
  fflush(stdout);
}

int main(int argc, char **argv) {
  if (argc != 6) {
    fprintf(stderr, "usage: udp-sender ADDRESS PORT SEGMENT_BYTES PAYLOAD_BYTES WORKING_SET_BYTES\n");
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int one = 1, segment = atoi(argv[3]);
  const size_t size = strtoul(argv[4], NULL, 10), working_set = strtoul(argv[5], NULL, 10);
  const size_t slots = working_set / ((size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
  const char *memory = filled_memory(working_set);

  struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
  if (inet_pton(AF_INET, argv[1], &peer.sin_addr) != 1) fail("address");
  int fd = socket(AF_INET, SOCK_DGRAM, 0);
  if (setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) < 0) fail("SO_ZEROCOPY");
  if (setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment) < 0) fail("UDP_SEGMENT");
  if (connect(fd, (struct sockaddr *)&peer, sizeof peer) < 0) fail("connect");
  printf("{\"connected\":true}\n");
  fflush(stdout);
  unsigned long count;
  int zerocopy;
  while (scanf("%lu %d", &count, &zerocopy) == 2) run(fd, memory, size, slots, count, zerocopy);
  return 0;
}
