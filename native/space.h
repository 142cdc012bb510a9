/*
 * Guest memory: a *space* is what one front-end told us of its guest's physical memory, as regions of files that we
 * mapped.
 *
 *   guest addresses   [ region 0 ]      [ region 1 ][ region 2 ]     sorted; 1 and 2 are adjacent: ranges may cross over
 *                          │                 │           │
 *   our addresses       mapping           mapping     mapping        anywhere, each on its own
 *
 * An address counts only together with its space, and is looked up anew on every use: what a guest says is never
 * turned into a pointer that outlives a call, but for views (space.c), which are taken away before their memory is.
 *
 * Numbers of spaces carry a generation, so that one which was kept too long means nothing, instead of another guest.
 */
#ifndef ZEROTX_SPACE_H
#define ZEROTX_SPACE_H

#include "env.h"

struct mapping;
struct guard;

struct region {
  uint64_t start, end; /* guest addresses, the end excluded; never empty */
  uint64_t user;       /* what the front-end calls the start: ring addresses come in its own address space */
  uint8_t *memory;     /* where the start is mapped */
  struct mapping *mapping;
};

struct space {
  uint32_t id;
  uint32_t count, capacity;
  struct region *regions; /* by guest address */
  bool live;              /* else its number is free */
  bool poisoned;          /* a region that was poisoned (sigbus.c) is no longer here */
};

/* NULL when there is none of this number, or none any more. */
const struct space *space_of(struct env *env, uint32_t id);

/* --- from an address to memory --- */

/* What was found last: the next address is nearly always in the same region. Lives as long as one call of JavaScript's. */
struct lookup {
  struct env *env;
  uint32_t space; /* that `region` belongs to */
  const struct region *region;
};

#define LOOKUP(name, environment) struct lookup name = {(environment), 0, &no_region}

extern const struct region no_region;

/* Looks in all regions of the space; false, and the last one stays, when none has it. */
bool lookup_region(struct lookup *lookup, uint32_t space, uint64_t address);

/*
 * Where `address` of `space` is mapped; `bytes`, which is not 0, is shortened to what its region has from there. NULL
 * when no region has it.
 */
static inline uint8_t *lookup_address(struct lookup *lookup, uint32_t space, uint64_t address, uint64_t *bytes) {
  const struct region *region = lookup->region;
  if (space != lookup->space || address - region->start >= region->end - region->start) {
    if (!lookup_region(lookup, space, address)) return NULL;
    region = lookup->region;
  }
  uint64_t rest = region->end - address;
  if (*bytes > rest) *bytes = rest;
  return region->memory + (address - region->start);
}

/* munmap(2) soon, by another thread (behind.c): nobody looks at it any more. */
void unmap_behind(void *memory, size_t bytes);

/* --- truncated files (sigbus.c) --- */

/* Watches over a mapping until guard_remove(); NULL when out of memory. */
struct guard *guard_add(void *start, size_t bytes, size_t page);
/* Whether the file was found too short, so that the mapping was replaced by zeros. */
bool guard_is_poisoned(struct guard *guard);
void guard_remove(struct guard *guard);
/* How many mappings were replaced, in this process: as long as it is 0, none needs to be asked. */
uint32_t guard_replacements(void);

#endif
