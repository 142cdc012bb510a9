/*
 * Sockets of the kernel's own RDS (AF_RDS): one message a call, with the control messages that go with it.
 *
 * Their zero-copy calls are confirmed otherwise than those of data.c: whoever sends gives a cookie, and a record of up to
 * eight cookies comes with what recvmsg(2) returns, or alone (rds_recvmsg_zcookie in net/rds/recv.c). They are counted
 * in the same slot, so that the end of an environment knows of them.
 *
 * MSG_NOSIGNAL is not added, unlike elsewhere: rds_sendmsg refuses every flag but MSG_DONTWAIT and MSG_ZEROCOPY.
 */
#include "env.h"

#include <errno.h>
#include <linux/rds.h>
#include <poll.h>
#include <string.h>

#ifndef SOL_RDS
#define SOL_RDS 276
#endif

/* Younger than some headers: include/uapi/linux/rds.h since Linux 4.11 and 4.17. */
#define CMSG_RXPATH_LATENCY 11
#define CMSG_ZCOPY_COOKIE 12
#define CMSG_ZCOPY_COMPLETION 13
#define TIMESTAMP_OLD 29 /* SO_TIMESTAMP_OLD and _NEW: on 64-bit machines both are two 64-bit numbers */
#define TIMESTAMP_NEW 63
#define COOKIES_MAX 8
#define TRACES_MAX 3
#define ADDRESS_BYTES 28 /* sizeof(struct sockaddr_in6), the larger of the two */
#define CONTROL_BYTES 256 /* all four kinds together need 144 */
#define END_MESSAGES_MAX 1024 /* read in all when an environment ends; data among them is nobody's any more */

/* Words of what rdsRecvmsg() tells of a message: src/sys/rds.ts has the same list. */
enum {
  WORD_FLAGS,         /* msg_flags */
  WORD_ADDRESS_BYTES, /* of the source address; 0 when there is no message */
  WORD_COOKIES,       /* how many, then eight places */
  WORD_HAS_NEWS = WORD_COOKIES + 1 + COOKIES_MAX,
  WORD_NEWS, /* 64 bits, the lower half first, as all such numbers */
  WORD_HAS_TIME = WORD_NEWS + 2,
  WORD_SECONDS,
  WORD_MICROSECONDS = WORD_SECONDS + 2,
  WORD_TRACES, /* how many, the position of each, the nanoseconds of each */
  WORD_TRACE_POSITIONS,
  WORD_TRACE_TIMES = WORD_TRACE_POSITIONS + TRACES_MAX,
  WORDS = WORD_TRACE_TIMES + 2 * TRACES_MAX,
};

struct cookies {
  uint32_t count;
  uint32_t cookie[COOKIES_MAX];
};

struct traces {
  uint8_t count;
  uint8_t position[TRACES_MAX];
  uint64_t nanoseconds[TRACES_MAX];
};

union control {
  struct cmsghdr align;
  char bytes[CONTROL_BYTES];
};

static uint32_t least(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

static void put64(uint32_t *out, uint64_t value) {
  out[0] = (uint32_t)value;
  out[1] = (uint32_t)(value >> 32);
}

static bool is(const struct cmsghdr *cmsg, int level, int type, size_t bytes) {
  return cmsg->cmsg_level == level && cmsg->cmsg_type == type && cmsg->cmsg_len >= CMSG_LEN(bytes);
}

static void read_cookies(const struct cmsghdr *cmsg, struct slot *slot, uint32_t *out) {
  struct cookies cookies;
  memcpy(&cookies, CMSG_DATA(cmsg), sizeof cookies);
  uint32_t count = least(cookies.count, COOKIES_MAX);
  slot->outstanding -= least(count, slot->outstanding);
  if (out == NULL) return;
  out[WORD_COOKIES] = count;
  memcpy(out + WORD_COOKIES + 1, cookies.cookie, count * sizeof *cookies.cookie);
}

static void read_traces(const struct cmsghdr *cmsg, uint32_t *out) {
  struct traces traces;
  memcpy(&traces, CMSG_DATA(cmsg), sizeof traces);
  uint32_t count = least(traces.count, TRACES_MAX);
  out[WORD_TRACES] = count;
  for (uint32_t i = 0; i < count; i++) {
    out[WORD_TRACE_POSITIONS + i] = traces.position[i];
    put64(out + WORD_TRACE_TIMES + 2 * i, traces.nanoseconds[i]);
  }
}

static void read_control(struct msghdr *message, struct slot *slot, uint32_t *out) {
  for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(message); cmsg != NULL; cmsg = CMSG_NXTHDR(message, cmsg)) {
    uint64_t numbers[2];
    if (is(cmsg, SOL_RDS, CMSG_ZCOPY_COMPLETION, sizeof(struct cookies))) {
      read_cookies(cmsg, slot, out);
    } else if (out == NULL) {
      continue;
    } else if (is(cmsg, SOL_RDS, RDS_CMSG_CONG_UPDATE, sizeof numbers[0])) {
      memcpy(numbers, CMSG_DATA(cmsg), sizeof numbers[0]);
      out[WORD_HAS_NEWS] = 1;
      put64(out + WORD_NEWS, numbers[0]);
    } else if (is(cmsg, SOL_RDS, CMSG_RXPATH_LATENCY, sizeof(struct traces))) {
      read_traces(cmsg, out);
    } else if (is(cmsg, SOL_SOCKET, TIMESTAMP_OLD, sizeof numbers) || is(cmsg, SOL_SOCKET, TIMESTAMP_NEW, sizeof numbers)) {
      memcpy(numbers, CMSG_DATA(cmsg), sizeof numbers);
      out[WORD_HAS_TIME] = 1;
      put64(out + WORD_SECONDS, numbers[0]);
      out[WORD_MICROSECONDS] = (uint32_t)numbers[1];
    }
  }
}

