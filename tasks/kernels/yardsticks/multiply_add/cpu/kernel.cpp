// Products of pairs, added in float32 in 24 registers, on torch's threads: dot products of bfloat16 where the machine has them, else two
// fused multiplications and additions each.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

using torch::stable::Tensor;

namespace {

constexpr int kRegisters = 24;
constexpr int64_t kRow = kRegisters * 16;

void plain(const float* from, float* to, int64_t steps) {
  for (int64_t i = 0; i < kRow; ++i) {
    to[i] = from[i];
  }
  volatile const float one = 1.0f;  // else the compiler computes the sum
  const float a = one, b = one;
  for (int64_t step = 0; step < 2 * steps; ++step) {
    for (int64_t i = 0; i < kRow; ++i) {
      to[i] += a * b;
    }
  }
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target("avx512f"))) void fused(const float* from, float* to, int64_t steps) {
  __m512 sums[kRegisters], a = _mm512_set1_ps(1.0f), b = a;
  asm volatile("" : "+v"(a), "+v"(b));
  for (int i = 0; i < kRegisters; ++i) {
    sums[i] = _mm512_loadu_ps(from + i * 16);
  }
  for (int64_t step = 0; step < 2 * steps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < kRegisters; ++i) {
      sums[i] = _mm512_fmadd_ps(a, b, sums[i]);
    }
  }
  for (int i = 0; i < kRegisters; ++i) {
    _mm512_storeu_ps(to + i * 16, sums[i]);
  }
}

__attribute__((target("avx512f,avx512bf16"))) void dots(const float* from, float* to, int64_t steps) {
  __m512 sums[kRegisters];
  __m512i a = _mm512_set1_epi16(0x3f80), b = a;  // ones
  asm volatile("" : "+v"(a), "+v"(b));
  for (int i = 0; i < kRegisters; ++i) {
    sums[i] = _mm512_loadu_ps(from + i * 16);
  }
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 24
    for (int i = 0; i < kRegisters; ++i) {
      sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)a, (__m512bh)b);
    }
  }
  for (int i = 0; i < kRegisters; ++i) {
    _mm512_storeu_ps(to + i * 16, sums[i]);
  }
}
#endif

auto* fastest() {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  if (__builtin_cpu_supports("avx512bf16")) {
    return &dots;
  }
  if (__builtin_cpu_supports("avx512f")) {
    return &fused;
  }
#endif
  return &plain;
}

void multiply_add_out(Tensor x, int64_t steps, Tensor out) {
  STD_TORCH_CHECK(x.is_cpu() && out.is_cpu() && x.dim() == 2 && x.size(1) == kRow, "multiply_add: x must be (rows, ", kRow, ") on the CPU");
  STD_TORCH_CHECK(out.is_contiguous() && out.numel() == x.numel() && out.scalar_type() == x.scalar_type(), "multiply_add: out must be contiguous, of x's size and dtype");
  x = torch::stable::contiguous(x);
  const float* const from = static_cast<const float*>(x.data_ptr());
  float* const to = static_cast<float*>(out.data_ptr());
  const auto run = fastest();
  torch::stable::parallel_for(0, x.size(0), 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      run(from + row * kRow, to + row * kRow, steps);
    }
  });
}

Tensor multiply_add(Tensor x, int64_t steps) {
  Tensor out = torch::stable::new_empty(x, x.sizes());
  multiply_add_out(x, steps, out);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(day0, CPU, library) {
  library.impl("multiply_add", TORCH_BOX(&multiply_add));
  library.impl("multiply_add.out", TORCH_BOX(&multiply_add_out));
}
