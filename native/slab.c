/*
 * Memory that the kernel may read for a while: mapped by us, so that no allocator can hand it to somebody else.
 *
 * Garbage collection of the ArrayBuffer unmaps the slab. The kernel holds references to the pages it still reads, so
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
  void *memory;
  size_t bytes;
  struct slab *next; /* in env->parked */
};

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

static void slab_finalize(napi_env napi, void *data, void *hint) {
  struct slab *slab = hint;
  int64_t total;
  (void)data;
  napi_adjust_external_memory(napi, -(int64_t)slab->bytes, &total);
  if (slab->env->ended || !is_ending(napi)) {
    slab_free(slab);
    return;
  }
  slab->next = slab->env->parked;
  slab->env->parked = slab;
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
  napi_status status = napi_create_external_arraybuffer(napi, memory, bytes, slab_finalize, slab, &buffer);
  if (status != napi_ok) {
    munmap(memory, bytes);
    free(slab);
    return number(&call, status == napi_no_external_buffers_allowed ? -ENOTSUP : -ENOMEM);
  }
  int64_t total;
  napi_adjust_external_memory(napi, (int64_t)bytes, &total);
  call.env->refs++;
  return buffer;
}

static napi_value zt_page_offset(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_BYTES(call, 0, bytes);
  return number(&call, (int64_t)((uintptr_t)bytes.data % (uintptr_t)sysconf(_SC_PAGESIZE)));
}

static bool inside(uint32_t offset, uint32_t length, size_t total) {
  return offset <= total && length <= total - offset;
}

static napi_value zt_copy_batch(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_UINT(call, 3, count);
  ARG_BYTES(call, 0, destination);
  ARG_BYTES(call, 1, source);
  ARG_WORDS(call, 2, ops);
  if (count > ops.length / 3) return number(&call, -EINVAL);
  for (const uint32_t *op = ops.data; op < ops.data + (size_t)count * 3; op += 3)
    if (!inside(op[0], op[2], source.length) || !inside(op[1], op[2], destination.length)) return number(&call, -EFAULT);
  for (const uint32_t *op = ops.data; op < ops.data + (size_t)count * 3; op += 3)
    memmove(destination.data + op[1], source.data + op[0], op[2]);
  return number(&call, 0);
}

const struct export slab_exports[] = {
    {"slabCreate", zt_slab_create},
    {"pageOffset", zt_page_offset},
    {"copyBatch", zt_copy_batch},
    {NULL, NULL},
};