static napi_value zt_rds_sendmsg(napi_env napi, napi_callback_info info) {
  struct iovec iov[IOV_ENTRIES];
  union control control;
  struct bytes address = {NULL, 0};
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_INT(call, 2, count);
  ARG_INT(call, 4, flags);
  ARG_INT64(call, 5, cookie);
  if (!call_iov(&call, 1, count, iov)) return NULL;
  /* Last: no JavaScript may run between taking pointers and the call. */
  if (!call_is_null(&call, 3) && !call_bytes(&call, 3, &address)) return NULL;
  SLOT(call, fd, slot);
  if (cookie < -1 || cookie > UINT32_MAX) return number(&call, -EINVAL);
  struct msghdr message = {.msg_name = address.data,
                           .msg_namelen = (socklen_t)address.length,
                           .msg_iov = iov,
                           .msg_iovlen = (size_t)count};
  if (cookie >= 0) {
    uint32_t value = (uint32_t)cookie;
    memset(&control, 0, sizeof control);
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(sizeof value);
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);
    cmsg->cmsg_level = SOL_RDS;
    cmsg->cmsg_type = CMSG_ZCOPY_COOKIE;
    cmsg->cmsg_len = CMSG_LEN(sizeof value);
    memcpy(CMSG_DATA(cmsg), &value, sizeof value);
  }
  ssize_t sent = sendmsg(fd, &message, flags | MSG_DONTWAIT);
  if (sent >= 0 && cookie >= 0 && (flags & MSG_ZEROCOPY) != 0) {
    slot->cookies = true;
    slot->outstanding++;
  }
  return outcome(&call, sent);
}

static napi_value zt_rds_recvmsg(napi_env napi, napi_callback_info info) {
  struct iovec iov[IOV_ENTRIES];
  union control control;
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_INT(call, 2, count);
  ARG_INT(call, 3, flags);
  ARG_BOOL(call, 4, with_control);
  if (!call_iov(&call, 1, count, iov)) return NULL;
  ARG_BYTES(call, 5, address);
  ARG_WORDS(call, 6, out);
  SLOT(call, fd, slot);
  if (address.length < ADDRESS_BYTES || out.length < WORDS) return number(&call, -EINVAL);
  struct msghdr message = {.msg_name = address.data,
                           .msg_namelen = ADDRESS_BYTES,
                           .msg_iov = iov,
                           .msg_iovlen = (size_t)count,
                           .msg_control = with_control ? control.bytes : NULL,
                           .msg_controllen = with_control ? sizeof control.bytes : 0};
  ssize_t received = recvmsg(fd, &message, flags | MSG_DONTWAIT);
  if (received < 0) return number(&call, -errno);
  memset(out.data, 0, WORDS * sizeof *out.data);
  out.data[WORD_FLAGS] = (uint32_t)message.msg_flags;
  out.data[WORD_ADDRESS_BYTES] = least(message.msg_namelen, ADDRESS_BYTES);
  read_control(&message, slot, out.data);
  return number(&call, received);
}

/* getsockopt(2) of RDS_INFO_...: its result is the size of a record, and the length is set even when there is no room. */
static napi_value zt_rds_info(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_INT(call, 1, name);
  ARG_BYTES(call, 2, out);
  ARG_WORDS(call, 3, needed);
  OURS(call, fd);
  if (needed.length == 0) return number(&call, -EINVAL);
  socklen_t length = out.length > INT32_MAX ? INT32_MAX : (socklen_t)out.length;
  int record = getsockopt(fd, SOL_RDS, name, out.data, &length);
  needed.data[0] = length;
  return outcome(&call, record);
}

bool drain_cookies(int fd, struct slot *slot) {
  union control control;
  for (int i = 0; i < END_MESSAGES_MAX && slot->outstanding > 0; i++) {
    struct msghdr message = {.msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    if (recvmsg(fd, &message, MSG_DONTWAIT) < 0) return errno == EAGAIN;
    read_control(&message, slot, NULL);
  }
  return slot->outstanding > 0;
}

const struct export rds_exports[] = {
    {"rdsSendmsg", zt_rds_sendmsg},
    {"rdsRecvmsg", zt_rds_recvmsg},
    {"rdsInfo", zt_rds_info},
    {NULL, NULL},
};
