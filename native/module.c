/*
 * Entry of the addon: the environment's data, the table of exports, and the end of an environment.
 *
 * An environment ends when a worker is terminated or the main thread runs out of work. By then the kernel may still be
 * reading memory that is about to go, and a live uv_poll handle would abort the process (a worker) or call into a dead
 * environment (the main thread). So an asynchronous hook first closes all sockets, after stopping and draining those
 * with unconfirmed zero-copy calls, and then the poll handle, from whose close callback it reports back. Node finalizes
 * external ArrayBuffers before it runs any hook: slab.c puts off unmapping until the hook has been there.
 *
 * process.exit() on the main thread runs no hook: the end of the process releases everything, and the kernel keeps the
 * pages of unsent data by itself.
 *
 * The library is linked with -z nodelete: the counters in process.c must outlive the last worker that used them.
 */
#include "env.h"

#include <stdlib.h>

void env_unref(struct env *env) {
  if (--env->refs > 0) return;
  free(env->slots);
  free(env);
}

static void instance_finalize(napi_env napi, void *data, void *hint) {
  (void)napi, (void)hint;
  env_unref(data);
}

static void hook_done(struct env *env) {
  napi_remove_async_cleanup_hook(env->hook);
  env_unref(env);
}

static void hook(napi_async_cleanup_hook_handle handle, void *data) {
  struct env *env = data;
  env->hook = handle;
  sockets_end(env);
  signals_end(env);
  slabs_end(env);
  spaces_end(env);
  budget_give_back(env);
  reactor_end(env, hook_done);
}

static bool export_all(struct env *env, napi_value target, const struct export *table) {
  for (; table->name != NULL; table++) {
    napi_value function;
    if (napi_create_function(env->napi, table->name, NAPI_AUTO_LENGTH, table->callback, env, &function) != napi_ok ||
        napi_set_named_property(env->napi, target, table->name, function) != napi_ok)
      return false;
  }
  return true;
}

NAPI_MODULE_INIT(/* napi_env env, napi_value exports */) {
  struct env *self = calloc(1, sizeof *self);
  if (self == NULL) return NULL;
  self->napi = env;
  self->refs = 1;
  if (napi_set_instance_data(env, self, instance_finalize, NULL) != napi_ok) {
    free(self);
    return NULL;
  }
  if (napi_add_async_cleanup_hook(env, hook, self, &self->hook) != napi_ok) return NULL;
  self->refs++; /* dropped in hook_done */
  const struct export *const tables[] = {socket_exports, data_exports, reactor_exports, slab_exports, process_exports,
                                         probe_exports, datagram_exports, space_exports, frames_copy_exports,
                                         frames_io_exports, fds_exports, signal_exports, tap_exports,
                                         privileges_exports, rds_exports};
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
    if (!export_all(self, exports, tables[i])) return NULL;
  return exports;
}
