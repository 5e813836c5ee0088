#pragma once

#include "../../common/cpu/operator.h"

namespace day0 {

// Keys or values (tokens, heads, head size) and their cache (blocks, block size, heads, head size). The scale is of one head, or of all
// with a stride of 0. Only the cache's last stride may be other than 1.
struct Entries {
  const void* in;
  void* cache;
  const float* scale;
  int64_t heads, size, token_stride, head_stride, block_stride, slot_stride, cache_head_stride, cache_stride, scale_stride;
};

struct CacheWrite {
  Entries key, value;
  const int64_t* slots;
  int64_t slots_stride, block_size;
  Write write;
};

}  // namespace day0
