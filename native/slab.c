/*
 * Memory that the kernel may read for a while: mapped by us, so that no allocator can hand it to somebody else.
 *
 * A slab is seen through ArrayBuffers: the one it was created with, and windows over parts of it, which come and go: a
 * window can be detached, which takes the memory away from whoever looks at it through that window, and from nobody else.
 * Each holds a reference on the slab for as long as V8 has its backing store, also after a transfer to another shell.
 *
 * The last reference unmaps the slab. The kernel holds references to the pages it still reads, so
 * even that would be safe for the pages themselves; but slabs whose environment ended with unconfirmed sends are left
 * mapped and counted, so that nothing else can come to live at an address that somebody may still believe is lent.
 *
 * At the end of an environment Node finalizes all ArrayBuffers first, while our sockets are still open. Whether the kernel
 * is done is known once these are closed; until then the slab is parked.
 */
#include "env.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define SLAB_BYTES_MAX ((int64_t)1 << 30) /* every supported Node takes an external ArrayBuffer of this size */

struct slab {
  struct env *env;
  char *memory;
  size_t bytes;
  uint32_t refs;     /* backing stores: its own and those of its windows */
  struct slab *next; /* in env->slabs, or in env->parked when nothing refers to it any more */
};

static void slab_forget(struct slab *slab) {
  struct slab **link = &slab->env->slabs;
  while (*link != NULL && *link != slab) link = &(*link)->next;
  if (*link != NULL) *link = slab->next;
}

static void slab_free(struct slab *slab) {
  if (slab->env->quarantined) quarantine_add(slab->bytes);
  else munmap(slab->memory, slab->bytes);
  env_unref(slab->env);
  free(slab);
}

void slabs_end(struct env *env) {
  while (env->parked != NULL) {
    struct slab *slab = env->parked;
    env->parked = slab->next;
    slab_free(slab);
  }
}

/* Whether the environment is being torn down: Node-API then refuses whatever might run JavaScript, as coercions may. */
static bool is_ending(napi_env napi) {
  napi_value value;
  return napi_get_undefined(napi, &value) != napi_ok || napi_coerce_to_bool(napi, value, &value) != napi_ok;
}

static void slab_unref(napi_env napi, struct slab *slab) {
  if (--slab->refs > 0) return;
  slab_forget(slab);
  int64_t total;
  napi_adjust_external_memory(napi, -(int64_t)slab->bytes, &total);
  if (slab->env->ended || !is_ending(napi)) {
    slab_free(slab);
    return;
  }
  slab->next = slab->env->parked;
  slab->env->parked = slab;
}

static void backing_store_finalize(napi_env napi, void *data, void *hint) {
  (void)data;
  slab_unref(napi, hint);
}

/* An ArrayBuffer over part of the slab; it takes a reference. A refused creation runs no finalizer. */
static napi_status slab_view(napi_env napi, struct slab *slab, size_t start, size_t bytes, napi_value *result) {
  char *data = slab->memory + start;
  napi_status status = napi_create_external_arraybuffer(napi, data, bytes, backing_store_finalize, slab, result);
  if (status == napi_ok) slab->refs++;
  return status;
}

static int64_t creation_error(napi_status status) {
  return status == napi_no_external_buffers_allowed ? -ENOTSUP : -ENOMEM;
}

/* Maps `bytes` at a multiple of `alignment` by mapping more and giving back both ends; NULL with errno on failure. */
static void *map_aligned(size_t bytes, size_t alignment) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  size_t extra = alignment > page ? alignment : 0;
  char *start = mmap(NULL, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return NULL;
  if (extra == 0) return start;
  size_t head = (alignment - (uintptr_t)start % alignment) % alignment;
  if (head > 0) munmap(start, head);
  if (extra > head) munmap(start + head + bytes, extra - head);
  return start + head;
}

