/*
 * Datagrams in batches: one sendmsg() that the kernel cuts into many datagrams (UDP_SEGMENT), and one recvmmsg() that
 * brings many, each of which may be a run of equal ones put together again (UDP_GRO; udp(7)).
 */
#include "env.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#define BATCH_MESSAGES 64 /* of one recvmmsg(): 7 KiB of stack */
#define INFO_WORDS 4      /* per message: length, segment length or 0, 1 if it was cut, length of the sender's address */
#define ADDRESS_BYTES 28  /* sizeof(struct sockaddr_in6), the larger of the two */

static napi_value zt_send_gso(napi_env napi, napi_callback_info info) {
  struct iovec iov[IOV_ENTRIES];
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(uint16_t))];
  } control;
  struct bytes address = {NULL, 0};
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_INT(call, 2, count);
  ARG_INT(call, 3, flags);
  ARG_INT(call, 4, segment_bytes);
  if (!call_iov(&call, 1, count, iov)) return NULL;
  /* Last: no JavaScript may run between taking pointers and the call. */
  if (!call_is_null(&call, 5) && !call_bytes(&call, 5, &address)) return NULL;
  SLOT(call, fd, slot);
  if (segment_bytes < 0 || segment_bytes > UINT16_MAX) return number(&call, -EINVAL);
  struct msghdr message = {.msg_name = address.data,
                           .msg_namelen = (socklen_t)address.length,
                           .msg_iov = iov,
                           .msg_iovlen = (size_t)count};
  if (segment_bytes > 0) {
    uint16_t size = (uint16_t)segment_bytes;
    memset(&control, 0, sizeof control);
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);
    cmsg->cmsg_level = IPPROTO_UDP;
    cmsg->cmsg_type = UDP_SEGMENT;
    cmsg->cmsg_len = CMSG_LEN(sizeof size);
    memcpy(CMSG_DATA(cmsg), &size, sizeof size);
  }
  ssize_t sent = sendmsg(fd, &message, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
  count_flagged(slot, flags, sent);
  return outcome(&call, sent);
}

/* The size of the datagrams that a message was put together from; 0 if it is a single one. */
static uint32_t gro_bytes(struct msghdr *message) {
  for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(message); cmsg != NULL; cmsg = CMSG_NXTHDR(message, cmsg)) {
    int size;
    if (cmsg->cmsg_level != IPPROTO_UDP || cmsg->cmsg_type != UDP_GRO || cmsg->cmsg_len < CMSG_LEN(sizeof size)) continue;
    memcpy(&size, CMSG_DATA(cmsg), sizeof size);
    return size > 0 ? (uint32_t)size : 0;
  }
  return 0;
}

static size_t least(size_t a, size_t b) {
  return a < b ? a : b;
}

static napi_value zt_recv_batch(napi_env napi, napi_callback_info info) {
  struct mmsghdr messages[BATCH_MESSAGES];
  struct iovec iov[BATCH_MESSAGES];
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
  } control[BATCH_MESSAGES];
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_UINT(call, 2, slot_bytes);
  ARG_INT(call, 3, flags);
  ARG_BYTES(call, 1, buffer);
  ARG_WORDS(call, 4, out);
  ARG_BYTES(call, 5, addresses);
  OURS(call, fd);
  size_t room = slot_bytes == 0 ? 0 : buffer.length / slot_bytes;
  size_t count = least(least(room, BATCH_MESSAGES), least(out.length / INFO_WORDS, addresses.length / ADDRESS_BYTES));
  if (count == 0) return number(&call, -EINVAL); /* 0 would say that nothing came */
  memset(messages, 0, count * sizeof *messages);
  for (size_t i = 0; i < count; i++) {
    iov[i] = (struct iovec){buffer.data + i * slot_bytes, slot_bytes};
    messages[i].msg_hdr = (struct msghdr){.msg_name = addresses.data + i * ADDRESS_BYTES,
                                          .msg_namelen = ADDRESS_BYTES,
                                          .msg_iov = &iov[i],
                                          .msg_iovlen = 1,
                                          .msg_control = control[i].bytes,
                                          .msg_controllen = sizeof control[i].bytes};
  }
  int received = recvmmsg(fd, messages, (unsigned int)count, flags | MSG_DONTWAIT, NULL);
  for (int i = 0; i < received; i++) {
    struct msghdr *header = &messages[i].msg_hdr;
    const uint32_t record[INFO_WORDS] = {messages[i].msg_len, gro_bytes(header), (header->msg_flags & MSG_TRUNC) != 0,
                                         header->msg_namelen};
    memcpy(out.data + (size_t)i * INFO_WORDS, record, sizeof record);
  }
  return outcome(&call, received);
}

const struct export datagram_exports[] = {
    {"sendGso", zt_send_gso},
    {"recvBatch", zt_recv_batch},
    {NULL, NULL},
};
