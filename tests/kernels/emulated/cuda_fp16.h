// CUDA's 16-bit type on the CPU, see cuda_runtime.h.
#pragma once
#include <torch/headeronly/util/Half.h>
using __half = torch::headeronly::Half;
inline __half __float2half_rn(float v) { return __half(v); }
