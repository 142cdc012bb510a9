/*
 * Giving back what a front-end gave us, behind the back of the thread that serves all the guests: memory, which takes long, and
 * descriptors, which may take for ever.
 *
 * munmap(2) of a guest's gigabytes: 30 ms for each that we have touched; and where the front-end has gone before us, ours
 * was the last reference to the file, and the kernel gives all of its pages back in our name, 270 ms for each gigabyte.
 * It is done piece by piece, because the kernel lets nobody else of the process map or unmap meanwhile.
 *
 * close(2) of a descriptor that somebody else has, too: its file system may be a program of his that never answers
 * (FUSE), a socket may linger. Even an eventfd: if ours was the last descriptor, and he watches it with an epoll descriptor, the
 * kernel takes that one's lock (eventpoll_release_file), which he keeps for as long as he likes by having epoll_wait(2)
 * write to memory that does not come. The thread that closes hangs then, and cannot be killed.
 *
 * As a rule it takes microseconds, and who closes waits for that, so that things are in order when it returns. The first who
 * makes us wait for longer has had that of us once: from then on nobody is waited for in this process.
 *
 * The threads are the process's, started when there is work for them, and stay. They are libuv's kind, as pthread_create()
 * of today asks for glibc 2.34.
 */
#include "env.h"
#include "space.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#define PIECE ((size_t)64 << 20)
#define AT_ONCE ((size_t)256 << 10) /* 64 pages, 0.02 ms: less than the other thread costs */
#define LARGE_BLOCKS 2048           /* of 512 bytes: a file in memory of 1 MiB */
#define CLOSERS_MAX 16
#define PATIENCE_NS 250000000 /* longer than a thread waits for a processor on a machine that has others to serve */

struct job {
  void *memory; /* NULL: a descriptor */
  size_t bytes;
  int fd;
  bool awaited; /* somebody waits for `done`, and frees it */
  bool done;
  struct job *next;
};

/* What is to be done, first to last, and who does it. All under the lock. */
struct line {
  uv_cond_t more;
  struct job *first, **last;
  int threads, idle, threads_max;
};

static uv_once_t once = UV_ONCE_INIT;
static uv_mutex_t lock;
static uv_cond_t closed;
static struct line unmapping, closing;
static bool patient = true;

static void initialize(void) {
  uv_mutex_init(&lock);
  uv_cond_init(&closed);
  struct line *lines[] = {&unmapping, &closing};
  for (int i = 0; i < 2; i++) {
    uv_cond_init(&lines[i]->more);
    lines[i]->last = &lines[i]->first;
  }
  unmapping.threads_max = 1;
  closing.threads_max = CLOSERS_MAX;
}

static void give_back(char *memory, size_t bytes) {
  for (size_t done = 0; done < bytes; done += PIECE)
    madvise(memory + done, bytes - done < PIECE ? bytes - done : PIECE, MADV_DONTNEED); /* of a file: only our entries */
  munmap(memory, bytes);
}

static void run(void *argument) {
  struct line *line = argument;
  uv_mutex_lock(&lock);
  for (;;) {
    line->idle++;
    while (line->first == NULL) uv_cond_wait(&line->more, &lock);
    line->idle--;
    struct job *job = line->first;
    line->first = job->next;
    if (line->first == NULL) line->last = &line->first;
    uv_mutex_unlock(&lock);
    if (job->memory != NULL) give_back(job->memory, job->bytes);
    else close(job->fd);
    uv_mutex_lock(&lock);
    job->done = true;
    if (job->awaited) uv_cond_broadcast(&closed);
    else free(job);
  }
}

/* Signals are for the threads of the program. */
static void start(struct line *line) {
  sigset_t all, before;
  uv_thread_t thread; /* never joined: it ends with the process */
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  if (uv_thread_create(&thread, run, line) == 0) line->threads++;
  sigprocmask(SIG_SETMASK, &before, NULL);
}

/* False: there is no thread that would do it. */
static bool enqueue(struct line *line, struct job *job) {
  int waiting = 0;
  for (struct job *one = line->first; one != NULL && waiting < line->idle; one = one->next) waiting++;
  if (waiting >= line->idle && line->threads < line->threads_max) start(line);
  if (line->threads == 0) return false;
  *line->last = job;
  line->last = &job->next;
  uv_cond_signal(&line->more);
  return true;
}

void unmap_behind(void *memory, size_t bytes) {
  uv_once(&once, initialize);
  struct job *job = bytes <= AT_ONCE ? NULL : malloc(sizeof *job);
  uv_mutex_lock(&lock);
  if (job != NULL) *job = (struct job){.memory = memory, .bytes = bytes};
  bool taken = job != NULL && enqueue(&unmapping, job);
  uv_mutex_unlock(&lock);
  if (taken) return;
  free(job);
  munmap(memory, bytes);
}

/* Whether it may take long without anybody's doing. Only memory has seals, and other file systems are not asked for sizes. */
static bool is_large(int fd) {
  struct statx about;
  return file_kind(fd) == S_IFREG && fcntl(fd, F_GET_SEALS) >= 0 &&
         statx(fd, "", AT_EMPTY_PATH, STATX_BLOCKS, &about) == 0 && about.stx_blocks > LARGE_BLOCKS;
}

void close_behind(int fd) {
  uv_once(&once, initialize);
  bool large = is_large(fd);
  struct job *job = malloc(sizeof *job);
  uv_mutex_lock(&lock);
  if (job != NULL) *job = (struct job){.fd = fd, .awaited = patient && !large};
  bool taken = job != NULL && enqueue(&closing, job);
  if (taken && job->awaited) {
    uint64_t end = uv_hrtime() + PATIENCE_NS, now;
    while (!job->done && (now = uv_hrtime()) < end) uv_cond_timedwait(&closed, &lock, end - now);
    if (!job->done) patient = job->awaited = false;
    else free(job);
  }
  uv_mutex_unlock(&lock);
  if (taken) return;
  free(job);
  close(fd);
}
