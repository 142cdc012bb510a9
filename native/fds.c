/*
 * Descriptors that come from elsewhere: received over a Unix socket, opened by Node, or made to be handed on.
 *
 * Each becomes one of this environment's, as if socket() had made it. What came from another process stays shared with
 * it: file offset, flags, and whatever else belongs to the open file. So nothing here changes the flags of a received
 * descriptor, and nothing elsewhere may rely on them: the other holder can set and clear O_NONBLOCK at any time.
 */
#include "env.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FDS_MAX 253       /* SCM_MAX_FD: of one message */
#define MEMFD_NAME_MAX 249 /* NAME_MAX less "memfd:" */

/*
 * Room for as many descriptors as a message can carry: MSG_CTRUNC then means that the kernel could not install them all
 * (RLIMIT_NOFILE, or a security module). The rest is for credentials and a security label, should anybody switch them on.
 */
union control {
  struct cmsghdr header;
  uint8_t bytes[CMSG_SPACE(FDS_MAX * sizeof(int)) + 512];
};

/* Enters the descriptors of one control message at out[1 + count]; returns the new count, or -1 when not all fit. */
static int take_rights(struct env *env, const struct cmsghdr *control, struct ints out, int count) {
  size_t total = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  bool lost = false;
  for (size_t i = 0; i < total; i++) {
    int fd;
    memcpy(&fd, CMSG_DATA(control) + i * sizeof fd, sizeof fd);
    if (lost || (size_t)count + 1 >= out.length) {
      close(fd);
      lost = true;
    } else if (slot_open(env, fd, false) < 0) {
      lost = true;
    } else {
      out.data[1 + count++] = fd;
    }
  }
  out.data[0] = count;
  return lost ? -1 : count;
}

static napi_value zt_recv_fds(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_BYTES(call, 1, buffer);
  ARG_INTS(call, 2, out);
  OURS(call, fd);
  if (buffer.length == 0 || out.length == 0) return number(&call, -EINVAL);
  union control control;
  struct iovec iov = {.iov_base = buffer.data, .iov_len = buffer.length};
  struct msghdr message = {
      .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  out.data[0] = 0;
  ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) return number(&call, -errno);
  bool lost = (message.msg_flags & MSG_CTRUNC) != 0;
  for (struct cmsghdr *one = CMSG_FIRSTHDR(&message); one != NULL; one = CMSG_NXTHDR(&message, one))
    if (one->cmsg_level == SOL_SOCKET && one->cmsg_type == SCM_RIGHTS && take_rights(call.env, one, out, out.data[0]) < 0)
      lost = true;
  if (lost) {
    for (int i = 1; i <= out.data[0]; i++) slot_close_behind(call.env, out.data[i]);
    out.data[0] = -1;
  }
  return number(&call, got);
}

static napi_value zt_send_fds(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_BYTES(call, 1, bytes);
  ARG_INTS(call, 2, fds);
  ARG_INT(call, 3, count);
  OURS(call, fd);
  if (count < 0 || count > FDS_MAX || (size_t)count > fds.length) return number(&call, -EINVAL);
  for (int32_t i = 0; i < count; i++) OURS(call, fds.data[i]);
  union control control;
  struct iovec iov = {.iov_base = bytes.data, .iov_len = bytes.length};
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
  if (count > 0) {
    size_t length = (size_t)count * sizeof(int);
    control.header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(length)};
    memcpy(CMSG_DATA(&control.header), fds.data, length);
    message.msg_control = &control;
    message.msg_controllen = CMSG_SPACE(length);
  }
  return outcome(&call, sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL));
}

static napi_value zt_socketpair(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, domain);
  ARG_INT(call, 1, type);
  ARG_INTS(call, 2, out);
  if (out.length < 2) return number(&call, -EINVAL);
  int pair[2];
  if (socketpair(domain, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) return number(&call, -errno);
  if (slot_open(call.env, pair[0], false) < 0) {
    close(pair[1]);
    return number(&call, -ENOMEM);
  }
  if (slot_open(call.env, pair[1], false) < 0) {
    slot_close(call.env, pair[0]);
    return number(&call, -ENOMEM);
  }
  memcpy(out.data, pair, sizeof pair);
  return number(&call, 0);
}

static napi_value zt_memfd_create(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_BYTES(call, 0, name);
  ARG_INT64(call, 1, bytes);
  ARG_INT(call, 2, seals);
  char text[MEMFD_NAME_MAX + 1] = {0};
  if (bytes < 0 || name.length > MEMFD_NAME_MAX) return number(&call, -EINVAL);
  if (name.length > 0) memcpy(text, name.data, name.length);
  int fd = (int)syscall(SYS_memfd_create, text, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return number(&call, -errno);
  if (ftruncate(fd, bytes) != 0 || (seals != 0 && fcntl(fd, F_ADD_SEALS, seals) != 0)) {
    int error = errno;
    close(fd);
    return number(&call, -error);
  }
  return outcome(&call, slot_open(call.env, fd, false));
}

static napi_value zt_eventfd_create(napi_env napi, napi_callback_info info) {
  CALL(call);
  return outcome(&call, slot_open(call.env, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), false));
}

/* fstat() would ask a file system in user space, which need not answer; besides, it is a symbol of glibc 2.33. */
int file_kind(int fd) {
  struct statx about;
  if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &about) != 0) return -1;
  return about.stx_mode & S_IFMT;
}

bool is_unix_socket(int fd) {
  int domain = 0;
  socklen_t length = sizeof domain;
  return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX;
}

static napi_value zt_fd_stat(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  OURS(call, fd);
  return outcome(&call, file_kind(fd));
}

static napi_value zt_close_received(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  OURS(call, fd);
  slot_close_behind(call.env, fd);
  return number(&call, 0);
}

static napi_value zt_adopt(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  if (slot_of(call.env, fd) != NULL) return number(&call, -EEXIST);
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
    return number(&call, -errno);
  return outcome(&call, slot_open(call.env, fd, false));
}

const struct export fds_exports[] = {
    {"recvFds", zt_recv_fds},
    {"sendFds", zt_send_fds},
    {"socketpair", zt_socketpair},
    {"memfdCreate", zt_memfd_create},
    {"eventfdCreate", zt_eventfd_create},
    {"fdStat", zt_fd_stat},
    {"closeReceived", zt_close_received},
    {"adopt", zt_adopt},
    {NULL, NULL},
};
