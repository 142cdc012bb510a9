/*
 * Frames between guests and tables, by copying: what is looked at (peek), what goes to another guest (deliver), what
 * is wanted in one piece (gather), and what is only to be read (checksum).
 *
 * A failed copy says so in the frame's status; it never stops those after it. A file that was truncated under us reads
 * as zeros and swallows writes (sigbus.c): the frame is copied, and the space is poisoned.
 */
#include "frames.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

static size_t least(size_t a, size_t b) {
  return a < b ? a : b;
}

/* --- peek --- */

/* Whether all of the segments are in their spaces. */
static bool exist(const struct segment *segments, uint32_t count, struct lookup *lookup) {
  struct pieces pieces = {.lookup = lookup, .segment = segments, .end = segments + count};
  while (pieces_refill(&pieces)) continue;
  return !pieces.failed;
}

/* Takes `bytes`, which are there, off the front of the tail. */
static void trim(const struct table *table, struct record *record, uint64_t bytes) {
  uint32_t start = record->tail_start, end = start + record->tail_count;
  while (start < end && table->segment[start].bytes <= bytes) bytes -= table->segment[start++].bytes;
  record->tail_start = start;
  record->tail_count = end - start;
  if (start == end) return;
  table->segment[start].address += (double)bytes;
  table->segment[start].bytes -= (uint32_t)bytes;
}

/* 0, and the record is complete, or an errno. */
static uint32_t peek(const struct table *table, uint32_t i, size_t header_bytes, size_t head_max,
                     struct lookup *lookup) {
  struct record *record = &table->records[i];
  struct pieces pieces;
  if (!pieces_of_segments(table, record->tail_start, record->tail_count, lookup, &pieces)) return EINVAL;
  uint64_t bytes = segments_bytes(pieces.segment, record->tail_count);
  if (bytes < header_bytes + FRAME_BYTES_MIN || bytes - header_bytes > FRAME_BYTES_MAX) return EMSGSIZE;
  if (!exist(pieces.segment, record->tail_count, lookup)) return EFAULT;
  uint32_t vnet[3] = {0};
  pieces_read(&pieces, (uint8_t *)vnet, header_bytes);
  for (int word = 0; word < 3; word++) record->vnet[word] = le32toh(vnet[word]);
  size_t head = least(head_max, bytes - header_bytes);
  record->head_at = slot_at(table, i);
  record->head_bytes = (uint32_t)pieces_read(&pieces, table->memory + record->head_at, head);
  record->frame_bytes = (uint32_t)(bytes - header_bytes);
  if (head == record->frame_bytes) record->tail_count = 0;
  else trim(table, record, header_bytes + head);
  return 0;
}

static napi_value zt_frames_peek(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_UINT(call, 1, count);
  ARG_UINT(call, 2, header_bytes);
  ARG_UINT(call, 3, head_max);
  TABLE(call, 0, table);
  if (count > table.frames || (header_bytes != 0 && header_bytes != 10 && header_bytes != 12))
    return number(&call, -EINVAL);
  LOOKUP(lookup, call.env);
  size_t room = least(head_max, slot_room(&table));
  uint32_t good = 0;
  for (uint32_t i = 0; i < count; i++) {
    struct record *record = &table.records[i];
    record->status = peek(&table, i, header_bytes, room, &lookup);
    if (record->status == 0) {
      good++;
      continue;
    }
    /* nobody can send what is not there by mistake */
    record->head_bytes = record->tail_count = record->frame_bytes = 0;
  }
  return number(&call, good);
}

/* --- deliver --- */

/* Copies `bytes` from `from` into the pieces of `to`; false when these end before. */
static bool fill(struct pieces *to, const uint8_t *from, size_t bytes) {
  for (size_t done = 0, part; done < bytes; done += part) {
    if (!pieces_more(to)) return false;
    part = least(bytes - done, to->left);
    /* The two may be the same memory: guests choose both addresses. */
    memmove(to->at, from + done, part);
    to->at += part;
    to->left -= part;
  }
  return true;
}

