/*
 * Guest memory: mapping it, finding addresses in it, and looking at parts of it as ArrayBuffers.
 *
 * Files are mapped shared, from tmpfs and hugetlbfs alone: behind any other file system there may be somebody (FUSE)
 * who answers a page fault never, and the whole process waits.
 *
 * A view is an external ArrayBuffer over a range inside one region: JavaScript keeps rings in it. The region that it
 * belongs to can be unmapped at any time, by a message of the front-end, so views are remembered, and detached before.
 * What JavaScript made of a view's memory meanwhile (ArrayBuffer.transfer() moves it to another shell) cannot be
 * found: the mapping stays for as long as V8 has any of its backing stores, and goes with the last. Unmapping is thus
 * detaching and dropping one reference; without views, or once they were collected, it goes (behind.c).
 *
 * A space may be copied: both have the same mappings. So a region that leaves is gone for whoever looks in the copy, while
 * what was lent of it before goes on in the original.
 *
 * These pages are not ours, and V8 is not told of them: it would collect garbage for the sake of a guest's gigabytes.
 */
#include "space.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef HUGETLBFS_MAGIC
#define HUGETLBFS_MAGIC 0x958458f6
#endif

#define REGIONS_MAX 512
#define INDEX_BITS 10 /* of a space's number; above is the generation, up to 2^31: a small integer to V8 */
#define SPACES_MAX (1u << INDEX_BITS)
#define ADDRESS_MAX ((uint64_t)1 << 52)  /* addresses go through JavaScript as float64 */
#define ADDRESS_ALIGNMENT 16 /* of a region, as of descriptor tables: what is aligned for the guest is aligned for us */
#define VIEW_BYTES_MAX ((uint64_t)1 << 30) /* every supported Node takes an external ArrayBuffer of this size */

struct view {
  napi_ref buffer; /* weak */
  struct mapping *mapping;
  struct view *next, **link;
};

struct mapping {
  uint8_t *memory;
  size_t bytes;
  uint32_t refs;    /* regions, and backing stores of views */
  uint32_t regions; /* one in each space that has it */
  struct guard *guard;
  struct view *views;
};

const struct region no_region = {0};

/* --- mappings and views --- */

static void mapping_unref(struct mapping *mapping) {
  if (--mapping->refs > 0) return;
  guard_remove(mapping->guard);
  unmap_behind(mapping->memory, mapping->bytes);
  free(mapping);
}

static void view_finalize(napi_env napi, void *data, void *hint) {
  (void)data;
  struct view *view = hint;
  if (view->next != NULL) view->next->link = view->link;
  *view->link = view->next;
  if (view->buffer != NULL) napi_delete_reference(napi, view->buffer);
  mapping_unref(view->mapping);
  free(view);
}

static void detach_views(napi_env napi, struct mapping *mapping) {
  for (struct view *view = mapping->views; view != NULL; view = view->next) {
    napi_value buffer = NULL;
    if (view->buffer == NULL || napi_get_reference_value(napi, view->buffer, &buffer) != napi_ok) continue;
    if (buffer != NULL) napi_detach_arraybuffer(napi, buffer); /* finalizers run later: the list stays as it is */
  }
}

/* A space has it no longer. Views are of the last that has. */
static void mapping_leave(napi_env napi, struct mapping *mapping) {
  if (--mapping->regions == 0) detach_views(napi, mapping);
  mapping_unref(mapping);
}

/* An ArrayBuffer over part of the mapping, or NULL with a negative errno in `error`. */
static napi_value view_create(napi_env napi, struct mapping *mapping, uint8_t *data, size_t bytes, int *error) {
  struct view *view = calloc(1, sizeof *view);
  *error = -ENOMEM;
  if (view == NULL) return NULL;
  napi_value buffer;
  napi_status status = napi_create_external_arraybuffer(napi, data, bytes, view_finalize, view, &buffer);
  if (status != napi_ok) {
    if (status == napi_no_external_buffers_allowed) *error = -ENOTSUP;
    free(view);
    return NULL;
  }
  mapping->refs++;
  view->mapping = mapping;
  view->next = mapping->views;
  view->link = &mapping->views;
  if (view->next != NULL) view->next->link = &view->next;
  mapping->views = view;
  if (napi_create_reference(napi, buffer, 0, &view->buffer) != napi_ok) {
    view->buffer = NULL;
    napi_detach_arraybuffer(napi, buffer);
    return NULL;
  }
  return buffer;
}

/* --- spaces --- */

