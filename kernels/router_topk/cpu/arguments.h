#pragma once

#include "../../common/cpu/operator.h"

namespace day0 {

template <typename T>
struct Router {
  const T* logits;    // (tokens, experts)
  const float* bias;  // (experts), or null
  float* weights;     // (tokens, k)
  int32_t* ids;       // (tokens, k)
  int64_t experts, stride, k, groups, groups_kept;
  bool sigmoid, renormalise;
  float scale;
};

}  // namespace day0
