/*
 * Tap devices: a network device whose other end is a descriptor, a frame a read or write (tun_chr_* in drivers/net/tun.c).
 * The same requests serve a macvtap, whose descriptor is an open /dev/tapN (drivers/net/tap.c).
 */
#include "env.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static napi_value zt_tap_open(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_BYTES(call, 0, name);
  ARG_UINT(call, 1, flags);
  ARG_BYTES(call, 2, name_out);
  struct ifreq request = {.ifr_flags = (short)flags};
  if (name.length >= sizeof request.ifr_name || name_out.length < sizeof request.ifr_name) return number(&call, -EINVAL);
  if (name.length > 0) memcpy(request.ifr_name, name.data, name.length);
  int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return number(&call, -errno);
  if (ioctl(fd, TUNSETIFF, &request) < 0) {
    int error = errno;
    close(fd);
    return number(&call, -error);
  }
  memcpy(name_out.data, request.ifr_name, sizeof request.ifr_name); /* the kernel ends it with a zero byte */
  return outcome(&call, slot_open(call.env, fd, false));
}

static napi_value zt_tap_set_offload(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_UINT(call, 1, flags);
  OURS(call, fd);
  return outcome(&call, ioctl(fd, TUNSETOFFLOAD, (unsigned long)flags));
}

static napi_value zt_tap_set_vnet_header(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_INT(call, 1, bytes);
  OURS(call, fd);
  return outcome(&call, ioctl(fd, TUNSETVNETHDRSZ, &bytes));
}

static napi_value zt_tap_set_queue(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_BOOL(call, 1, on);
  OURS(call, fd);
  struct ifreq request = {.ifr_flags = on ? IFF_ATTACH_QUEUE : IFF_DETACH_QUEUE};
  return outcome(&call, ioctl(fd, TUNSETQUEUE, &request));
}

const struct export tap_exports[] = {
    {"tapOpen", zt_tap_open},
    {"tapSetOffload", zt_tap_set_offload},
    {"tapSetVnetHeader", zt_tap_set_vnet_header},
    {"tapSetQueue", zt_tap_set_queue},
    {NULL, NULL},
};