static struct space *space_find(struct env *env, uint32_t id) {
  uint32_t index = id % SPACES_MAX;
  if (index >= env->space_count) return NULL;
  struct space *space = env->spaces[index];
  return space != NULL && space->live && space->id == id ? space : NULL;
}

const struct space *space_of(struct env *env, uint32_t id) {
  return space_find(env, id);
}

/* A number that is free, or was, with the next generation; NULL with errno. Number 0 is never given. */
static struct space *space_take(struct env *env) {
  for (uint32_t index = 1; index < env->space_count; index++) {
    struct space *space = env->spaces[index];
    if (space == NULL || space->live) continue;
    space->id = (space->id + SPACES_MAX) & INT32_MAX;
    return space;
  }
  uint32_t index = env->space_count == 0 ? 1 : env->space_count;
  errno = index < SPACES_MAX ? ENOMEM : EMFILE;
  if (index == SPACES_MAX) return NULL;
  struct space **grown = realloc(env->spaces, (index + 1) * sizeof(struct space *));
  if (grown == NULL) return NULL;
  env->spaces = grown;
  grown[0] = NULL;
  grown[index] = calloc(1, sizeof(struct space));
  if (grown[index] == NULL) return NULL; /* the slot stays unused: the count has not grown */
  env->space_count = index + 1;
  grown[index]->id = index;
  return grown[index];
}

bool lookup_region(struct lookup *lookup, uint32_t id, uint64_t address) {
  const struct space *space = space_of(lookup->env, id);
  if (space == NULL) return false;
  uint32_t low = 0, high = space->count; /* those before `low` start at or below the address, those from `high` above */
  while (low < high) {
    uint32_t middle = (low + high) / 2;
    if (space->regions[middle].start <= address) low = middle + 1;
    else high = middle;
  }
  if (low == 0 || address >= space->regions[low - 1].end) return false;
  lookup->space = id;
  lookup->region = &space->regions[low - 1];
  return true;
}

/* Whether [start, start + bytes) has nothing in common with a region, in guest addresses nor in the front-end's. */
static bool is_disjoint(const struct space *space, uint64_t start, uint64_t bytes, uint64_t user) {
  for (uint32_t i = 0; i < space->count; i++) {
    const struct region *region = &space->regions[i];
    uint64_t length = region->end - region->start;
    if (start < region->end && region->start < start + bytes) return false;
    /* the last byte, because a range may end at 2^64 */
    if (user <= region->user + (length - 1) && region->user <= user + (bytes - 1)) return false;
  }
  return true;
}

static bool make_room(struct space *space) {
  if (space->count < space->capacity) return true;
  uint32_t capacity = space->capacity == 0 ? 8 : space->capacity * 2;
  struct region *grown = realloc(space->regions, capacity * sizeof *grown);
  if (grown == NULL) return false;
  space->regions = grown;
  space->capacity = capacity;
  return true;
}

static void insert(struct space *space, struct region region) {
  uint32_t at = space->count++;
  for (; at > 0 && space->regions[at - 1].start > region.start; at--) space->regions[at] = space->regions[at - 1];
  space->regions[at] = region;
}

/*
 * The page size of a file that may be mapped, or -errno. Seals come first: the kernel knows them of tmpfs and
 * hugetlbfs alone (memfd_file_seals_ptr), and does not ask the file system, which all the others might do, and wait
 * for the answer.
 */
static int64_t file_page(int fd, uint64_t end) {
  if (fcntl(fd, F_GET_SEALS) < 0) return -EACCES;
  struct statx file; /* not fstat(), which C libraries before 2.33 do not export */
  struct statfs system;
  if (statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_SIZE, &file) != 0 || fstatfs(fd, &system) != 0) return -errno;
  bool huge = (uint32_t)system.f_type == HUGETLBFS_MAGIC;
  if (!S_ISREG(file.stx_mode) || !(huge || (uint32_t)system.f_type == TMPFS_MAGIC)) return -EACCES;
  if (file.stx_size < end) return -EFBIG;
  return huge ? (int64_t)system.f_bsize : sysconf(_SC_PAGESIZE);
}

