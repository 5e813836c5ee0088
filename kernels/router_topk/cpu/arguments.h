#pragma once

#include "../../common/cpu/operator.h"

namespace day0 {

enum class Scoring { softmax, sigmoid, sqrtsoftplus };

template <typename T>
struct Router {
  const T* logits;    // (tokens, experts)
  const float* bias;  // (experts), or null
  float* weights;     // (tokens, k)
  int32_t* ids;       // (tokens, k)
  int64_t experts, stride, k, groups, groups_kept;
  Scoring scoring;
  bool renormalise;
  float scale;
};

}  // namespace day0
