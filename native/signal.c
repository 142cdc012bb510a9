/*
 * eventfdSignal(): tells the other end of a descriptor that there is something to look at, without ever waiting.
 *
 * A guest's interrupt is an eventfd that its monitor gave us and keeps. write(2) to it waits when the counter is full, unless
 * O_NONBLOCK is set; the monitor can fill the counter, and clear the flag at any time, and one guest would stop the
 * thread that serves all of them. Eventfds know no RWF_NOWAIT, cannot be reopened, and what poll(2) said is old when the
 * write comes.
 *
 * So the kernel writes, by asynchronous I/O: each request may name an eventfd to be signalled when it is complete
 * (IOCB_FLAG_RESFD), which eventfd_signal() does without waiting, as interrupt handlers do. The request itself is a write
 * of nothing to /dev/null, complete before io_submit(2) returns. 0.7 us, where write(2) takes 0.25.
 *
 * Results go to a ring in memory that is mapped here (struct aio_ring in fs/aio.c; its layout is what its magic number
 * stands for). Nobody looks at them: before each request the ring is declared read, by one store. Where the ring is not
 * of that kind, as in gVisor, io_getevents(2) empties it.
 *
 * Not every descriptor that is given for this purpose is an eventfd. A Unix socket gets eight bytes with MSG_DONTWAIT, and so
 * does a pipe with RWF_NOWAIT, or through a second, non-blocking opening of it where that is not known: before Linux 6.4, and for
 * pipes with a name. Other kinds of sockets are refused, and so is anything else. What a descriptor is gets decided at its
 * first signal.
 *
 * Pipes are the weak spot: a writer keeps the pipe's lock while it copies (pipe_write), and one that copies from memory
 * behind a FUSE file keeps it for as long as it likes; nothing that is done to a pipe gets past that lock. TCP and UDP sockets
 * are the same. Unix sockets are not: they copy first, and then queue what they copied. Who does not trust the other
 * end does not take a pipe from it; fdStat() tells.
 */
#include "env.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef RWF_NOWAIT
#define RWF_NOWAIT 0x8
#endif

#define REQUESTS 32 /* unread results that the ring must have room for; one, but a kernel keeps some per CPU */
#define RING_MAGIC 0xa10a10a1

enum { SIGNAL_UNKNOWN, SIGNAL_EVENTFD, SIGNAL_SOCKET, SIGNAL_PIPE, SIGNAL_REFUSED };

struct ring {
  uint32_t id, nr, head, tail, magic, compat_features, incompat_features, header_length;
};

struct signals {
  aio_context_t context; /* the address of the ring */
  int sink;
  bool readable; /* the ring can be emptied here */
};

static const uint64_t one = 1;

static int signals_open(struct env *env) {
  if (env->signals != NULL) return 0;
  struct signals *signals = calloc(1, sizeof *signals);
  if (signals == NULL) return -ENOMEM;
  signals->sink = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (signals->sink < 0 || syscall(SYS_io_setup, REQUESTS, &signals->context) != 0) {
    int error = errno;
    if (signals->sink >= 0) close(signals->sink);
    free(signals);
    return -error;
  }
  const struct ring *ring = (const struct ring *)signals->context;
  signals->readable = ring->magic == RING_MAGIC && ring->incompat_features == 0;
  env->signals = signals;
  return 0;
}

void signals_end(struct env *env) {
  struct signals *signals = env->signals;
  if (signals == NULL) return;
  env->signals = NULL;
  syscall(SYS_io_destroy, signals->context);
  close(signals->sink);
  free(signals);
}

