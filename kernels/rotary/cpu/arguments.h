#pragma once

#include "../../common/cpu/operator.h"

namespace day0 {

// Query or key: (tokens, heads, head size) by strides of the input and the output.
template <typename T>
struct Heads {
  const T* in;
  T* out;
  int64_t heads, token_stride, head_stride, out_token_stride, out_head_stride;
};

template <typename T, typename C>
struct Rotation {
  Heads<T> query, key;
  const int64_t* positions;
  const C* cos_sin;
  int64_t position_stride, cos_sin_stride, size, rotary;
  bool interleaved;
  Write write;
};

}  // namespace day0
