/*
 * What one JavaScript environment (the main thread or a worker) owns in the addon, and how arguments are read.
 *
 * Every function exported to JavaScript gets its `struct env` as the function's data pointer, so that a call costs one
 * napi_get_cb_info and one read per argument. Nothing is shared between environments but two atomic counters (process.c).
 *
 * The descriptor table knows which descriptors this environment opened and how many of their zero-copy calls the kernel
 * has not confirmed. It has two uses: a number that is not ours is refused with EBADF (a stale descriptor would otherwise
 * hit one of Node's own), and the end of the environment knows what must be stopped before memory goes away.
 */
#ifndef ZEROTX_ENV_H
#define ZEROTX_ENV_H

#include <node_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "constants.h"

#define IOV_ENTRIES 64 /* iovec entries of one call: 64 x 16 bytes of stack, and no measurable gain beyond */
#define ARGS_MAX 10

struct slot {
  uint32_t outstanding; /* zero-copy calls not confirmed yet; rather too many than too few (see data.c) */
  uint32_t next;        /* the number of the next call, unless doubtful ones took some */
  uint32_t doubtful;    /* failed calls that may have taken a number; they count as outstanding */
  bool mixed;           /* a call that did not fail came after those */
  bool open;            /* opened by us, not closed yet */
  bool cookies;         /* what is outstanding are cookies of AF_RDS, which recvmsg(2) brings (rds.c) */
  bool zerocopy;        /* SO_ZEROCOPY is on: without it the kernel ignores MSG_ZEROCOPY and never confirms */
  uint8_t signal;       /* how eventfdSignal() reaches the other end (signal.c) */
  int32_t signal_fd;    /* ... and through which descriptor, if not this one; 0 is none */
};

struct reactor;
struct slab;
struct space;
struct signals;

struct env {
  napi_env napi;
  uint32_t refs; /* instance data, the hook, and one per slab: which goes last is up to Node */
  struct slot *slots;
  uint32_t slot_count;
  struct reactor *reactor;
  struct slab *slabs;  /* those that an ArrayBuffer refers to */
  struct slab *parked; /* finalized slabs that wait for the sockets to be closed */
  struct space **spaces; /* guest memory, see space.h */
  uint32_t space_count;
  struct signals *signals; /* signal.c; NULL until the first */
  napi_async_cleanup_hook_handle hook;
  int64_t budget_pages; /* this environment's share of the process-wide account */
  bool ended;           /* sockets were closed by the cleanup hook */
  bool quarantined;     /* ... and some sends were still unconfirmed: slabs stay mapped */
};

/* --- arguments: each reader throws a TypeError and returns false when the kind is wrong --- */

struct call {
  napi_env napi;
  struct env *env;
  napi_value arg[ARGS_MAX];
};

struct bytes {
  uint8_t *data; /* NULL for a detached buffer, whose length is 0 */
  size_t length;
};

struct words {
  uint32_t *data;
  size_t length;
};

struct ints {
  int32_t *data;
  size_t length;
};

bool call_begin(struct call *call, napi_env napi, napi_callback_info info);
bool call_int(struct call *call, int index, int32_t *out);
bool call_uint(struct call *call, int index, uint32_t *out);
bool call_int64(struct call *call, int index, int64_t *out);
bool call_bool(struct call *call, int index, bool *out);
bool call_bytes(struct call *call, int index, struct bytes *out);
bool call_words(struct call *call, int index, struct words *out);
bool call_bigint(struct call *call, int index, uint64_t *out); /* a BigInt of 64 bits, unsigned */
bool call_ints(struct call *call, int index, struct ints *out);
/* Reads `count` entries of the array at `index` into `iov`; a count outside 0..IOV_ENTRIES is a RangeError. */
bool call_iov(struct call *call, int index, int32_t count, struct iovec *iov);
bool call_is_null(struct call *call, int index);

