// Residual + RMSNorm for NVIDIA GPUs: one block a row. A row is read once, by loads of sixteen bytes, and stays in registers in
// float32 until both outputs are written.

#include "../../common/cuda/operator.h"

#include <tuple>

using namespace day0;

namespace {

constexpr const char* kOp = "fused_add_rms_norm";
constexpr unsigned kAll = 0xffffffffu;

template <typename T>
struct Rows {
  const T *x, *residual, *weight;
  T *normed, *total;
  int hidden;
  int64_t x_stride, residual_stride;
  float eps;
};

// The sum over a block, the same in each thread.
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float partial[32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value += __shfl_xor_sync(kAll, value, step);
  }
  if (blockDim.x <= 32) {
    return value;
  }
  const int lane = threadIdx.x % 32;
  if (lane == 0) {
    partial[threadIdx.x / 32] = value;
  }
  __syncthreads();
  value = lane < blockDim.x / 32 ? partial[lane] : 0.0f;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value += __shfl_xor_sync(kAll, value, step);
  }
  return value;
}

// kPacks vectors in each thread. The weight is asked for before the sum is known, so that it is there by then, as long as there
// are registers for it: a thread of 1024 has 64.
template <typename T, int kPacks, int kThreads>
__global__ void __launch_bounds__(kThreads) rows_in_registers(const Rows<T> of) {
  constexpr int kSize = Pack<T>::kSize;
  constexpr bool kEarly = kPacks <= 2;
  const int64_t row = blockIdx.x;
  const int packs = of.hidden / kSize;
  const auto* x = reinterpret_cast<const Pack<T>*>(of.x + row * of.x_stride);
  const auto* residual = reinterpret_cast<const Pack<T>*>(of.residual + row * of.residual_stride);
  const auto* weight = reinterpret_cast<const Pack<T>*>(of.weight);
  auto* normed = reinterpret_cast<Pack<T>*>(of.normed + row * of.hidden);
  auto* total = reinterpret_cast<Pack<T>*>(of.total + row * of.hidden);

  Pack<T> added[kPacks], to[kPacks], scale[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int at = threadIdx.x + p * blockDim.x;
    if (at < packs) {
      added[p] = load_once(x + at);
      to[p] = load_once(residual + at);
    }
  }
  float sums[kPacks][kSize];
  float squares = 0.0f;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int at = threadIdx.x + p * blockDim.x;
    if (at < packs) {
      if (kEarly) {
        scale[p] = load(weight + at);
      }
      Pack<T> rounded;
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        sums[p][i] = widen(added[p].of[i]) + widen(to[p].of[i]);
        squares += sums[p][i] * sums[p][i];
        rounded.of[i] = narrow<T>(sums[p][i]);
      }
      store(total + at, rounded);
    }
  }
  const float inverse = rsqrtf(block_sum(squares) / static_cast<float>(of.hidden) + of.eps);
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int at = threadIdx.x + p * blockDim.x;
    if (at < packs) {
      const Pack<T> factors = kEarly ? scale[p] : load(weight + at);
      Pack<T> rounded;
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        rounded.of[i] = narrow<T>(sums[p][i] * inverse * widen(factors.of[i]));
      }
      store(normed + at, rounded);
    }
  }
}

// Any length and alignment, number by number; the second reading finds the row in the cache.
template <typename T>
__global__ void __launch_bounds__(256) rows_read_twice(const Rows<T> of) {
  const int64_t row = blockIdx.x;
  const T* x = of.x + row * of.x_stride;
  const T* residual = of.residual + row * of.residual_stride;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < of.hidden; i += blockDim.x) {
    const float sum = widen(x[i]) + widen(residual[i]);
    squares += sum * sum;
  }
  const float inverse = rsqrtf(block_sum(squares) / static_cast<float>(of.hidden) + of.eps);
  for (int i = threadIdx.x; i < of.hidden; i += blockDim.x) {
    const float sum = widen(x[i]) + widen(residual[i]);
    of.total[row * of.hidden + i] = narrow<T>(sum);
    of.normed[row * of.hidden + i] = narrow<T>(sum * inverse * widen(of.weight[i]));
  }
}