static void forget_results(struct signals *signals) {
  if (signals->readable) {
    struct ring *ring = (struct ring *)signals->context;
    __atomic_store_n(&ring->head, __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
    return;
  }
  struct io_event results[REQUESTS];
  struct timespec now = {0};
  syscall(SYS_io_getevents, signals->context, 0, REQUESTS, results, &now);
}

static int signal_eventfd(struct env *env, int fd) {
  int opened = signals_open(env);
  if (opened < 0) return opened;
  struct iocb request = {
      .aio_lio_opcode = IOCB_CMD_PWRITE,
      .aio_fildes = (uint32_t)env->signals->sink,
      .aio_buf = (uint64_t)(uintptr_t)&one,
      .aio_flags = IOCB_FLAG_RESFD,
      .aio_resfd = (uint32_t)fd,
  };
  struct iocb *list[] = {&request};
  forget_results(env->signals);
  return syscall(SYS_io_submit, env->signals->context, 1, list) == 1 ? 0 : -errno;
}

/*
 * Whether it is an eventfd: any other descriptor in its place is refused (EINVAL) before the request itself is, which asks to read
 * from what is open for writing only (EBADF). Nothing is signalled. /proc could tell as well, where it is mounted.
 */
static int is_eventfd(struct env *env, int fd) {
  int opened = signals_open(env);
  if (opened < 0) return opened;
  uint64_t nothing;
  struct iocb request = {
      .aio_lio_opcode = IOCB_CMD_PREAD,
      .aio_fildes = (uint32_t)env->signals->sink,
      .aio_buf = (uint64_t)(uintptr_t)&nothing,
      .aio_flags = IOCB_FLAG_RESFD,
      .aio_resfd = (uint32_t)fd,
  };
  struct iocb *list[] = {&request};
  forget_results(env->signals);
  return syscall(SYS_io_submit, env->signals->context, 1, list) < 0 && errno == EBADF;
}

static int signal_socket(int fd) {
  return send(fd, &one, sizeof one, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static int write_pipe(struct slot *slot, int fd) {
  struct iovec iov = {.iov_base = (void *)&one, .iov_len = sizeof one};
  if (slot->signal_fd > 0) return writev(slot->signal_fd, &iov, 1) < 0 ? -errno : 0;
  if (pwritev2(fd, &iov, 1, -1, RWF_NOWAIT) >= 0) return 0;
  if (errno != EOPNOTSUPP) return -errno;
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int reopened = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (reopened < 0) return -errno;
  slot->signal_fd = reopened;
  return writev(reopened, &iov, 1) < 0 ? -errno : 0;
}

/* A pipe without a reader raises SIGPIPE in the thread that writes: held back, and taken away again. */
static int signal_pipe(struct slot *slot, int fd) {
  sigset_t pipe_only, before, pending;
  sigemptyset(&pipe_only);
  sigaddset(&pipe_only, SIGPIPE);
  sigpending(&pending);
  sigprocmask(SIG_BLOCK, &pipe_only, &before);
  int result = write_pipe(slot, fd);
  struct timespec now = {0};
  if (result == -EPIPE && !sigismember(&pending, SIGPIPE)) sigtimedwait(&pipe_only, NULL, &now);
  sigprocmask(SIG_SETMASK, &before, NULL);
  return result;
}

static uint8_t way_to(int fd) {
  switch (file_kind(fd)) {
    case S_IFSOCK:
      return is_unix_socket(fd) ? SIGNAL_SOCKET : SIGNAL_REFUSED;
    case S_IFIFO:
      return SIGNAL_PIPE;
    case 0: /* an anonymous inode; whether it is an eventfd's, io_submit(2) tells */
      return SIGNAL_EVENTFD;
    default:
      return SIGNAL_REFUSED;
  }
}

static napi_value zt_eventfd_signal(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  SLOT(call, fd, slot);
  if (slot->signal == SIGNAL_UNKNOWN) slot->signal = way_to(fd);
  int result = -EINVAL;
  if (slot->signal == SIGNAL_EVENTFD) result = signal_eventfd(call.env, fd);
  else if (slot->signal == SIGNAL_SOCKET) result = signal_socket(fd);
  else if (slot->signal == SIGNAL_PIPE) result = signal_pipe(slot, fd);
  if (result == -EINVAL) slot->signal = SIGNAL_REFUSED;
  /* No room: the other end has signals that it did not look at, and will. The same as a full counter. */
  bool full = result == -EAGAIN && slot->signal != SIGNAL_EVENTFD;
  return number(&call, full ? 0 : result);
}

static napi_value zt_is_eventfd(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  OURS(call, fd);
  return number(&call, file_kind(fd) == 0 ? is_eventfd(call.env, fd) : 0);
}

static napi_value zt_signals_ready(napi_env napi, napi_callback_info info) {
  CALL(call);
  return number(&call, signals_open(call.env));
}

const struct export signal_exports[] = {
    {"eventfdSignal", zt_eventfd_signal},
    {"isEventfd", zt_is_eventfd},
    {"signalsReady", zt_signals_ready},
    {NULL, NULL},
};
