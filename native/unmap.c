/*
 * Unmapping guest memory, away from whoever waits for frames.
 *
 * munmap(2) of a guest's gigabytes takes its time: 30 ms for each that we have touched; and where the front-end has gone
 * before us, ours was the last reference to the file, and the kernel gives all of its pages back in our name, 270 ms for
 * each gigabyte. All other guests would wait for that. So one thread of the process does it, which is started for the
 * first of them and stays. It gives back piece by piece, because the kernel lets nobody else map or unmap meanwhile.
 */
#include "space.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <uv.h>

#define PIECE ((size_t)64 << 20)
#define AT_ONCE ((size_t)256 << 10) /* 64 pages, 0.02 ms: less than the other thread costs */

struct leaving {
  void *memory;
  size_t bytes;
  struct leaving *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static struct leaving *waiting;
static bool running;

static void give_back(char *memory, size_t bytes) {
  for (size_t done = 0; done < bytes; done += PIECE)
    madvise(memory + done, bytes - done < PIECE ? bytes - done : PIECE, MADV_DONTNEED); /* of a file: only our entries */
  munmap(memory, bytes);
}

static void run(void *unused) {
  (void)unused;
  for (;;) {
    pthread_mutex_lock(&lock);
    while (waiting == NULL) pthread_cond_wait(&more, &lock);
    struct leaving *one = waiting;
    waiting = one->next;
    pthread_mutex_unlock(&lock);
    give_back(one->memory, one->bytes);
    free(one);
  }
}

/* With the lock held. Signals are for the threads of the program. (By libuv: pthread_create() of today asks for glibc 2.34.) */
static bool start(void) {
  sigset_t all, before;
  uv_thread_t thread; /* never joined: it ends with the process */
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  running = uv_thread_create(&thread, run, NULL) == 0;
  sigprocmask(SIG_SETMASK, &before, NULL);
  return running;
}

void unmap_later(void *memory, size_t bytes) {
  struct leaving *one = bytes <= AT_ONCE ? NULL : malloc(sizeof *one);
  pthread_mutex_lock(&lock);
  bool taken = one != NULL && (running || start());
  if (taken) {
    *one = (struct leaving){memory, bytes, waiting};
    waiting = one;
    pthread_cond_signal(&more);
  }
  pthread_mutex_unlock(&lock);
  if (taken) return;
  free(one);
  munmap(memory, bytes);
}
