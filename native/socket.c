/*
 * Sockets: making, naming, options, and the ways out. Every descriptor is close-on-exec and non-blocking.
 */
#include "env.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define END_WAITS_MAX 4 /* waits of 1 ms, in all, for confirmations that a device still holds when the environment ends */

int slot_open(struct env *env, int fd, bool zerocopy) {
  if (fd < 0) return fd;
  if ((uint32_t)fd >= env->slot_count) {
    uint32_t count = env->slot_count == 0 ? 64 : env->slot_count;
    while (count <= (uint32_t)fd) count *= 2;
    struct slot *grown = realloc(env->slots, count * sizeof *grown);
    if (grown == NULL) {
      close(fd);
      errno = ENOMEM;
      return -1;
    }
    for (uint32_t i = env->slot_count; i < count; i++) grown[i] = (struct slot){0};
    env->slots = grown;
    env->slot_count = count;
  }
  env->slots[fd] = (struct slot){.open = true, .zerocopy = zerocopy};
  return fd;
}

int slot_close(struct env *env, int fd) {
  struct slot *slot = &env->slots[fd];
  if (slot->signal_fd > 0) close(slot->signal_fd);
  *slot = (struct slot){0}; /* first: on Linux the descriptor is gone whatever close() returns */
  return close(fd);
}

void slot_close_behind(struct env *env, int fd) {
  struct slot *slot = &env->slots[fd];
  if (slot->signal_fd > 0) close_behind(slot->signal_fd);
  *slot = (struct slot){0};
  close_behind(fd);
}

static bool zerocopy_is_on(int fd) {
  int on = 0;
  socklen_t length = sizeof on;
  return getsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, &length) == 0 && on != 0;
}

static napi_value zt_socket(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, domain);
  ARG_INT(call, 1, type);
  ARG_INT(call, 2, protocol);
  return outcome(&call, slot_open(call.env, socket(domain, type | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol), false));
}

static napi_value zt_bind(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_BYTES(call, 1, address);
  OURS(call, fd);
  return outcome(&call, bind(fd, (struct sockaddr *)address.data, (socklen_t)address.length));
}

static napi_value zt_connect(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_BYTES(call, 1, address);
  OURS(call, fd);
  return outcome(&call, connect(fd, (struct sockaddr *)address.data, (socklen_t)address.length));
}

static napi_value zt_listen(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_INT(call, 1, backlog);
  OURS(call, fd);
  return outcome(&call, listen(fd, backlog));
}

static napi_value zt_accept(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_BYTES(call, 1, out);
  OURS(call, fd);
  socklen_t length = (socklen_t)out.length;
  int accepted = accept4(fd, (struct sockaddr *)out.data, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
  /* SO_ZEROCOPY is inherited from the listener (sock_copy in sk_clone_lock); the kernel's word is taken for it. */
  return outcome(&call, slot_open(call.env, accepted, accepted >= 0 && zerocopy_is_on(accepted)));
}

static napi_value name_of(napi_env napi, napi_callback_info info,
                          int (*get)(int, struct sockaddr *restrict, socklen_t *restrict)) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_BYTES(call, 1, out);
  OURS(call, fd);
  socklen_t length = (socklen_t)out.length;
  int result = get(fd, (struct sockaddr *)out.data, &length);
  return outcome(&call, result < 0 ? result : (ssize_t)length);
}

static napi_value zt_getsockname(napi_env napi, napi_callback_info info) {
  return name_of(napi, info, getsockname);
}

static napi_value zt_getpeername(napi_env napi, napi_callback_info info) {
  return name_of(napi, info, getpeername);
}

static napi_value set_option(struct call *call, int fd, int level, int name, const void *value, size_t length) {
  SLOT(*call, fd, slot);
  int result = setsockopt(fd, level, name, value, (socklen_t)length);
  if (result == 0 && level == SOL_SOCKET && name == SO_ZEROCOPY) slot->zerocopy = zerocopy_is_on(fd);
  return outcome(call, result);
}

