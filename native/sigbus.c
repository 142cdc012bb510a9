/*
 * Files that get shorter while they are mapped.
 *
 * A front-end holds the file that its guest's memory is in, and may truncate it at any time. A load or store beyond
 * the new end is then SIGBUS, which ends the process: one guest would take all others with it. Seals against it
 * (F_SEAL_SHRINK) cannot be asked for, because not every front-end has a file that takes them.
 *
 * So the handler looks whether the address lies in a mapping of guest memory. If it does, the whole mapping is
 * replaced by private zeros, and marked as poisoned; the instruction is then repeated, and goes through. Whole,
 * because page by page a file of gigabytes could make as many faults as it had pages, and as many mappings as the
 * kernel allows. What the guest has still lent to the network stays what it was: the kernel holds those pages. The
 * owner of the space looks at the mark after each batch, and closes that guest. The kernel's own accesses (writev,
 * sendmsg) give EFAULT instead.
 *
 * The same signal comes when a page cannot be allocated (a full tmpfs, no huge pages left): the guest's fault as well,
 * and the same end.
 *
 * The table of mappings is one per process, as the handler is. It is read in the handler without locks: entries are in
 * chunks that are never freed, an entry is in use while its start is not 0, and its version is odd while it changes.
 * One that changes is not the one that a handler looks for, because nobody looks at memory that is being mapped or
 * unmapped.
 */
#include "space.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#define CHUNK_GUARDS 64

struct guard {
  _Atomic uint32_t version;
  _Atomic uintptr_t start; /* 0: free */
  _Atomic size_t bytes;
  _Atomic size_t page; /* mappings of this file are replaced in multiples of it */
  _Atomic bool poisoned;
};

struct chunk {
  struct guard guards[CHUNK_GUARDS];
  struct chunk *_Atomic next;
};

static struct chunk first;
static _Atomic uint32_t replacements;
/* Entries are taken and the handler is installed under it; the handler itself never waits. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction previous;
static bool installed;

uint32_t guard_replacements(void) {
  return atomic_load_explicit(&replacements, memory_order_relaxed);
}

bool guard_is_poisoned(struct guard *guard) {
  return atomic_load_explicit(&guard->poisoned, memory_order_relaxed);
}

static bool replace(uintptr_t start, size_t bytes) {
  return mmap((void *)start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
              0) != MAP_FAILED;
}

/* Whether the address was in this mapping, and has zeros now. */
static bool guards(struct guard *guard, uintptr_t address) {
  uint32_t version = atomic_load(&guard->version);
  uintptr_t start = atomic_load(&guard->start);
  size_t bytes = atomic_load(&guard->bytes);
  size_t page = atomic_load(&guard->page);
  if (start == 0 || address - start >= bytes) return false;
  if (version % 2 != 0 || atomic_load(&guard->version) != version) return false;
  atomic_store(&guard->poisoned, true);
  atomic_fetch_add(&replacements, 1);
  /* Without overcommit the whole may be too much for the account of memory; a page alone is not. */
  return replace(start, bytes) || replace(address - address % page, page);
}

/* Async-signal-safe: atomics, and mmap(), which is a bare system call. */
static bool guarded(uintptr_t address) {
  for (struct chunk *chunk = &first; chunk != NULL; chunk = atomic_load(&chunk->next))
    for (int i = 0; i < CHUNK_GUARDS; i++)
      if (guards(&chunk->guards[i], address)) return true;
  return false;
}

/* To whoever was there before us, or to the default, which ends the process. */
static void pass_on(int number, siginfo_t *info, void *context) {
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(number, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(number);
  } else if (info->si_code > 0) { /* the processor's: it comes again with the instruction, and cannot be ignored */
    signal(number, SIG_DFL);
  } else if (previous.sa_handler == SIG_DFL) { /* kill(2) */
    signal(number, SIG_DFL);
    raise(number);
  }
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
  int saved = errno;
  bool ours = info->si_code == BUS_ADRERR && guarded((uintptr_t)info->si_addr);
  if (!ours) pass_on(number, info, context);
  errno = saved;
}

/* Again after somebody put the default back. Who puts a handler of his own in front of ours has to pass on, too. */
static bool install(void) {
  struct sigaction current;
  if (sigaction(SIGBUS, NULL, &current) != 0) return false;
  bool is_default = current.sa_handler == SIG_DFL || current.sa_handler == SIG_IGN;
  if (installed && ((current.sa_flags & SA_SIGINFO) != 0 || !is_default)) return true;
  previous = current;
  struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
  sigemptyset(&action.sa_mask);
  installed = sigaction(SIGBUS, &action, NULL) == 0;
  return installed;
}

static struct guard *guard_take(void) {
  for (struct chunk *chunk = &first;; chunk = atomic_load(&chunk->next)) {
    for (int i = 0; i < CHUNK_GUARDS; i++)
      if (atomic_load(&chunk->guards[i].start) == 0) return &chunk->guards[i];
    if (atomic_load(&chunk->next) != NULL) continue;
    struct chunk *more = calloc(1, sizeof *more);
    if (more == NULL) return NULL;
    atomic_store(&chunk->next, more);
  }
}

struct guard *guard_add(void *start, size_t bytes, size_t page) {
  pthread_mutex_lock(&lock);
  struct guard *guard = install() ? guard_take() : NULL;
  if (guard != NULL) {
    atomic_fetch_add(&guard->version, 1);
    atomic_store(&guard->bytes, bytes);
    atomic_store(&guard->page, page);
    atomic_store(&guard->poisoned, false);
    atomic_store(&guard->start, (uintptr_t)start);
    atomic_fetch_add(&guard->version, 1);
  }
  pthread_mutex_unlock(&lock);
  return guard;
}

void guard_remove(struct guard *guard) {
  pthread_mutex_lock(&lock);
  atomic_fetch_add(&guard->version, 1);
  atomic_store(&guard->start, 0);
  atomic_fetch_add(&guard->version, 1);
  pthread_mutex_unlock(&lock);
}
