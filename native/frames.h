/*
 * Frame tables as src/core/frames.ts lays them out: records, segments and heads in one piece of JavaScript's memory.
 *
 * The table is written by our own TypeScript, and guests have no access to it; still nothing in it is believed: every
 * index and offset is compared with the table's own bounds when it is used, so that a mistake there is an error here, and
 * never a write somewhere else. Guest memory is only copied from and to; no length and no address is read from it.
 */
#ifndef ZEROTX_FRAMES_H
#define ZEROTX_FRAMES_H

#include <string.h>

#include "space.h"

#define HEADROOM_BYTES 64
#define ADDRESS_LIMIT 9007199254740992.0 /* 2^53: up to here a float64 is exact */
#define FRAME_BYTES_MIN 14               /* an Ethernet header: less is no frame to tap and macvtap either */
#define FRAME_BYTES_MAX (65562 + 4)      /* what a receive buffer must hold (virtio 1.2, 5.1.6.3.1), and a VLAN tag */

/* As FRAME_WORDS, HEAD_AT, ... there. */
struct record {
  uint32_t head_at, head_bytes;
  uint32_t tail_start, tail_count;
  uint32_t frame_bytes;
  uint32_t vnet[3]; /* struct virtio_net_hdr_v1, 12 bytes, as numbers */
  uint32_t status;
  uint32_t slot;
  uint32_t vlan;
  uint32_t spare;
};

struct segment {
  double address;
  uint32_t bytes;
  uint32_t space;
};

struct table {
  uint8_t *memory;
  size_t length;
  uint32_t frames, segments;
  struct record *records;
  struct segment *segment;
  uint32_t heads_at, slot_bytes;
};

/* Reads the layout; false unless everything that it names is inside, and nothing is there twice. */
bool table_open(struct bytes bytes, struct table *table);

/* The table at an index of the arguments, or -EINVAL to JavaScript. */
#define TABLE(call, index, name)           \
  ARG_BYTES(call, index, name##_bytes);    \
  struct table name;                       \
  if (!table_open(name##_bytes, &name)) return number(&(call), -EINVAL)

/* Where the head of frame `i` goes, and how much room it has. */
static inline uint32_t slot_at(const struct table *table, uint32_t i) {
  return table->heads_at + i * table->slot_bytes + HEADROOM_BYTES;
}
static inline uint32_t slot_room(const struct table *table) {
  return table->slot_bytes - HEADROOM_BYTES;
}

/* --- a frame's bytes, as pieces of memory one after the other; inline, because this is most of what a frame costs --- */

struct pieces {
  struct lookup *lookup;
  const struct segment *segment, *end; /* those not begun yet */
  uint64_t address, rest;              /* of the one that was begun */
  uint32_t space;
  uint8_t *at; /* the piece; those who take bytes from it move it on */
  size_t left;
  bool failed; /* a segment, or part of it, is outside of its space */
};

/* The segments from `start` on; false when the table has not got them. */
static inline bool pieces_of_segments(const struct table *table, uint32_t start, uint32_t count,
                                      struct lookup *lookup, struct pieces *pieces) {
  if (start > table->segments || count > table->segments - start) return false;
  const struct segment *segment = table->segment + start;
  *pieces = (struct pieces){.lookup = lookup, .segment = segment, .end = segment + count};
  return true;
}

/* A whole frame: its head and its tail; false when the table has not got what the record names. */
static inline bool pieces_of_frame(const struct table *table, const struct record *record, struct lookup *lookup,
                                   struct pieces *pieces) {
  if (record->head_at > table->length || record->head_bytes > table->length - record->head_at) return false;
  /* without a tail, where it would start means nothing */
  if (!pieces_of_segments(table, record->tail_count == 0 ? 0 : record->tail_start, record->tail_count, lookup, pieces))
    return false;
  pieces->at = table->memory + record->head_at;
  pieces->left = record->head_bytes;
  return true;
}

/* Looks for the next piece; false at the end, and when `failed`. */
static inline bool pieces_refill(struct pieces *pieces) {
  if (pieces->failed) return false;
  while (pieces->rest == 0) {
    if (pieces->segment == pieces->end) return false;
    const struct segment *segment = pieces->segment++;
    /* the comparison is false for NaN, too */
    bool valid = segment->address >= 0 && segment->address < ADDRESS_LIMIT;
    pieces->address = valid ? (uint64_t)segment->address : UINT64_MAX;
    pieces->rest = segment->bytes;
    pieces->space = segment->space;
  }
  uint64_t bytes = pieces->rest;
  uint8_t *at = lookup_address(pieces->lookup, pieces->space, pieces->address, &bytes);
  if (at == NULL) {
    pieces->failed = true;
    return false;
  }
  pieces->address += bytes;
  pieces->rest -= bytes;
  pieces->at = at;
  pieces->left = bytes;
  return true;
}

/* Whether there is a byte left, which is then at `at`. */
static inline bool pieces_more(struct pieces *pieces) {
  return pieces->left > 0 || pieces_refill(pieces);
}

/* Copies up to `bytes` to `out`; less only at the end or on failure. */
static inline size_t pieces_read(struct pieces *pieces, uint8_t *out, size_t bytes) {
  size_t done = 0;
  while (done < bytes && pieces_more(pieces)) {
    size_t part = bytes - done < pieces->left ? bytes - done : pieces->left;
    memcpy(out + done, pieces->at, part);
    pieces->at += part;
    pieces->left -= part;
    done += part;
  }
  return done;
}

/* Bytes of segments, whether they exist or not. */
static inline uint64_t segments_bytes(const struct segment *segments, uint32_t count) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < count; i++) sum += segments[i].bytes;
  return sum;
}

#endif
