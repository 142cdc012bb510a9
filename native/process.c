/*
 * What is one per process: the limit and the account of pinned pages, and the quarantine.
 *
 * The kernel accounts zero-copy pages per user (mm_account_pinned_pages) but tells nobody how much is used, so the
 * process keeps its own account. The counters are atomic and the only state that environments share; each environment
 * remembers its share, which is given back when it ends.
 */
#include "env.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INITIAL_USER_NAMESPACE "user:[4026531837]" /* PROC_USER_INIT_INO */

static _Atomic int64_t budget_used;
static _Atomic int64_t quarantined_bytes;

void quarantine_add(size_t bytes) {
  atomic_fetch_add(&quarantined_bytes, (int64_t)bytes);
}

void budget_give_back(struct env *env) {
  atomic_fetch_sub(&budget_used, env->budget_pages);
  env->budget_pages = 0;
}

/* capable() asks for the capability in the initial user namespace: a rootless container's "root" does not count. */
static bool may_lock_memory(void) {
  /* readlink() rather than stat(), which C libraries before 2.33 do not export. */
  char target[64];
  ssize_t length = readlink("/proc/self/ns/user", target, sizeof target);
  if (length != sizeof INITIAL_USER_NAMESPACE - 1 || memcmp(target, INITIAL_USER_NAMESPACE, (size_t)length) != 0)
    return false;
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  return (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

static napi_value zt_memlock_limit(napi_env napi, napi_callback_info info) {
  CALL(call);
  struct rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return number(&call, 0);
  bool unlimited = limit.rlim_cur == RLIM_INFINITY || may_lock_memory();
  return number(&call, unlimited ? -1 : (int64_t)limit.rlim_cur);
}

static napi_value zt_budget_charge(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT64(call, 0, pages);
  ARG_INT64(call, 1, limit);
  if (pages < 0) return number(&call, -EINVAL);
  int64_t used = atomic_load(&budget_used);
  do {
    int64_t room = (limit < 0 ? INT64_MAX : limit) - used; /* negative when a smaller limit came later */
    if (pages > room) return number(&call, -ENOMEM);
  } while (!atomic_compare_exchange_weak(&budget_used, &used, used + pages));
  call.env->budget_pages += pages;
  return number(&call, 0);
}

static napi_value zt_budget_uncharge(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT64(call, 0, pages);
  int64_t ours = call.env->budget_pages;
  int64_t given = pages < 0 ? 0 : pages > ours ? ours : pages; /* never into another environment's share */
  call.env->budget_pages -= given;
  atomic_fetch_sub(&budget_used, given);
  return NULL;
}

static napi_value zt_budget_used(napi_env napi, napi_callback_info info) {
  CALL(call);
  return number(&call, atomic_load(&budget_used));
}

static napi_value zt_quarantined_bytes(napi_env napi, napi_callback_info info) {
  CALL(call);
  return number(&call, atomic_load(&quarantined_bytes));
}

static napi_value zt_page_size(napi_env napi, napi_callback_info info) {
  CALL(call);
  return number(&call, sysconf(_SC_PAGESIZE));
}

const struct export process_exports[] = {
    {"memlockLimit", zt_memlock_limit},
    {"budgetCharge", zt_budget_charge},
    {"budgetUncharge", zt_budget_uncharge},
    {"budgetUsed", zt_budget_used},
    {"quarantinedBytes", zt_quarantined_bytes},
    {"pageSize", zt_page_size},
    {NULL, NULL},
};
