/*
 * Frames to and from descriptors: taps (a frame a call), datagram sockets (a batch a call) and streams (bytes, however
 * they are cut). Frames go out from where they are: prefix, head and tail are one list of pieces for the kernel.
 *
 *   prefix  something of the port's in front of every frame: a vnet header, a VXLAN header, a length
 *   head    the table's memory
 *   tail    guest memory
 *
 * A frame that cannot go out says so in its status, and those after it are tried; no room (EAGAIN, ENOBUFS) stops the
 * batch.
 */
#include "frames.h"

#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#define ENTRIES_MAX 1024 /* UIO_MAXIOV: the kernel takes no longer list; 16 KiB of stack */
#define MESSAGES_MAX 64  /* of one sendmmsg() or recvmmsg() */
#define STREAM_BYTES_MAX ((size_t)1 << 20)
#define ADDRESS_BYTES 28 /* sizeof(struct sockaddr_in6) */
#define VNET_BYTES_MAX 12

/* --- what a call sends --- */

struct batch {
  struct table table;
  const uint32_t *which;
  uint32_t from, count;
  uint8_t *prefixes; /* of the frames at the same positions */
  uint32_t prefix_bytes;
};

/* Arguments 1 to 6, after the descriptor; false, and nothing thrown, when they do not fit together. */
static bool batch_open(struct batch *batch, struct bytes table, struct words which, struct bytes prefixes) {
  if (!table_open(table, &batch->table) || batch->from > batch->count || batch->count > which.length ||
      (uint64_t)batch->count * batch->prefix_bytes > prefixes.length)
    return false;
  batch->which = which.data;
  batch->prefixes = prefixes.data;
  for (uint32_t i = batch->from; i < batch->count; i++)
    if (batch->which[i] >= batch->table.frames) return false;
  return true;
}

#define BATCH(call, name)                                                 \
  struct batch name;                                                      \
  {                                                                       \
    if (!call_uint(&(call), 3, &name.from)) return NULL;                  \
    if (!call_uint(&(call), 4, &name.count)) return NULL;                 \
    if (!call_uint(&(call), 6, &name.prefix_bytes)) return NULL;          \
    ARG_BYTES(call, 1, table);                                            \
    ARG_WORDS(call, 2, which);                                            \
    ARG_BYTES(call, 5, prefixes);                                         \
    if (!batch_open(&name, table, which, prefixes)) return number(&(call), -EINVAL); \
  }

static struct record *record_of(const struct batch *batch, uint32_t position) {
  return &batch->table.records[batch->which[position]];
}

/* A list for the kernel. */
struct list {
  struct iovec *entries;
  size_t count, room;
  size_t skip;  /* bytes not to be put in any more */
  size_t bytes; /* put in */
  size_t bytes_max;
};

/* False when the list is full; it may have taken part of the bytes. */
static bool list_add(struct list *list, void *at, size_t bytes) {
  if (bytes <= list->skip) {
    list->skip -= bytes;
    return true;
  }
  at = (uint8_t *)at + list->skip;
  bytes -= list->skip;
  list->skip = 0;
  size_t room = list->bytes_max - list->bytes;
  if (list->count == list->room || room == 0) return false;
  size_t part = bytes < room ? bytes : room;
  list->entries[list->count++] = (struct iovec){at, part};
  list->bytes += part;
  return part == bytes;
}

/* 0, the errno of the frame (EINVAL, EFAULT), or ENOSPC: the list is full. */
static int list_add_pieces(struct list *list, struct pieces *pieces) {
  for (; pieces_more(pieces); pieces->left = 0)
    if (!list_add(list, pieces->at, pieces->left)) return ENOSPC;
  return pieces->failed ? EFAULT : 0;
}

/* Prefix, head and tail of the frame at `position`; as above. */
static int list_add_frame(struct list *list, const struct batch *batch, uint32_t position, struct lookup *lookup) {
  struct pieces pieces;
  if (!pieces_of_frame(&batch->table, record_of(batch, position), lookup, &pieces)) return EINVAL;
  if (batch->prefix_bytes > 0 &&
      !list_add(list, batch->prefixes + (size_t)position * batch->prefix_bytes, batch->prefix_bytes))
    return ENOSPC;
  return list_add_pieces(list, &pieces);
}

static bool is_full(int error) {
  return error == EAGAIN || error == ENOBUFS;
}

/* --- frame by frame --- */

static napi_value zt_frames_write(napi_env napi, napi_callback_info info) {
  struct iovec entries[ENTRIES_MAX];
  CALL(call);
  ARG_INT(call, 0, fd);
  BATCH(call, batch);
  OURS(call, fd);
  LOOKUP(lookup, call.env);
  for (uint32_t i = batch.from; i < batch.count; i++) {
    struct list list = {.entries = entries, .room = ENTRIES_MAX, .bytes_max = SIZE_MAX};
    int error = list_add_frame(&list, &batch, i, &lookup);
    if (error == ENOSPC) error = EMSGSIZE;
    if (error == 0 && writev(fd, entries, (int)list.count) < 0) {
      if (is_full(errno)) return number(&call, i);
      error = errno;
    }
    record_of(&batch, i)->status = (uint32_t)error;
  }
  return number(&call, batch.count);
}

