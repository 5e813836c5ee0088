// Residual + RMSNorm for the CPU, in torch's stable ABI: each row is read once, kept in float32 in the cache, and both
// outputs are written once.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

using torch::headeronly::BFloat16;
using torch::headeronly::Half;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

namespace {

template <class T>
struct Rows {
  const T *x, *residual, *weight;
  T *normed, *total;
  int64_t hidden, x_stride, residual_stride;
  double eps;
};

namespace plain {
#include "rows.inc"
}

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace avx2 {
#include "rows.inc"
}
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,prefer-vector-width=512")
namespace avx512 {
#include "rows.inc"
}
#pragma GCC pop_options
#endif

template <class T>
using Kernel = void (*)(const Rows<T>&, int64_t, int64_t);

template <class T>
Kernel<T> best() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return avx512::rows<T>;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return avx2::rows<T>;
  }
#endif
  return plain::rows<T>;
}

// Rows that lie one after another at any distance are read where they are; anything else is copied first.
Tensor by_rows(const Tensor& tensor, int64_t hidden) {
  return torch::stable::reshape(tensor, {-1, hidden});
}

Tensor dense_rows(Tensor tensor) {
  return tensor.numel() == 0 || tensor.stride(1) == 1 || tensor.size(1) == 1 ? tensor : torch::stable::contiguous(tensor);
}

template <class T>
void typed(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps, Tensor& normed, Tensor& total) {
  const int64_t hidden = x.size(1);
  Rows<T> of{
      static_cast<const T*>(x.const_data_ptr()),
      static_cast<const T*>(residual.const_data_ptr()),
      static_cast<const T*>(weight.const_data_ptr()),
      static_cast<T*>(normed.mutable_data_ptr()),
      static_cast<T*>(total.mutable_data_ptr()),
      hidden,
      x.stride(0),
      residual.stride(0),
      eps};
  const Kernel<T> kernel = best<T>();
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, hidden));
  torch::stable::parallel_for(0, x.size(0), grain, [&](int64_t begin, int64_t end) { kernel(of, begin, end); });
}

void fused_add_rms_norm_out(Tensor x, Tensor residual, Tensor weight, double eps, Tensor normed, Tensor total) {
  STD_TORCH_CHECK(x.dim() >= 1, "fused_add_rms_norm: x has no dimension");
  const int64_t hidden = x.size(x.dim() - 1);
  STD_TORCH_CHECK(weight.dim() == 1 && weight.size(0) == hidden, "fused_add_rms_norm: weight is not as long as a row");
  STD_TORCH_CHECK(residual.dim() == x.dim(), "fused_add_rms_norm: residual and x differ in shape");
  for (int64_t axis = 0; axis < x.dim(); ++axis) {
    STD_TORCH_CHECK(
        residual.size(axis) == x.size(axis) && normed.size(axis) == x.size(axis) && total.size(axis) == x.size(axis),
        "fused_add_rms_norm: residual or an output differs from x in shape");
  }
  STD_TORCH_CHECK(
      residual.scalar_type() == x.scalar_type() && weight.scalar_type() == x.scalar_type() &&
          normed.scalar_type() == x.scalar_type() && total.scalar_type() == x.scalar_type(),
      "fused_add_rms_norm: one dtype for all tensors");
  STD_TORCH_CHECK(normed.is_contiguous() && total.is_contiguous(), "fused_add_rms_norm: outputs must be contiguous");
  if (x.numel() == 0) {
    return;
  }
  Tensor rows = dense_rows(by_rows(x, hidden));
  Tensor added = dense_rows(by_rows(residual, hidden));
  Tensor scale = torch::stable::contiguous(weight);
  switch (x.scalar_type()) {
    case ScalarType::Float:
      return typed<float>(rows, added, scale, eps, normed, total);
    case ScalarType::BFloat16:
      return typed<BFloat16>(rows, added, scale, eps, normed, total);
    case ScalarType::Half:
      return typed<Half>(rows, added, scale, eps, normed, total);
    default:
      STD_TORCH_CHECK(false, "fused_add_rms_norm: float32, bfloat16 or float16");
  }
}

std::tuple<Tensor, Tensor> fused_add_rms_norm(Tensor x, Tensor residual, Tensor weight, double eps) {
  Tensor normed = torch::stable::new_empty(x, x.sizes());
  Tensor total = torch::stable::new_empty(x, x.sizes());
  fused_add_rms_norm_out(x, residual, weight, eps, normed, total);
  return {normed, total};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(day0, CPU, library) {
  library.impl("fused_add_rms_norm", TORCH_BOX(&fused_add_rms_norm));
  library.impl("fused_add_rms_norm.out", TORCH_BOX(&fused_add_rms_norm_out));
}
