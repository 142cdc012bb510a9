/*
 * Reading arguments and making results. A wrong kind of argument is a bug of the caller and throws TypeError; all else
 * is for the kernel to judge.
 */
#include "env.h"

#include <errno.h>
#include <stdio.h>

static bool wrong(struct call *call, int index, const char *expected) {
  bool pending = false;
  napi_is_exception_pending(call->napi, &pending); /* a getter of an array element may have thrown its own */
  if (pending) return false;
  char text[64];
  snprintf(text, sizeof text, "argument %d must be %s", index + 1, expected);
  napi_throw_type_error(call->napi, "ERR_INVALID_ARG_TYPE", text);
  return false;
}

bool call_begin(struct call *call, napi_env napi, napi_callback_info info) {
  size_t count = ARGS_MAX; /* arguments left out read as undefined, and so fail their type check */
  void *data;
  if (napi_get_cb_info(napi, info, &count, call->arg, NULL, &data) != napi_ok) return false;
  call->napi = napi;
  call->env = data;
  return true;
}

bool call_int(struct call *call, int index, int32_t *out) {
  return napi_get_value_int32(call->napi, call->arg[index], out) == napi_ok || wrong(call, index, "a number");
}

bool call_uint(struct call *call, int index, uint32_t *out) {
  return napi_get_value_uint32(call->napi, call->arg[index], out) == napi_ok || wrong(call, index, "a number");
}

bool call_int64(struct call *call, int index, int64_t *out) {
  return napi_get_value_int64(call->napi, call->arg[index], out) == napi_ok || wrong(call, index, "a number");
}

bool call_bool(struct call *call, int index, bool *out) {
  return napi_get_value_bool(call->napi, call->arg[index], out) == napi_ok || wrong(call, index, "a boolean");
}

bool call_is_null(struct call *call, int index) {
  napi_valuetype type = napi_undefined;
  napi_typeof(call->napi, call->arg[index], &type);
  return type == napi_null;
}

/* The pointer and element count of a typed array of exactly this type; NULL and 0 once it is detached. */
static bool typed_array(napi_env napi, napi_value value, napi_typedarray_type wanted, void **data, size_t *length) {
  napi_typedarray_type type;
  if (napi_get_typedarray_info(napi, value, &type, length, data, NULL, NULL) != napi_ok || type != wanted) return false;
  if (*length == 0) *data = NULL;
  return true;
}

bool call_bytes(struct call *call, int index, struct bytes *out) {
  return typed_array(call->napi, call->arg[index], napi_uint8_array, (void **)&out->data, &out->length) ||
         wrong(call, index, "a Uint8Array");
}

bool call_words(struct call *call, int index, struct words *out) {
  return typed_array(call->napi, call->arg[index], napi_uint32_array, (void **)&out->data, &out->length) ||
         wrong(call, index, "a Uint32Array");
}

bool call_ints(struct call *call, int index, struct ints *out) {
  return typed_array(call->napi, call->arg[index], napi_int32_array, (void **)&out->data, &out->length) ||
         wrong(call, index, "an Int32Array");
}

bool call_bigint(struct call *call, int index, uint64_t *out) {
  bool lossless = false;
  return (napi_get_value_bigint_uint64(call->napi, call->arg[index], out, &lossless) == napi_ok && lossless) ||
         wrong(call, index, "a BigInt of 64 bits");
}

/*
 * Two passes: an element may be a getter, and what runs there could detach a buffer whose pointer was already taken.
 * After the first pass no JavaScript runs until the system call is made.
 */
bool call_iov(struct call *call, int index, int32_t count, struct iovec *iov) {
  napi_value entry[IOV_ENTRIES];
  bool array = false;
  napi_is_array(call->napi, call->arg[index], &array);
  if (!array) return wrong(call, index, "an array of Uint8Array");
  if (count < 0 || count > IOV_ENTRIES) {
    napi_throw_range_error(call->napi, "ERR_OUT_OF_RANGE", "count must be 0 to 64");
    return false;
  }
  for (int32_t i = 0; i < count; i++)
    if (napi_get_element(call->napi, call->arg[index], (uint32_t)i, &entry[i]) != napi_ok)
      return wrong(call, index, "an array of Uint8Array");
  for (int32_t i = 0; i < count; i++)
    if (!typed_array(call->napi, entry[i], napi_uint8_array, &iov[i].iov_base, &iov[i].iov_len))
      return wrong(call, index, "an array of Uint8Array");
  return true;
}

napi_value number(struct call *call, int64_t value) {
  napi_value result;
  bool small = value == (int32_t)value; /* V8 has a fast path for these, and almost all are */
  napi_status status = small ? napi_create_int32(call->napi, (int32_t)value, &result)
                             : napi_create_int64(call->napi, value, &result);
  return status == napi_ok ? result : NULL;
}

napi_value outcome(struct call *call, ssize_t result) {
  return number(call, result < 0 ? -errno : result);
}