static napi_value zt_setsockopt_int(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_INT(call, 1, level);
  ARG_INT(call, 2, name);
  ARG_INT(call, 3, value);
  return set_option(&call, fd, level, name, &value, sizeof value);
}

static napi_value zt_setsockopt(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_INT(call, 1, level);
  ARG_INT(call, 2, name);
  ARG_BYTES(call, 3, value);
  return set_option(&call, fd, level, name, value.data, value.length);
}

static napi_value zt_getsockopt_int(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_INT(call, 1, level);
  ARG_INT(call, 2, name);
  OURS(call, fd);
  int value = 0;
  socklen_t length = sizeof value;
  int result = getsockopt(fd, level, name, &value, &length);
  return outcome(&call, result < 0 ? result : value);
}

static napi_value zt_getsockopt(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_INT(call, 1, level);
  ARG_INT(call, 2, name);
  ARG_BYTES(call, 3, out);
  OURS(call, fd);
  socklen_t length = (socklen_t)out.length;
  int result = getsockopt(fd, level, name, out.data, &length);
  return outcome(&call, result < 0 ? result : (ssize_t)length);
}

static napi_value zt_shutdown(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_INT(call, 1, how);
  OURS(call, fd);
  return outcome(&call, shutdown(fd, how));
}

/* tcp_disconnect() in the kernel: sends RST, purges the write queue and so drops its references to our pages. */
int abort_socket(int fd) {
  struct sockaddr nobody = {.sa_family = AF_UNSPEC};
  return connect(fd, &nobody, sizeof nobody);
}

static napi_value zt_abort(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  OURS(call, fd);
  return outcome(&call, abort_socket(fd));
}

static napi_value zt_close(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  OURS(call, fd);
  return outcome(&call, slot_close(call.env, fd));
}

static napi_value zt_outq(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  OURS(call, fd);
  int queued = 0;
  int result = ioctl(fd, SIOCOUTQ, &queued);
  return outcome(&call, result < 0 ? result : queued);
}

static napi_value zt_inq(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  OURS(call, fd);
  int queued = 0;
  int result = ioctl(fd, SIOCINQ, &queued);
  return outcome(&call, result < 0 ? result : queued);
}

static napi_value zt_outstanding(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  SLOT(call, fd, slot);
  return number(&call, slot->outstanding);
}

void sockets_end(struct env *env) {
  env->ended = true;
  int waits = END_WAITS_MAX;
  /* All are stopped before any is waited for, so that one wait serves many. */
  for (uint32_t fd = 0; fd < env->slot_count; fd++)
    if (env->slots[fd].outstanding > 0) abort_socket((int)fd);
  for (uint32_t fd = 0; fd < env->slot_count; fd++) {
    struct slot *slot = &env->slots[fd];
    if (!slot->open) continue;
    while (slot->outstanding > 0) {
      bool more = slot->cookies ? drain_cookies((int)fd, slot) : drain_errors((int)fd, slot, NULL, SIZE_MAX) >= 0;
      if (slot->outstanding == 0) break;
      struct pollfd pending = {.fd = (int)fd, .events = slot->cookies ? POLLIN : 0}; /* POLLERR is always reported */
      if (!more || waits-- <= 0 || poll(&pending, 1, 1) < 0) break;
    }
    if (slot->outstanding > 0) env->quarantined = true;
    slot_close(env, (int)fd);
  }
}

const struct export socket_exports[] = {
    {"socket", zt_socket},
    {"bind", zt_bind},
    {"connect", zt_connect},
    {"listen", zt_listen},
    {"accept", zt_accept},
    {"getsockname", zt_getsockname},
    {"getpeername", zt_getpeername},
    {"setsockoptInt", zt_setsockopt_int},
    {"getsockoptInt", zt_getsockopt_int},
    {"setsockopt", zt_setsockopt},
    {"getsockopt", zt_getsockopt},
    {"shutdown", zt_shutdown},
    {"abort", zt_abort},
    {"close", zt_close},
    {"outq", zt_outq},
    {"inq", zt_inq},
    {"outstanding", zt_outstanding},
    {NULL, NULL},
};