template <typename T>
void launch(const Rows<T>& of, int64_t rows, cudaStream_t stream) {
  constexpr int kSize = Pack<T>::kSize;
  const int packs = of.hidden / kSize;
  const bool whole = of.hidden % kSize == 0 && aligned(of.x, of.x_stride * sizeof(T)) &&
                     aligned(of.residual, of.residual_stride * sizeof(T)) && aligned(of.weight) && aligned(of.normed) &&
                     aligned(of.total);
  const auto threads = [&](int per_thread) { return (packs + per_thread * 32 - 1) / (per_thread * 32) * 32; };
  const dim3 grid(static_cast<unsigned>(rows));
  if (!whole || packs > 4 * 1024) {
    rows_read_twice<T><<<grid, 256, 0, stream>>>(of);
  } else if (packs <= 2 * 512) {
    rows_in_registers<T, 2, 512><<<grid, threads(2), 0, stream>>>(of);
  } else if (packs <= 2 * 1024) {
    rows_in_registers<T, 2, 1024><<<grid, threads(2), 0, stream>>>(of);
  } else {
    rows_in_registers<T, 4, 1024><<<grid, threads(4), 0, stream>>>(of);
  }
  check_launch(kOp);
}

void fused_add_rms_norm_out(Tensor x, Tensor residual, Tensor weight, double eps, Tensor normed, Tensor total) {
  STD_TORCH_CHECK(x.dim() >= 1, kOp, ": x has no dimension");
  const int64_t hidden = x.size(x.dim() - 1);
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < x.dim(); ++d) {
    sizes.push_back(x.size(d));
  }
  check_shape(kOp, "residual", residual, sizes);
  check_shape(kOp, "weight", weight, {hidden});
  check_device(kOp, "x", x, x);
  check_device(kOp, "residual", residual, x);
  check_device(kOp, "weight", weight, x);
  check_dtype(kOp, "residual", residual, x.scalar_type());
  check_dtype(kOp, "weight", weight, x.scalar_type());
  for (const Tensor* out : {&normed, &total}) {
    check_out(kOp, "an output", *out, x);
    check_dtype(kOp, "an output", *out, x.scalar_type());
    check_shape(kOp, "an output", *out, sizes);
  }
  if (x.numel() == 0) {
    return;
  }
  const int64_t rows = x.numel() / hidden;
  STD_TORCH_CHECK(rows < (int64_t{1} << 31) && hidden < (int64_t{1} << 31), kOp, ": more rows, or longer ones, than a grid has");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Tensor from = with_rows(torch::stable::reshape(x, {-1, hidden}));
  const Tensor added = with_rows(torch::stable::reshape(residual, {-1, hidden}));
  const Tensor scale = torch::stable::contiguous(weight);
  const cudaStream_t stream = current_stream(kOp, x);
  DAY0_FLOATS(kOp, x.scalar_type(), {
    const Rows<scalar_t> of{
        static_cast<const scalar_t*>(from.const_data_ptr()), static_cast<const scalar_t*>(added.const_data_ptr()),
        static_cast<const scalar_t*>(scale.const_data_ptr()), static_cast<scalar_t*>(normed.mutable_data_ptr()),
        static_cast<scalar_t*>(total.mutable_data_ptr()), static_cast<int>(hidden), from.stride(0), added.stride(0),
        static_cast<float>(eps)};
    launch<scalar_t>(of, rows, stream);
  });
}

std::tuple<Tensor, Tensor> fused_add_rms_norm(Tensor x, Tensor residual, Tensor weight, double eps) {
  Tensor normed = torch::stable::new_empty(x, x.sizes());
  Tensor total = torch::stable::new_empty(x, x.sizes());
  fused_add_rms_norm_out(x, residual, weight, eps, normed, total);
  return {normed, total};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(day0, CUDA, library) {
  library.impl("fused_add_rms_norm", TORCH_BOX(&fused_add_rms_norm));
  library.impl("fused_add_rms_norm.out", TORCH_BOX(&fused_add_rms_norm_out));
}
