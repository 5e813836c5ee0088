#pragma once

#include "../../common/cpu/operator.h"

namespace day0 {

// Tokens of a sequence that are attended to at once; each piece's result is merged with the others' afterwards. Fixed, so that results
// are the same on any number of threads.
constexpr int64_t kPiece = 512;

struct Piece {
  int64_t sequence, begin, end;  // tokens
};

template <typename T, typename C>
struct Attention {
  const T* query;  // (sequences, query heads, key size), contiguous
  const C* keys;   // (blocks, block size, heads, key size) by strides
  const C* values;
  const int32_t* table;  // (sequences, blocks of a sequence), contiguous
  const float *key_scale, *value_scale;
  float* partial;  // for each piece and query head: the sums of weighted values, padded, then the largest score, then the sum of weights
  T* out;
  const Piece* pieces;
  const int64_t* first_piece;  // of each sequence, and one past the last
  int64_t heads, group, key_size, value_size, block_size, table_stride;
  int64_t key_strides[3], value_strides[3];  // of a block, a token, a head
  int64_t key_scale_stride, value_scale_stride;
  float scale, soft_cap;  // soft_cap: 0 where there is none

  int64_t partial_size() const { return (value_size + 15) / 16 * 16 + 2; }
};

}  // namespace day0