/* --- datagrams --- */

struct messages {
  struct iovec entries[ENTRIES_MAX];
  struct mmsghdr header[MESSAGES_MAX];
  uint32_t position[MESSAGES_MAX];
  uint32_t count;
};

/* Makes messages of the frames from `position` on, as many as fit; the position of the first that was not looked at. */
static uint32_t compose(struct messages *messages, const struct batch *batch, uint32_t position,
                        struct lookup *lookup) {
  size_t used = 0;
  messages->count = 0;
  for (; position < batch->count && messages->count < MESSAGES_MAX; position++) {
    struct list list = {.entries = messages->entries + used, .room = ENTRIES_MAX - used, .bytes_max = SIZE_MAX};
    int error = list_add_frame(&list, batch, position, lookup);
    if (error == ENOSPC && used > 0) break; /* it begins the next list */
    if (error != 0) {
      record_of(batch, position)->status = (uint32_t)(error == ENOSPC ? EMSGSIZE : error);
      continue;
    }
    messages->header[messages->count] =
        (struct mmsghdr){.msg_hdr = {.msg_iov = list.entries, .msg_iovlen = list.count}};
    messages->position[messages->count++] = position;
    used += list.count;
  }
  return position;
}

/* Sends them; false at the first that there is no room for, which `stop` is then the position of. */
static bool dispatch(int fd, struct messages *messages, const struct batch *batch, uint32_t *stop) {
  uint32_t done = 0;
  while (done < messages->count) {
    /* An error of any but the first message is not told: the next call begins with that message, and tells. */
    int sent = sendmmsg(fd, messages->header + done, messages->count - done, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && is_full(errno)) {
      *stop = messages->position[done];
      return false;
    }
    if (sent < 0) record_of(batch, messages->position[done++])->status = (uint32_t)errno;
    for (; sent > 0; sent--) record_of(batch, messages->position[done++])->status = 0;
  }
  return true;
}

static napi_value zt_frames_sendmmsg(napi_env napi, napi_callback_info info) {
  struct messages messages;
  CALL(call);
  ARG_INT(call, 0, fd);
  BATCH(call, batch);
  OURS(call, fd);
  LOOKUP(lookup, call.env);
  for (uint32_t i = batch.from; i < batch.count;) {
    uint32_t stop, next = compose(&messages, &batch, i, &lookup);
    if (!dispatch(fd, &messages, &batch, &stop)) return number(&call, stop);
    i = next;
  }
  return number(&call, batch.count);
}

/* One sendmsg() whose bytes the kernel cuts into datagrams again (UDP_SEGMENT): all frames, or none. */
static napi_value zt_frames_gso(napi_env napi, napi_callback_info info) {
  struct iovec entries[ENTRIES_MAX];
  _Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(uint16_t))] = {0};
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_UINT(call, 7, segment_bytes);
  ARG_INT(call, 8, flags);
  BATCH(call, batch);
  SLOT(call, fd, slot);
  LOOKUP(lookup, call.env);
  if (segment_bytes == 0 || segment_bytes > UINT16_MAX) return number(&call, -EINVAL);
  struct list list = {.entries = entries, .room = ENTRIES_MAX, .bytes_max = SIZE_MAX};
  for (uint32_t i = batch.from; i < batch.count; i++) {
    int error = list_add_frame(&list, &batch, i, &lookup);
    if (error == 0) continue;
    if (error == ENOSPC) return number(&call, -EMSGSIZE);
    record_of(&batch, i)->status = (uint32_t)error;
    return number(&call, -error);
  }
  if (list.bytes == 0) return number(&call, 0);
  struct msghdr message = {.msg_iov = entries,
                           .msg_iovlen = list.count,
                           .msg_control = control,
                           .msg_controllen = sizeof control};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  *header = (struct cmsghdr){
      .cmsg_level = IPPROTO_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(sizeof(uint16_t))};
  uint16_t bytes = (uint16_t)segment_bytes;
  memcpy(CMSG_DATA(header), &bytes, sizeof bytes);
  flags |= MSG_DONTWAIT | MSG_NOSIGNAL;
  ssize_t sent = sendmsg(fd, &message, flags);
  count_flagged(slot, flags, sent);
  return outcome(&call, sent);
}

/* --- streams --- */

static ssize_t send_list(int fd, struct slot *slot, const struct list *list, int32_t flags) {
  flags |= MSG_DONTWAIT | MSG_NOSIGNAL;
  struct msghdr message = {.msg_iov = list->entries, .msg_iovlen = list->count};
  ssize_t sent = sendmsg(fd, &message, flags);
  count_flagged(slot, flags, sent);
  return sent;
}

