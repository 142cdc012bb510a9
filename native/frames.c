/*
 * Frame tables: reading the layout.
 */
#include "frames.h"

#define LAYOUT_WORDS 5
#define LAYOUT_BYTES 64

bool table_open(struct bytes bytes, struct table *table) {
  uint32_t layout[LAYOUT_WORDS];
  if (bytes.length < LAYOUT_BYTES || (uintptr_t)bytes.data % sizeof(double) != 0) return false;
  memcpy(layout, bytes.data, sizeof layout);
  uint32_t frames = layout[0], segments = layout[1], segments_at = layout[2], heads_at = layout[3];
  uint32_t slot_bytes = layout[4];
  uint64_t records_end = LAYOUT_BYTES + (uint64_t)frames * sizeof(struct record);
  uint64_t segments_end = segments_at + (uint64_t)segments * sizeof(struct segment);
  uint64_t heads_end = heads_at + (uint64_t)frames * slot_bytes;
  /* One after the other: a frame that is copied to its slot must not change what was checked. */
  if (records_end > segments_at || segments_end > heads_at || heads_end > bytes.length || bytes.length > UINT32_MAX ||
      segments_at % sizeof(double) != 0 || slot_bytes < HEADROOM_BYTES)
    return false;
  *table = (struct table){.memory = bytes.data,
                          .length = bytes.length,
                          .frames = frames,
                          .segments = segments,
                          .records = (struct record *)(void *)(bytes.data + LAYOUT_BYTES),
                          .segment = (struct segment *)(void *)(bytes.data + segments_at),
                          .heads_at = heads_at,
                          .slot_bytes = slot_bytes};
  return true;
}
