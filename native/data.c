/*
 * The data path: one call per batch of buffers, and the error queue that says when the kernel is done with them.
 *
 * A socket with SO_ZEROCOPY numbers its successful MSG_ZEROCOPY calls from 0; the error queue gives back inclusive
 * ranges of numbers, modulo 2^32 (Documentation/networking/msg_zerocopy.rst). Here only their count is kept, for the
 * end of the environment; which buffer belongs to which number is JavaScript's affair.
 *
 * A call that fails may have used up a number, too: a datagram that is refused on its way out (a segment is longer than
 * the MTU, a filter drops it) has got its number before, which is then confirmed like any other (udp_send_skb). So a
 * failed call counts as outstanding until the queue was read to its end: by then its number is confirmed, or it had none.
 * Whoever makes another call before that is left with a count that may be too high: nothing tells them apart any more.
 */
#include "env.h"

#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <string.h>

#define RECORD_WORDS 6
#define CONTROL_BYTES 512 /* an IPv6 record takes 60; one that does not fit at all is lost for good */

void count_flagged(struct slot *slot, int32_t flags, ssize_t sent) {
  if ((flags & MSG_ZEROCOPY) == 0 || !slot->zerocopy || sent == 0) return;
  if (sent > 0) {
    slot->next++;
    slot->mixed = slot->doubtful > 0;
  } else if (errno == EAGAIN) {
    return; /* no room: the number was given back (net_zcopy_put_abort) */
  } else {
    slot->doubtful++;
  }
  slot->outstanding++;
}

static uint32_t least(uint32_t a, uint32_t b) {
  return a < b ? a : b;
}

static void count_confirmed(struct slot *slot, uint32_t lo, uint32_t hi) {
  uint32_t ahead = hi + 1 - slot->next; /* how many numbers are known to be taken now that were not: by failed calls */
  if (ahead <= INT32_MAX) {             /* above, it is negative */
    uint32_t known = least(ahead, slot->doubtful);
    slot->doubtful -= known;
    slot->outstanding += ahead - known;
    slot->next += ahead;
  }
  slot->outstanding -= least(hi - lo + 1, slot->outstanding);
}

/* The queue is empty: a failed call that is not confirmed has taken no number. */
static void count_empty(struct slot *slot) {
  if (slot->mixed && slot->doubtful > 0) return;
  slot->outstanding -= least(slot->doubtful, slot->outstanding);
  slot->doubtful = 0;
  slot->mixed = false;
}

static napi_value zt_sendv(napi_env napi, napi_callback_info info) {
  struct iovec iov[IOV_ENTRIES];
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_INT(call, 2, count);
  ARG_INT(call, 3, flags);
  if (!call_iov(&call, 1, count, iov)) return NULL;
  SLOT(call, fd, slot);
  flags |= MSG_DONTWAIT | MSG_NOSIGNAL;
  struct msghdr message = {.msg_iov = iov, .msg_iovlen = (size_t)count};
  /* send(2) spares the kernel the copies of the structures: 0.2 us, a tenth of a small call */
  ssize_t sent = count == 1 ? send(fd, iov[0].iov_base, iov[0].iov_len, flags) : sendmsg(fd, &message, flags);
  count_flagged(slot, flags, sent);
  return outcome(&call, sent);
}

static napi_value zt_readv(napi_env napi, napi_callback_info info) {
  struct iovec iov[IOV_ENTRIES];
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_INT(call, 2, count);
  if (!call_iov(&call, 1, count, iov)) return NULL;
  OURS(call, fd);
  return outcome(&call, count == 1 ? recv(fd, iov[0].iov_base, iov[0].iov_len, MSG_DONTWAIT) : readv(fd, iov, count));
}

/* The extended error of a message from the error queue, whatever family the socket has; NULL if it carries none. */
static const struct sock_extended_err *extended_error(struct msghdr *message) {
  for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(message); cmsg != NULL; cmsg = CMSG_NXTHDR(message, cmsg)) {
    bool ip = cmsg->cmsg_level == IPPROTO_IP && cmsg->cmsg_type == IP_RECVERR;
    bool ipv6 = cmsg->cmsg_level == IPPROTO_IPV6 && cmsg->cmsg_type == IPV6_RECVERR;
    bool vsock = cmsg->cmsg_level == SOL_VSOCK; /* its type number differs between headers and documentation */
    if ((ip || ipv6 || vsock) && cmsg->cmsg_len >= CMSG_LEN(sizeof(struct sock_extended_err)))
      return (const struct sock_extended_err *)CMSG_DATA(cmsg);
  }
  return NULL;
}

ssize_t drain_errors(int fd, struct slot *slot, uint32_t *out, size_t capacity) {
  union {
    struct cmsghdr align;
    char bytes[CONTROL_BYTES];
  } control;
  size_t count = 0;
  while (count < capacity) {
    struct msghdr message = {.msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
      if (errno == EAGAIN) count_empty(slot);
      if (errno == EAGAIN || count > 0) break; /* after a record: the next call reports the trouble */
      return -errno;
    }
    const struct sock_extended_err *error = extended_error(&message);
    if (error == NULL) continue; /* a record of a kind we did not ask for; it is off the queue, so this ends */
    if (error->ee_origin == SO_EE_ORIGIN_ZEROCOPY && error->ee_errno == 0)
      count_confirmed(slot, error->ee_info, error->ee_data);
    if (out != NULL) {
      const uint32_t record[RECORD_WORDS] = {error->ee_errno, error->ee_origin, error->ee_type,
                                             error->ee_code,  error->ee_info,   error->ee_data};
      memcpy(out + count * RECORD_WORDS, record, sizeof record);
    }
    count++;
  }
  return (ssize_t)count;
}

static napi_value zt_drain_errors(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_WORDS(call, 1, out);
  SLOT(call, fd, slot);
  if (out.length < RECORD_WORDS) return number(&call, -EINVAL); /* 0 would say that the queue is empty */
  return number(&call, drain_errors(fd, slot, out.data, out.length / RECORD_WORDS));
}

const struct export data_exports[] = {
    {"sendv", zt_sendv},
    {"readv", zt_readv},
    {"drainErrors", zt_drain_errors},
    {NULL, NULL},
};