static napi_value zt_frames_stream(napi_env napi, napi_callback_info info) {
  struct iovec entries[ENTRIES_MAX];
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_UINT(call, 7, skip);
  ARG_INT(call, 8, flags);
  BATCH(call, batch);
  SLOT(call, fd, slot);
  LOOKUP(lookup, call.env);
  struct list list = {.entries = entries, .room = ENTRIES_MAX, .skip = skip, .bytes_max = STREAM_BYTES_MAX};
  for (uint32_t i = batch.from; i < batch.count; i++) {
    struct list before = list;
    int error = list_add_frame(&list, &batch, i, &lookup);
    if (error == ENOSPC) break; /* what is in goes */
    if (error == 0) continue;
    record_of(&batch, i)->status = (uint32_t)error;
    list = before; /* a frame goes whole or not at all */
    if (list.bytes == 0) return number(&call, -error);
    break;
  }
  if (list.bytes == 0) return number(&call, 0);
  return outcome(&call, send_list(fd, slot, &list, flags));
}

/* --- receiving --- */

/* Frame `i` is all head, in its slot. */
static struct record *record_received(const struct table *table, uint32_t i, size_t bytes, bool whole) {
  struct record *record = &table->records[i];
  *record = (struct record){.head_at = slot_at(table, i),
                            .head_bytes = (uint32_t)bytes,
                            .frame_bytes = (uint32_t)bytes,
                            .status = whole ? 0 : EMSGSIZE};
  return record;
}

static napi_value zt_frames_read(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_UINT(call, 2, max);
  ARG_UINT(call, 3, header_bytes);
  TABLE(call, 1, table);
  OURS(call, fd);
  if (header_bytes != 0 && header_bytes != 10 && header_bytes != VNET_BYTES_MAX) return number(&call, -EINVAL);
  size_t room = slot_room(&table);
  uint32_t i = 0;
  for (; i < max && i < table.frames; i++) {
    uint32_t vnet[3] = {0};
    struct iovec entries[] = {{vnet, header_bytes}, {table.memory + slot_at(&table, i), room}};
    ssize_t got = readv(fd, entries, 2);
    if (got < 0 && i == 0) return number(&call, -errno);
    if (got <= 0) break;
    size_t bytes = (size_t)got > header_bytes ? (size_t)got - header_bytes : 0;
    /* What is longer was cut, and the kernel does not say so: a full slot has to count as cut. */
    struct record *record = record_received(&table, i, bytes, bytes >= FRAME_BYTES_MIN && bytes < room);
    for (int word = 0; word < 3; word++) record->vnet[word] = le32toh(vnet[word]);
  }
  return number(&call, i);
}

static napi_value zt_frames_recvmmsg(napi_env napi, napi_callback_info info) {
  struct mmsghdr messages[MESSAGES_MAX];
  struct iovec entries[MESSAGES_MAX][2];
  CALL(call);
  ARG_INT(call, 0, fd);
  ARG_UINT(call, 2, max);
  ARG_UINT(call, 4, prefix_bytes);
  TABLE(call, 1, table);
  ARG_BYTES(call, 3, prefixes);
  ARG_BYTES(call, 5, addresses);
  OURS(call, fd);
  if (max > MESSAGES_MAX) max = MESSAGES_MAX;
  if (max > table.frames) max = table.frames;
  if ((uint64_t)max * prefix_bytes > prefixes.length) return number(&call, -EINVAL);
  if (addresses.length > 0 && addresses.length < (size_t)max * ADDRESS_BYTES) return number(&call, -EINVAL);
  memset(messages, 0, max * sizeof *messages);
  for (uint32_t i = 0; i < max; i++) {
    entries[i][0] = (struct iovec){prefixes.data + (size_t)i * prefix_bytes, prefix_bytes};
    entries[i][1] = (struct iovec){table.memory + slot_at(&table, i), slot_room(&table)};
    messages[i].msg_hdr = (struct msghdr){.msg_iov = entries[i], .msg_iovlen = 2};
    if (addresses.length == 0) continue;
    messages[i].msg_hdr.msg_name = addresses.data + (size_t)i * ADDRESS_BYTES;
    messages[i].msg_hdr.msg_namelen = ADDRESS_BYTES;
  }
  int got = recvmmsg(fd, messages, max, MSG_DONTWAIT, NULL);
  for (int i = 0; i < got; i++) {
    size_t bytes = messages[i].msg_len > prefix_bytes ? messages[i].msg_len - prefix_bytes : 0;
    bool cut = (messages[i].msg_hdr.msg_flags & MSG_TRUNC) != 0;
    record_received(&table, (uint32_t)i, bytes, bytes >= FRAME_BYTES_MIN && !cut);
  }
  return outcome(&call, got);
}

const struct export frames_io_exports[] = {
    {"framesWrite", zt_frames_write},
    {"framesSendmmsg", zt_frames_sendmmsg},
    {"framesGso", zt_frames_gso},
    {"framesStream", zt_frames_stream},
    {"framesRead", zt_frames_read},
    {"framesRecvmmsg", zt_frames_recvmmsg},
    {NULL, NULL},
};