/* Maps part of a file; NULL with a negative errno in `error`. */
static struct mapping *mapping_create(int fd, uint64_t offset, uint64_t bytes, int64_t *error) {
  int64_t page = file_page(fd, offset + bytes);
  *error = page < 0 ? page : -EINVAL;
  if (page <= 0 || offset % (uint64_t)page != 0) return NULL;
  struct mapping *mapping = calloc(1, sizeof *mapping);
  *error = -ENOMEM;
  if (mapping == NULL) return NULL;
  mapping->refs = 1;
  mapping->regions = 1;
  mapping->bytes = (bytes + (uint64_t)page - 1) / (uint64_t)page * (uint64_t)page;
  mapping->memory = mmap(NULL, mapping->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)offset);
  if (mapping->memory == MAP_FAILED) {
    *error = -errno;
    free(mapping);
    return NULL;
  }
  /* Advice: a core dump is not the place for guests' memory, and no child of ours needs it. */
  madvise(mapping->memory, mapping->bytes, MADV_DONTDUMP);
  madvise(mapping->memory, mapping->bytes, MADV_DONTFORK);
  mapping->guard = guard_add(mapping->memory, mapping->bytes, (size_t)page);
  if (mapping->guard != NULL) return mapping;
  munmap(mapping->memory, mapping->bytes);
  free(mapping);
  return NULL;
}

static void space_empty(struct space *space) {
  free(space->regions);
  *space = (struct space){.id = space->id};
}

void spaces_end(struct env *env) {
  for (uint32_t i = 1; i < env->space_count; i++) {
    struct space *space = env->spaces[i];
    for (uint32_t k = 0; k < space->count; k++) mapping_unref(space->regions[k].mapping);
    space_empty(space);
    free(space);
  }
  free(env->spaces);
  env->spaces = NULL;
  env->space_count = 0;
}

/* --- calls --- */

