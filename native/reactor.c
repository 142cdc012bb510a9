/*
 * One edge-triggered epoll set per environment, watched by a single uv_poll handle.
 *
 * libuv cannot watch the sockets themselves: it takes POLLERR for a fatal error and stops, and POLLERR is how the kernel
 * says that a zero-copy call is confirmed. An epoll descriptor never reports POLLERR; with EPOLLET inside it turns
 * readable once per event and stops being so after epoll_wait, drained or not.
 */
#include "env.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <uv.h>

#define EVENTS_MAX 256 /* events of one turn; more stay in the set, which then is readable again at once */

struct reactor {
  uv_poll_t poll; /* first: libuv hands back its address */
  struct env *env;
  int epoll;
  napi_ref out;
  napi_ref callback;
  void (*done)(struct env *env);
};

/* Hands `count` to the callback; what it throws becomes an uncaughtException, as for any of Node's own callbacks. */
static void deliver(struct reactor *reactor, napi_value callback, int count) {
  napi_env napi = reactor->env->napi;
  napi_value global, argument;
  if (napi_get_global(napi, &global) != napi_ok || napi_create_int32(napi, count, &argument) != napi_ok) return;
  napi_status status = napi_make_callback(napi, NULL, global, callback, 1, &argument, NULL);
  if (status != napi_pending_exception) return; /* other failures: the environment is ending and runs no JavaScript */
  napi_value error;
  if (napi_get_and_clear_last_exception(napi, &error) == napi_ok) napi_fatal_exception(napi, error);
}

static void on_poll(uv_poll_t *handle, int status, int events) {
  struct reactor *reactor = (struct reactor *)handle;
  napi_env napi = reactor->env->napi;
  napi_handle_scope scope;
  (void)status, (void)events; /* an error here would be one of epoll_wait, which reports it itself */
  if (napi_open_handle_scope(napi, &scope) != napi_ok) return;
  napi_value array, callback;
  size_t length = 0;
  uint32_t *out = NULL;
  if (napi_get_reference_value(napi, reactor->out, &array) == napi_ok && array != NULL &&
      napi_get_reference_value(napi, reactor->callback, &callback) == napi_ok && callback != NULL &&
      napi_get_typedarray_info(napi, array, NULL, &length, (void **)&out, NULL, NULL) == napi_ok) {
    struct epoll_event events_now[EVENTS_MAX];
    int room = length / 2 < EVENTS_MAX ? (int)(length / 2) : EVENTS_MAX;
    int count = room > 0 ? epoll_wait(reactor->epoll, events_now, room, 0) : 0;
    for (int i = 0; i < count; i++) {
      out[2 * i] = events_now[i].data.u32;
      out[2 * i + 1] = events_now[i].events;
    }
    if (count > 0) deliver(reactor, callback, count);
  }
  napi_close_handle_scope(napi, scope);
}

static int reactor_open(struct reactor *reactor) {
  uv_loop_t *loop;
  if (napi_get_uv_event_loop(reactor->env->napi, &loop) != napi_ok) return -ENOSYS;
  reactor->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (reactor->epoll < 0) return -errno;
  int result = uv_poll_init(loop, &reactor->poll, reactor->epoll);
  if (result != 0) close(reactor->epoll);
  return result; /* libuv's error numbers are -errno here */
}

static napi_value zt_reactor_start(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_WORDS(call, 0, out);
  napi_valuetype type = napi_undefined;
  napi_typeof(napi, call.arg[1], &type);
  if (type != napi_function) {
    napi_throw_type_error(napi, "ERR_INVALID_ARG_TYPE", "argument 2 must be a function");
    return NULL;
  }
  if (call.env->reactor != NULL) return number(&call, -EBUSY);
  if (out.length < 2) return number(&call, -EINVAL);
  struct reactor *reactor = calloc(1, sizeof *reactor);
  if (reactor == NULL) return number(&call, -ENOMEM);
  reactor->env = call.env;
  int result = reactor_open(reactor);
  if (result != 0) {
    free(reactor);
    return number(&call, result);
  }
  call.env->reactor = reactor;
  napi_create_reference(napi, call.arg[0], 1, &reactor->out);
  napi_create_reference(napi, call.arg[1], 1, &reactor->callback);
  uv_unref((uv_handle_t *)&reactor->poll);
  return number(&call, uv_poll_start(&reactor->poll, UV_READABLE, on_poll));
}

static napi_value zt_reactor_add(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_UINT(call, 1, token);
  ARG_UINT(call, 2, events);
  OURS(call, fd);
  if (call.env->reactor == NULL) return number(&call, -EINVAL);
  struct epoll_event event = {.events = events | EPOLLET, .data.u32 = token};
  return outcome(&call, epoll_ctl(call.env->reactor->epoll, EPOLL_CTL_ADD, fd, &event));
}

static napi_value zt_reactor_remove(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  OURS(call, fd);
  if (call.env->reactor == NULL) return number(&call, -EINVAL);
  return outcome(&call, epoll_ctl(call.env->reactor->epoll, EPOLL_CTL_DEL, fd, NULL));
}

static napi_value zt_reactor_ref(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_BOOL(call, 0, on);
  if (call.env->reactor == NULL) return NULL;
  uv_handle_t *handle = (uv_handle_t *)&call.env->reactor->poll;
  if (on) uv_ref(handle);
  else uv_unref(handle);
  return NULL;
}

static void on_closed(uv_handle_t *handle) {
  struct reactor *reactor = (struct reactor *)handle;
  struct env *env = reactor->env;
  void (*done)(struct env *) = reactor->done;
  close(reactor->epoll);
  free(reactor); /* the two references go with the environment */
  done(env);
}

void reactor_end(struct env *env, void (*done)(struct env *)) {
  struct reactor *reactor = env->reactor;
  if (reactor == NULL) {
    done(env);
    return;
  }
  env->reactor = NULL;
  reactor->done = done;
  uv_poll_stop(&reactor->poll);
  uv_close((uv_handle_t *)&reactor->poll, on_closed);
}

const struct export reactor_exports[] = {
    {"reactorStart", zt_reactor_start},
    {"reactorAdd", zt_reactor_add},
    {"reactorRemove", zt_reactor_remove},
    {"reactorRef", zt_reactor_ref},
    {NULL, NULL},
};
