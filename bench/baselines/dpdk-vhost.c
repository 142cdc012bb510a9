/*
 * dpdk-vhost: what DPDK's vhost library takes out of one queue of a vhost-user front-end, with every byte of it looked at.
 *
 * It polls as DPDK programs do: packets in bursts, each copied to memory of its own by rte_vhost_dequeue_burst(), then its
 * bytes summed, then freed. The first queue pair of the last front-end that connected; nothing is sent to it.
 *
 * usage: dpdk-vhost EAL_ARGUMENTS... -- SOCKET [BURST]
 * stdin: lines "MILLISECONDS", each a slice in which it polls; in between the front-end is left waiting. stdout: {"ready":true}
 * when the socket listens, {"connected":true} or false whenever that changes, and one line for each slice. In that busyNs is
 * the time of the polls that took something: the rest of cpuNs went by with waiting for the front-end.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_vhost.h>

enum { MBUFS = 4095, CACHE = 250, BURST_MAX = 64, TX_QUEUE = 1 };

/* The front-end, or -1. Its thread waits in destroyed() until the polling thread has let go of it. */
static atomic_int device = -1;
static atomic_bool polling;

static void fail(const char *what) {
  fprintf(stderr, "dpdk-vhost: %s failed\n", what);
  exit(1);
}

static int connected(int vid) {
  atomic_store(&device, vid);
  printf("{\"connected\":true}\n");
  fflush(stdout);
  return 0;
}

static void destroyed(int vid) {
  int expected = vid;
  atomic_compare_exchange_strong(&device, &expected, -1);
  while (atomic_load(&polling)) rte_pause();
  printf("{\"connected\":false}\n");
  fflush(stdout);
}

static const struct rte_vhost_device_ops operations = {.new_device = connected, .destroy_device = destroyed};

static int64_t clock_ns(clockid_t id) {
  struct timespec t;
  clock_gettime(id, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static uint32_t sum_bytes(const void *data, size_t length) {
  const unsigned char *bytes = data;
  uint32_t sum = 0, word;
  size_t i = 0;
  for (; i + sizeof word <= length; i += sizeof word) {
    memcpy(&word, bytes + i, sizeof word);
    sum += word;
  }
  for (; i < length; i++) sum += bytes[i];
  return sum;
}

struct totals {
  uint64_t packets, bytes, bursts, polls;
  uint64_t busy_cycles;
  uint32_t sum;
};

static void take_burst(struct rte_mempool *pool, uint16_t burst, struct totals *totals) {
  struct rte_mbuf *packets[BURST_MAX];
  const int vid = atomic_load(&device);
  if (vid < 0) return;
  const uint64_t begin = rte_rdtsc();
  atomic_store(&polling, true);
  /* Looked at again, as it may have gone before the flag was seen. */
  const uint16_t n =
      atomic_load(&device) == vid ? rte_vhost_dequeue_burst(vid, TX_QUEUE, pool, packets, burst) : 0;
  atomic_store(&polling, false);
  for (uint16_t i = 0; i < n; i++) {
    for (struct rte_mbuf *m = packets[i]; m != NULL; m = m->next) {
      totals->sum += sum_bytes(rte_pktmbuf_mtod(m, void *), rte_pktmbuf_data_len(m));
    }
    totals->bytes += rte_pktmbuf_pkt_len(packets[i]);
  }
  rte_pktmbuf_free_bulk(packets, n);
  totals->polls++;
  if (n == 0) return;
  totals->packets += n;
  totals->bursts++;
  totals->busy_cycles += rte_rdtsc() - begin;
}

static void slice(struct rte_mempool *pool, uint16_t burst, int64_t length_ns) {
  struct totals totals = {0};
  const int64_t cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID), begin = clock_ns(CLOCK_MONOTONIC);
  int64_t end;
  do {
    /* The clock costs little next to this many polls. */
    for (int i = 0; i < 64; i++) take_burst(pool, burst, &totals);
    end = clock_ns(CLOCK_MONOTONIC);
  } while (end - begin < length_ns);
  const int64_t busy = (int64_t)((double)totals.busy_cycles * 1e9 / (double)rte_get_tsc_hz());
  printf("{\"packets\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"bursts\":%" PRIu64 ",\"polls\":%" PRIu64 ",\"sum\":%u,"
         "\"busyNs\":%" PRId64 ",\"cpuNs\":%" PRId64 ",\"elapsedNs\":%" PRId64 "}\n",
         totals.packets, totals.bytes, totals.bursts, totals.polls, totals.sum, busy,
         clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu, end - begin);
  fflush(stdout);
}

int main(int argc, char **argv) {
  const int used = rte_eal_init(argc, argv);
  if (used < 0) fail("rte_eal_init");
  argc -= used;
  argv += used;
  if (argc < 2) {
    fprintf(stderr, "usage: dpdk-vhost EAL_ARGUMENTS... -- SOCKET [BURST]\n");
    return 2;
  }
  const char *path = argv[1];
  const int burst = argc > 2 ? atoi(argv[2]) : 32;
  if (burst < 1 || burst > BURST_MAX) fail("BURST");
  struct rte_mempool *pool =
      rte_pktmbuf_pool_create("packets", MBUFS, CACHE, 0, RTE_MBUF_DEFAULT_BUF_SIZE, rte_socket_id());
  if (pool == NULL) fail("rte_pktmbuf_pool_create");
  if (rte_vhost_driver_register(path, 0) != 0) fail("rte_vhost_driver_register");
  if (rte_vhost_driver_callback_register(path, &operations) != 0) fail("rte_vhost_driver_callback_register");
  if (rte_vhost_driver_start(path) != 0) fail("rte_vhost_driver_start");
  printf("{\"ready\":true}\n");
  fflush(stdout);
  long milliseconds;
  while (scanf("%ld", &milliseconds) == 1) slice(pool, (uint16_t)burst, milliseconds * 1000000LL);
  rte_vhost_driver_unregister(path);
  rte_eal_cleanup();
  return 0;
}