static napi_value zt_slab_create(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT64(call, 0, wanted);
  ARG_BOOL(call, 1, huge);
  if (wanted <= 0 || wanted > SLAB_BYTES_MAX) return number(&call, -EINVAL);
  size_t page = huge ? HUGE_PAGE : (size_t)sysconf(_SC_PAGESIZE);
  size_t bytes = ((size_t)wanted + page - 1) / page * page;
  struct slab *slab = malloc(sizeof *slab);
  void *memory = slab == NULL ? NULL : map_aligned(bytes, page);
  if (memory == NULL) {
    free(slab);
    return number(&call, -ENOMEM);
  }
  /* Both are advice: a kernel without huge pages still works, and a fork without DONTFORK only costs copies. */
  if (huge) madvise(memory, bytes, MADV_HUGEPAGE);
  madvise(memory, bytes, MADV_DONTFORK);
  *slab = (struct slab){.env = call.env, .memory = memory, .bytes = bytes};
  napi_value buffer;
  napi_status status = slab_view(napi, slab, 0, bytes, &buffer);
  if (status != napi_ok) {
    munmap(memory, bytes);
    free(slab);
    return number(&call, creation_error(status));
  }
  int64_t total;
  napi_adjust_external_memory(napi, (int64_t)bytes, &total);
  call.env->refs++;
  slab->next = call.env->slabs;
  call.env->slabs = slab;
  return buffer;
}

/*
 * The slab that an ArrayBuffer shows from end to end; NULL for any other, and for one that is detached. It is found by its
 * address, which costs a fraction of a type tag; the last one found is the first to be looked at, as units of a slab are used
 * in a row.
 */
static struct slab *slab_of(struct env *env, napi_value buffer) {
  void *data = NULL;
  size_t bytes = 0;
  if (napi_get_arraybuffer_info(env->napi, buffer, &data, &bytes) != napi_ok || bytes == 0) return NULL;
  for (struct slab **link = &env->slabs; *link != NULL; link = &(*link)->next) {
    struct slab *slab = *link;
    if (slab->memory != data || slab->bytes != bytes) continue;
    *link = slab->next;
    slab->next = env->slabs;
    env->slabs = slab;
    return slab;
  }
  return NULL;
}

static napi_value zt_slab_window(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT64(call, 1, offset);
  ARG_INT64(call, 2, bytes);
  struct slab *slab = slab_of(call.env, call.arg[0]);
  if (slab == NULL || offset < 0 || bytes <= 0) return number(&call, -EINVAL);
  if ((size_t)offset > slab->bytes || (size_t)bytes > slab->bytes - (size_t)offset) return number(&call, -EINVAL);
  napi_value window;
  napi_status status = slab_view(napi, slab, (size_t)offset, (size_t)bytes, &window);
  return status == napi_ok ? window : number(&call, creation_error(status));
}

static napi_value zt_slab_detach(napi_env napi, napi_callback_info info) {
  CALL(call);
  struct slab *slab = slab_of(call.env, call.arg[0]);
  void *data = NULL;
  size_t bytes = 0;
  if (slab == NULL || napi_get_arraybuffer_info(napi, call.arg[1], &data, &bytes) != napi_ok || bytes == 0)
    return number(&call, -EINVAL);
  uintptr_t offset = (uintptr_t)data - (uintptr_t)slab->memory; /* wraps for an address below, and is then too large */
  if (offset >= slab->bytes) return number(&call, -EINVAL);
  return number(&call, napi_detach_arraybuffer(napi, call.arg[1]) == napi_ok ? 0 : -EINVAL);
}

static napi_value zt_page_offset(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_BYTES(call, 0, bytes);
  return number(&call, (int64_t)((uintptr_t)bytes.data % (uintptr_t)sysconf(_SC_PAGESIZE)));
}

const struct export slab_exports[] = {
    {"slabCreate", zt_slab_create},
    {"slabWindow", zt_slab_window},
    {"slabDetach", zt_slab_detach},
    {"pageOffset", zt_page_offset},
    {NULL, NULL},
};
