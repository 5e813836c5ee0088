// What every operator's C++ needs beside its loops: checks of what is passed, threads, and choosing by dtype.
// Written against torch's stable ABI (torch/csrc/stable), so that one build serves torch 2.10 and later and compiles quickly.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "instruction_set.h"

#if DAY0_X86
#include <cpuid.h>
#endif

namespace day0 {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline const char* dtype_name(ScalarType dtype) { return torch::headeronly::toString(dtype); }

inline std::string shape(const Tensor& tensor) {
  std::string text = "(";
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    text += (d ? ", " : "") + std::to_string(tensor.size(d));
  }
  return text + ")";
}

inline void check_cpu(const char* op, const char* name, const Tensor& tensor) {
  STD_TORCH_CHECK(tensor.is_cpu(), op, ": ", name, " must be on the CPU");
}

inline void check_dtype(const char* op, const char* name, const Tensor& tensor, ScalarType dtype) {
  STD_TORCH_CHECK(tensor.scalar_type() == dtype, op, ": ", name, " must be ", dtype_name(dtype), ", got ", dtype_name(tensor.scalar_type()));
}

inline void check_dims(const char* op, const char* name, const Tensor& tensor, int64_t dims) {
  check_cpu(op, name, tensor);
  STD_TORCH_CHECK(tensor.dim() == dims, op, ": ", name, " must have ", dims, " dimensions, got shape ", shape(tensor));
}

// The loops read vectors along the last dimension: the tensor itself where those numbers lie side by side, else a copy.
inline Tensor with_rows(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  return tensor.numel() == 0 || tensor.size(last) == 1 || tensor.stride(last) == 1 ? tensor : torch::stable::contiguous(tensor);
}

inline void check_out(const char* op, const char* name, const Tensor& tensor) {
  check_cpu(op, name, tensor);
  STD_TORCH_CHECK(tensor.is_contiguous(), op, ": ", name, " must be contiguous");
}

inline void check_shape(const char* op, const char* name, const Tensor& tensor, const std::vector<int64_t>& sizes) {
  bool same = tensor.dim() == static_cast<int64_t>(sizes.size());
  std::string wanted = "(";
  for (size_t d = 0; d < sizes.size(); ++d) {
    same = same && tensor.size(static_cast<int64_t>(d)) == sizes[d];
    wanted += (d ? ", " : "") + std::to_string(sizes[d]);
  }
  STD_TORCH_CHECK(same, op, ": ", name, " must have shape ", wanted, "), got ", shape(tensor));
}

inline Tensor empty(const Tensor& like, const std::vector<int64_t>& sizes, ScalarType dtype) {
  return torch::stable::new_empty(like, sizes, dtype);
}

#if DAY0_X86
// Bytes of the last-level cache that a core can use, 8 MiB at least. Not sysconf's, which was seen to give the sum of all dies of an AMD
// socket (glibc 2.36: 320 MiB of 32).
inline int64_t last_cache() {
  int64_t most = 8 << 20;
  for (unsigned leaf : {0x8000001du, 4u}) {  // AMD's leaf and Intel's, of one form; each gives nothing on the other's
    unsigned a, b, c, d;
    for (unsigned index = 0; index < 8 && __get_cpuid_count(leaf, index, &a, &b, &c, &d) && (a & 31) != 0; ++index) {
      const int64_t ways = (b >> 22) + 1, partitions = ((b >> 12) & 0x3ff) + 1, line = (b & 0xfff) + 1, sets = static_cast<int64_t>(c) + 1;
      most = std::max(most, ways * partitions * line * sets);
    }
  }
  return most;
}
#endif

// Streaming stores pay once the output no longer fits in the last-level cache beside what is read.
inline Write write_mode(int64_t bytes) {
#if DAY0_X86
  static const int64_t cache = last_cache();
  return bytes > cache / 2 ? Write::streaming : Write::cached;
#else
  (void)bytes;
  return Write::cached;
#endif
}

// And they need whole, aligned vectors: each row's start must be a multiple of 64 bytes.
inline Write write_mode(const Tensor& out, int64_t row_bytes) {
  const bool aligned = reinterpret_cast<uintptr_t>(out.data_ptr()) % 64 == 0 && row_bytes % 64 == 0;
  return aligned ? write_mode(out.numel() * static_cast<int64_t>(out.element_size())) : Write::cached;
}

// Calls function(begin, end) over [0, count) on torch's threads, so that torch.set_num_threads holds; `work` is the number of
// elements of one item: below about 16 thousand elements a second thread costs more than it saves.
template <typename Function>
void parallel(int64_t count, int64_t work, const Function& function) {
  if (count > 0) {
    torch::stable::parallel_for(0, count, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, work)), function);
  }
}

// Runs the statement with `scalar_t` as the tensor's element type.
#define DAY0_FLOATS(op, dtype, ...)                                                                     \
  switch (dtype) {                                                                                      \
    case ::day0::ScalarType::Float: { using scalar_t = float; __VA_ARGS__; break; }                     \
    case ::day0::ScalarType::BFloat16: { using scalar_t = ::day0::BFloat16; __VA_ARGS__; break; }       \
    case ::day0::ScalarType::Half: { using scalar_t = ::day0::Half; __VA_ARGS__; break; }               \
    default: STD_TORCH_CHECK(false, op, ": dtype must be float32, bfloat16 or float16, got ", ::day0::dtype_name(dtype)); \
  }

}  // namespace day0
