// The element types, and the instruction set that kernels run with.
#pragma once

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Float8_e4m3fn.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DAY0_X86 1
#include <immintrin.h>
#else
#define DAY0_X86 0
#endif

namespace day0 {

using torch::headeronly::BFloat16;
using torch::headeronly::Float8_e4m3fn;
using torch::headeronly::Half;

// How output is written. Streaming stores go past the caches: a store to a line that is not cached otherwise reads it first,
// which is up to half of the traffic of a kernel that writes as much as it reads. Worth it only for outputs larger than the caches.
enum class Write { cached, streaming };

enum class InstructionSet { portable, avx2, avx512, avx512_bf16 };

// The best set of this machine; DAY0_CPU_ISA=portable|avx2|avx512|avx512_bf16 lowers it (for tests; never raises it).
inline InstructionSet instruction_set() {
  InstructionSet best = InstructionSet::portable;
#if DAY0_X86
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    best = InstructionSet::avx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      best = __builtin_cpu_supports("avx512bf16") ? InstructionSet::avx512_bf16 : InstructionSet::avx512;
    }
  }
#endif
  if (const char* wanted = std::getenv("DAY0_CPU_ISA")) {
    const char* const names[] = {"portable", "avx2", "avx512", "avx512_bf16"};
    for (int set = 0; set < 4; ++set) {
      if (std::strcmp(wanted, names[set]) == 0) {
        best = std::min(best, static_cast<InstructionSet>(set));
      }
    }
  }
  return best;
}

}  // namespace day0