static uint32_t deliver(const struct table *source, const struct table *target, struct record *record,
                        struct lookup *lookups) {
  struct pieces from, to;
  if (record->slot >= source->frames) return EINVAL;
  const struct record *frame = &source->records[record->slot];
  if (!pieces_of_frame(source, frame, &lookups[0], &from) || record->head_at > target->length ||
      record->head_bytes > target->length - record->head_at ||
      !pieces_of_segments(target, record->tail_start, record->tail_count, &lookups[1], &to))
    return EINVAL;
  uint64_t bytes = record->head_bytes + (uint64_t)frame->head_bytes + segments_bytes(from.segment, frame->tail_count);
  if (segments_bytes(to.segment, record->tail_count) < bytes) return EMSGSIZE;
  if (!fill(&to, target->memory + record->head_at, record->head_bytes)) return EFAULT;
  while (pieces_more(&from)) {
    if (!fill(&to, from.at, from.left)) return EFAULT;
    from.left = 0;
  }
  return from.failed ? EFAULT : 0;
}

static napi_value zt_frames_deliver(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_UINT(call, 2, count);
  TABLE(call, 0, source);
  TABLE(call, 1, target);
  if (count > target.frames) return number(&call, -EINVAL);
  struct lookup lookups[] = {{call.env, 0, &no_region}, {call.env, 0, &no_region}};
  uint32_t good = 0;
  for (uint32_t i = 0; i < count; i++) {
    struct record *record = &target.records[i];
    record->status = deliver(&source, &target, record, lookups);
    if (record->status == 0) good++;
  }
  return number(&call, good);
}

/* --- gather and checksum --- */

static napi_value zt_frames_gather(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_UINT(call, 1, frame);
  TABLE(call, 0, table);
  ARG_BYTES(call, 2, out);
  LOOKUP(lookup, call.env);
  struct pieces pieces;
  if (frame >= table.frames || !pieces_of_frame(&table, &table.records[frame], &lookup, &pieces))
    return number(&call, -EINVAL);
  size_t bytes = pieces_read(&pieces, out.data, out.length);
  if (pieces.failed) return number(&call, -EFAULT);
  return number(&call, pieces_more(&pieces) ? -EMSGSIZE : pieces.failed ? -EFAULT : (int64_t)bytes);
}

/* Bytes added up, eight at a time: four lanes of 16 bits each for the even and the odd ones. */
static uint32_t sum(const uint8_t *at, size_t bytes) {
  const uint64_t even = 0x00ff00ff00ff00ff;
  uint32_t total = 0;
  while (bytes >= 8) {
    size_t words = least(bytes / 8, 128); /* 128 x 510 fits in 16 bits */
    uint64_t lanes = 0;
    for (size_t i = 0; i < words; i++) {
      uint64_t word;
      memcpy(&word, at + 8 * i, sizeof word);
      lanes += (word & even) + (word >> 8 & even);
    }
    for (int shift = 0; shift < 64; shift += 16) total += lanes >> shift & 0xffff;
    at += 8 * words;
    bytes -= 8 * words;
  }
  while (bytes-- > 0) total += *at++;
  return total;
}

static napi_value zt_frames_checksum(napi_env napi, napi_callback_info info) {
  CALL(call);
  ARG_UINT(call, 2, count);
  TABLE(call, 0, table);
  ARG_WORDS(call, 1, which);
  if (count > which.length) return number(&call, -EINVAL);
  LOOKUP(lookup, call.env);
  uint32_t total = 0;
  for (uint32_t i = 0; i < count; i++) {
    struct pieces pieces;
    if (which.data[i] >= table.frames) return number(&call, -EINVAL);
    struct record *record = &table.records[which.data[i]];
    record->status = EINVAL;
    if (!pieces_of_frame(&table, record, &lookup, &pieces)) continue;
    for (; pieces_more(&pieces); pieces.left = 0) total += sum(pieces.at, pieces.left);
    record->status = pieces.failed ? EFAULT : 0;
  }
  return number(&call, total);
}

const struct export frames_copy_exports[] = {
    {"framesPeek", zt_frames_peek},
    {"framesDeliver", zt_frames_deliver},
    {"framesGather", zt_frames_gather},
    {"framesChecksum", zt_frames_checksum},
    {NULL, NULL},
};
