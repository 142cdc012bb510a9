/*
 * Questions about the system that only a system call answers: is io_uring allowed here, what can a network device do.
 * Both leave nothing behind.
 */
#include "env.h"

#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_io_uring_setup
#define SYS_io_uring_setup 425 /* the same on every architecture: it is younger than the common table */
#endif

#define RING_PARAMS_BYTES 120 /* sizeof(struct io_uring_params), which headers before Linux 5.1 lack */

static napi_value zt_io_uring_probe(napi_env napi, napi_callback_info info) {
  CALL(call);
  uint32_t params[RING_PARAMS_BYTES / sizeof(uint32_t)] = {0};
  long ring = syscall(SYS_io_uring_setup, 1, params);
  if (ring < 0) return number(&call, -errno);
  close((int)ring);
  return number(&call, 0);
}

/*
 * The old one-value commands rather than the bitmap of ETHTOOL_GFEATURES: the kernel maps them to features by name
 * (ethtool_get_feature_mask), while positions in the bitmap differ between versions.
 */
static napi_value zt_if_features(napi_env napi, napi_callback_info info) {
  static const uint32_t commands[] = {ETHTOOL_GSG, ETHTOOL_GTXCSUM, ETHTOOL_GTSO, ETHTOOL_GGSO};
  CALL(call);
  ARG_BYTES(call, 0, name);
  struct ifreq request = {0};
  if (name.length == 0 || name.length >= sizeof request.ifr_name) return number(&call, -EINVAL);
  memcpy(request.ifr_name, name.data, name.length);
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return number(&call, -errno);
  int64_t features = 0;
  for (size_t i = 0; i < sizeof commands / sizeof *commands && features >= 0; i++) {
    struct ethtool_value value = {.cmd = commands[i]};
    request.ifr_data = (char *)&value;
    if (ioctl(fd, SIOCETHTOOL, &request) < 0) features = -errno;
    else if (value.data != 0) features |= (int64_t)1 << i;
  }
  close(fd);
  return number(&call, features);
}

const struct export probe_exports[] = {
    {"ioUringProbe", zt_io_uring_probe},
    {"ifFeatures", zt_if_features},
    {NULL, NULL},
};
