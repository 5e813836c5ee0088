// A copy for the CPU, on torch's threads. SSE2, which every x86-64 has: wider vectors were no faster.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

using torch::stable::Tensor;

namespace {

constexpr int64_t kPart = 1 << 16;  // bytes that a thread takes at least

// `out` is aligned to 64 bytes, and the bytes are whole lines but for the last.
void copy(char* out, const char* in, int64_t bytes) {
  int64_t at = 0;
#if defined(__x86_64__)
  for (; at + 64 <= bytes; at += 64) {
    for (int64_t i = at; i < at + 64; i += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
    }
  }
  _mm_sfence();
#endif
  std::memcpy(out + at, in + at, static_cast<size_t>(bytes - at));
}

void streaming_copy_out(Tensor x, Tensor out) {
  STD_TORCH_CHECK(x.is_cpu() && out.is_cpu(), "streaming_copy: both must be on the CPU");
  STD_TORCH_CHECK(out.is_contiguous() && out.numel() == x.numel() && out.scalar_type() == x.scalar_type(), "streaming_copy: out must be contiguous, of x's size and dtype");
  x = torch::stable::contiguous(x);
  const int64_t bytes = x.numel() * static_cast<int64_t>(x.element_size());
  char* const to = static_cast<char*>(out.data_ptr());
  const char* const from = static_cast<const char*>(x.data_ptr());
  if (reinterpret_cast<uintptr_t>(to) % 64 != 0) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  } else if (bytes > 0) {
    const auto parts = [&](int64_t begin, int64_t end) { copy(to + begin * kPart, from + begin * kPart, std::min(end * kPart, bytes) - begin * kPart); };
    torch::stable::parallel_for(0, (bytes + kPart - 1) / kPart, 1, parts);
  }
}

Tensor streaming_copy(Tensor x) {
  Tensor out = torch::stable::new_empty(x, x.sizes());
  streaming_copy_out(x, out);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(day0, CPU, library) {
  library.impl("streaming_copy", TORCH_BOX(&streaming_copy));
  library.impl("streaming_copy.out", TORCH_BOX(&streaming_copy_out));
}