/* A declaration and its read in one line: ARG_INT(call, 0, fd) declares `fd`. */
#define ARG(kind, type, call, index, name) \
  type name;                               \
  if (!call_##kind(&(call), (index), &name)) return NULL
#define ARG_INT(call, index, name) ARG(int, int32_t, call, index, name)
#define ARG_UINT(call, index, name) ARG(uint, uint32_t, call, index, name)
#define ARG_INT64(call, index, name) ARG(int64, int64_t, call, index, name)
#define ARG_BOOL(call, index, name) ARG(bool, bool, call, index, name)
#define ARG_BYTES(call, index, name) ARG(bytes, struct bytes, call, index, name)
#define ARG_WORDS(call, index, name) ARG(words, struct words, call, index, name)
#define ARG_BIGINT(call, index, name) ARG(bigint, uint64_t, call, index, name)
#define ARG_INTS(call, index, name) ARG(ints, struct ints, call, index, name)
#define CALL(name)    \
  struct call name;   \
  if (!call_begin(&name, napi, info)) return NULL

napi_value number(struct call *call, int64_t value);
/* A system call's result: the value, or -errno. */
napi_value outcome(struct call *call, ssize_t result);

/* --- descriptors (socket.c) --- */

/* Enters `fd` in the table; on failure closes it and returns -1 with errno set. A negative `fd` goes through as it is. */
int slot_open(struct env *env, int fd, bool zerocopy);
/* Takes `fd`, which is open, out of the table and closes it; what close(2) returned. */
int slot_close(struct env *env, int fd);
/* The same of what somebody else has, too, and may make us wait for: on another thread (behind.c). */
void slot_close_behind(struct env *env, int fd);
void close_behind(int fd);
/* The S_IFMT bits, or -1 with errno set; asks no file system (fds.c). */
int file_kind(int fd);
bool is_unix_socket(int fd);

/* NULL when `fd` is not an open descriptor of this environment. */
static inline struct slot *slot_of(struct env *env, int32_t fd) {
  if (fd < 0 || (uint32_t)fd >= env->slot_count || !env->slots[fd].open) return NULL;
  return &env->slots[fd];
}

#define SLOT(call, fd, slot)                         \
  struct slot *slot = slot_of((call).env, (fd));     \
  if (slot == NULL) return number(&(call), -EBADF)

/* As SLOT where only the check is wanted. */
#define OURS(call, fd) \
  if (slot_of((call).env, (fd)) == NULL) return number(&(call), -EBADF)

/* Stops the wire: RST on TCP, the send queue is purged and its pages are released; error queue stays readable. */
int abort_socket(int fd);

/* --- zero-copy calls and the error queue (data.c) --- */

/* Accounts for a call that was made with `flags` and returned `sent`, or -1 with errno. */
void count_flagged(struct slot *slot, int32_t flags, ssize_t sent);
/* Reads up to `capacity` records into `out` (may be NULL: they are only accounted for); the number read, or -errno. */
ssize_t drain_errors(int fd, struct slot *slot, uint32_t *out, size_t capacity);
/* Reads cookies of an AF_RDS socket, and throws away what came with them; false: no more will come (rds.c). */
bool drain_cookies(int fd, struct slot *slot);

/* --- the end of an environment, in this order --- */

/* Closes every descriptor, aborting and draining those with unconfirmed calls; sets `ended`, and `quarantined`. */
void sockets_end(struct env *env);
/* Unmaps the parked slabs, or leaves them to quarantine. */
void slabs_end(struct env *env);
/* Unmaps all guest memory. */
void spaces_end(struct env *env);
void budget_give_back(struct env *env);
void signals_end(struct env *env);
/* Stops polling; `done` runs when the handle is closed, at once if there is none. */
void reactor_end(struct env *env, void (*done)(struct env *));
void env_unref(struct env *env);

void quarantine_add(size_t bytes); /* process.c */

/* --- exports, one table per family --- */

struct export {
  const char *name;
  napi_callback callback;
};

extern const struct export socket_exports[], data_exports[], reactor_exports[], slab_exports[], process_exports[],
    probe_exports[], datagram_exports[], space_exports[], frames_copy_exports[], frames_io_exports[], fds_exports[],
    signal_exports[], tap_exports[], privileges_exports[], rds_exports[];

#endif
