/*
 * Giving up privileges that no set*id(2) takes away. Both calls are about one thread, the one that calls, and those it
 * starts later (credentials(7), capabilities(7)); src/sys/privileges.ts says what that means for a process of Node's.
 */
#include "env.h"

#include <errno.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static napi_value zt_no_new_privs(napi_env napi, napi_callback_info info) {
  CALL(call);
  return outcome(&call, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
}

static napi_value zt_drop_capabilities(napi_env napi, napi_callback_info info) {
  CALL(call);
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {0};
  /* A capability that leaves the permitted or the inheritable set leaves the ambient set, too. */
  return outcome(&call, syscall(SYS_capset, &header, none));
}

const struct export privileges_exports[] = {
    {"noNewPrivs", zt_no_new_privs},
    {"dropCapabilities", zt_drop_capabilities},
    {NULL, NULL},
};