#define SPACE(call, index, space)                        \
  ARG_UINT(call, index, space##_id);                     \
  struct space *space = space_find((call).env, space##_id); \
  if (space == NULL) return number(&(call), -EBADF)

static napi_value zt_space_create(napi_env napi, napi_callback_info info) {
  CALL(call);
  struct space *space = space_take(call.env);
  if (space == NULL) return number(&call, -errno);
  space->live = true;
  return number(&call, space->id);
}

static napi_value zt_space_destroy(napi_env napi, napi_callback_info info) {
  CALL(call);
  SPACE(call, 0, space);
  for (uint32_t i = 0; i < space->count; i++) mapping_leave(napi, space->regions[i].mapping);
  space_empty(space);
  return number(&call, 0);
}

static napi_value zt_space_copy(napi_env napi, napi_callback_info info) {
  CALL(call);
  SPACE(call, 0, space);
  struct region *regions = NULL;
  if (space->count > 0) {
    regions = malloc(space->count * sizeof *regions);
    if (regions == NULL) return number(&call, -ENOMEM);
    memcpy(regions, space->regions, space->count * sizeof *regions);
  }
  struct space *copy = space_take(call.env);
  if (copy == NULL) {
    int error = errno;
    free(regions);
    return number(&call, -error);
  }
  *copy = (struct space){.id = copy->id,
                         .count = space->count,
                         .capacity = space->count,
                         .regions = regions,
                         .live = true,
                         .poisoned = space->poisoned};
  for (uint32_t i = 0; i < copy->count; i++) {
    regions[i].mapping->refs++;
    regions[i].mapping->regions++;
  }
  return number(&call, copy->id);
}

static napi_value zt_space_map(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 1, fd);
  ARG_INT64(call, 2, start);
  ARG_INT64(call, 3, bytes);
  ARG_INT64(call, 4, offset);
  ARG_BIGINT(call, 5, user);
  SPACE(call, 0, space);
  OURS(call, fd);
  if (start < 0 || bytes <= 0 || offset < 0 || user + ((uint64_t)bytes - 1) < user) return number(&call, -EINVAL);
  int64_t ranges[] = {start, offset};
  for (int i = 0; i < 2; i++)
    if ((uint64_t)ranges[i] > ADDRESS_MAX || (uint64_t)bytes > ADDRESS_MAX - (uint64_t)ranges[i])
      return number(&call, -EINVAL);
  if (start % ADDRESS_ALIGNMENT != 0 || !is_disjoint(space, (uint64_t)start, (uint64_t)bytes, user))
    return number(&call, -EINVAL);
  if (space->count == REGIONS_MAX) return number(&call, -ENOSPC);
  if (!make_room(space)) return number(&call, -ENOMEM);
  int64_t error;
  struct mapping *mapping = mapping_create(fd, (uint64_t)offset, (uint64_t)bytes, &error);
  if (mapping == NULL) return number(&call, error);
  insert(space, (struct region){.start = (uint64_t)start,
                                .end = (uint64_t)(start + bytes),
                                .user = user,
                                .memory = mapping->memory,
                                .mapping = mapping});
  return number(&call, 0);
}

static napi_value zt_space_unmap(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT64(call, 1, start);
  ARG_INT64(call, 2, bytes);
  SPACE(call, 0, space);
  uint32_t at = 0;
  while (at < space->count && space->regions[at].start != (uint64_t)start) at++;
  if (at == space->count || space->regions[at].end != (uint64_t)start + (uint64_t)bytes) return number(&call, -EINVAL);
  struct mapping *mapping = space->regions[at].mapping;
  if (guard_is_poisoned(mapping->guard)) space->poisoned = true;
  mapping_leave(napi, mapping);
  space->count--;
  memmove(&space->regions[at], &space->regions[at + 1], (space->count - at) * sizeof(struct region));
  return number(&call, 0);
}

static napi_value zt_space_find(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_BIGINT(call, 1, user);
  ARG_INT64(call, 2, bytes);
  SPACE(call, 0, space);
  if (bytes <= 0) return number(&call, -EINVAL);
  for (uint32_t i = 0; i < space->count; i++) {
    const struct region *region = &space->regions[i];
    uint64_t offset = user - region->user, length = region->end - region->start;
    if (offset < length && (uint64_t)bytes <= length - offset) return number(&call, (int64_t)(region->start + offset));
  }
  return number(&call, -EFAULT);
}

static napi_value zt_space_view(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT64(call, 1, start);
  ARG_INT64(call, 2, bytes);
  SPACE(call, 0, space);
  if (bytes <= 0) return number(&call, -EINVAL);
  LOOKUP(lookup, call.env);
  uint64_t there = (uint64_t)bytes;
  uint8_t *data = lookup_address(&lookup, space->id, (uint64_t)start, &there);
  if (data == NULL || there < (uint64_t)bytes) return number(&call, -EFAULT);
  if (there > VIEW_BYTES_MAX) return number(&call, -EFBIG);
  int error;
  napi_value buffer = view_create(napi, lookup.region->mapping, data, (size_t)bytes, &error);
  return buffer == NULL ? number(&call, error) : buffer;
}

static napi_value zt_space_view_detach(napi_env napi, napi_callback_info info) {
  CALL(call);
  SPACE(call, 0, space);
  void *data = NULL;
  size_t bytes = 0;
  if (napi_get_arraybuffer_info(napi, call.arg[1], &data, &bytes) != napi_ok || bytes == 0)
    return number(&call, -EINVAL);
  for (uint32_t i = 0; i < space->count; i++) {
    const struct mapping *mapping = space->regions[i].mapping;
    if ((uintptr_t)data - (uintptr_t)mapping->memory >= mapping->bytes) continue;
    return number(&call, napi_detach_arraybuffer(napi, call.arg[1]) == napi_ok ? 0 : -EINVAL);
  }
  return number(&call, -EINVAL);
}

static napi_value zt_space_poisoned(napi_env napi, napi_callback_info info) {
  CALL(call);
  SPACE(call, 0, space);
  bool poisoned = space->poisoned;
  for (uint32_t i = 0; i < space->count && !poisoned && guard_replacements() > 0; i++)
    poisoned = guard_is_poisoned(space->regions[i].mapping->guard);
  return number(&call, poisoned);
}

/* Copies between a range of the space and `bytes`, if all of the range is there. */
static napi_value copy(struct call *call, bool out) {
  ARG_INT64(*call, 1, start);
  ARG_BYTES(*call, 2, bytes);
  SPACE(*call, 0, space);
  LOOKUP(lookup, call->env);
  for (int pass = 0; pass < 2; pass++) {
    uint64_t there;
    for (uint64_t done = 0; done < bytes.length; done += there) {
      there = bytes.length - done;
      uint8_t *data = lookup_address(&lookup, space->id, (uint64_t)start + done, &there);
      if (data == NULL) return number(call, -EFAULT);
      if (pass == 0) continue;
      if (out) memcpy(bytes.data + done, data, there);
      else memcpy(data, bytes.data + done, there);
    }
  }
  return number(call, 0);
}

static napi_value zt_space_read(napi_env napi, napi_callback_info info) {
  CALL(call);
  return copy(&call, true);
}

static napi_value zt_space_write(napi_env napi, napi_callback_info info) {
  CALL(call);
  return copy(&call, false);
}

const struct export space_exports[] = {
    {"spaceCreate", zt_space_create},
    {"spaceDestroy", zt_space_destroy},
    {"spaceCopy", zt_space_copy},
    {"spaceMap", zt_space_map},
    {"spaceUnmap", zt_space_unmap},
    {"spaceFind", zt_space_find},
    {"spaceView", zt_space_view},
    {"spaceViewDetach", zt_space_view_detach},
    {"spacePoisoned", zt_space_poisoned},
    {"spaceRead", zt_space_read},
    {"spaceWrite", zt_space_write},
    {NULL, NULL},
};
