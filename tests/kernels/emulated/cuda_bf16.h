// CUDA's 16-bit type on the CPU, see cuda_runtime.h.
#pragma once
#include <torch/headeronly/util/BFloat16.h>
using __nv_bfloat16 = torch::headeronly::BFloat16;
inline __nv_bfloat16 __float2bfloat16_rn(float v) { return __nv_bfloat16(v); }
