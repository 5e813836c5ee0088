// What every CUDA operator needs beside its kernels: checks of what is passed, the current device and stream, loads of 16
// bytes. Written against torch's stable ABI and the CUDA runtime alone.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <vector>

// In libtorch_cuda. Weak, so that the library also loads, and registers, in a torch that was built without CUDA.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);

namespace day0 {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline std::string shape(const Tensor& tensor) {
  std::string text = "(";
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    text += (d ? ", " : "") + std::to_string(tensor.size(d));
  }
  return text + ")";
}

inline void check_dtype(const char* op, const char* name, const Tensor& tensor, ScalarType dtype) {
  STD_TORCH_CHECK(tensor.scalar_type() == dtype, op, ": ", name, " must be ", torch::headeronly::toString(dtype), ", got ",
                  torch::headeronly::toString(tensor.scalar_type()));
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

// Every tensor lies on the device of the first, whose kernels are about to be launched.
inline void check_device(const char* op, const char* name, const Tensor& tensor, const Tensor& first) {
  STD_TORCH_CHECK(tensor.is_cuda() && tensor.get_device_index() == first.get_device_index(), op, ": ", name,
                  " must be on the device of the first tensor");
}

inline void check_out(const char* op, const char* name, const Tensor& tensor, const Tensor& first) {
  check_device(op, name, tensor, first);
  STD_TORCH_CHECK(tensor.is_contiguous(), op, ": ", name, " must be contiguous");
}

// Numbers of the last dimension side by side: the tensor itself where they are, else a copy.
inline Tensor with_rows(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  return tensor.numel() == 0 || tensor.size(last) == 1 || tensor.stride(last) == 1 ? tensor : torch::stable::contiguous(tensor);
}

inline cudaStream_t current_stream(const char* op, const Tensor& tensor) {
  void* stream = nullptr;
  STD_TORCH_CHECK(aoti_torch_get_current_cuda_stream != nullptr, op, ": this torch was built without CUDA");
  STD_TORCH_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream) == AOTI_TORCH_SUCCESS, op,
                  ": the current stream cannot be had");
  return static_cast<cudaStream_t>(stream);
}

inline void check_launch(const char* op) {
  const cudaError_t error = cudaGetLastError();
  STD_TORCH_CHECK(error == cudaSuccess, op, ": ", cudaGetErrorString(error));
}

inline bool aligned(const void* pointer, int64_t stride_bytes = 0) {
  return (reinterpret_cast<uintptr_t>(pointer) | static_cast<uintptr_t>(stride_bytes)) % 16 == 0;
}

template <typename T>
__device__ __forceinline__ float widen(T value) {
  return static_cast<float>(value);
}

template <typename T>
__device__ __forceinline__ T narrow(float value);
template <>
__device__ __forceinline__ float narrow(float value) {
  return value;
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ __half narrow(float value) {
  return __float2half_rn(value);
}

// Sixteen bytes of T, as one load or store.
template <typename T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T of[kSize];
};

// Read once and not again: it need not stay in the cache.
template <typename T>
__device__ __forceinline__ Pack<T> load_once(const Pack<T>* from) {
  const int4 bits = __ldcs(reinterpret_cast<const int4*>(from));
  return *reinterpret_cast<const Pack<T>*>(&bits);
}

template <typename T>
__device__ __forceinline__ Pack<T> load(const Pack<T>* from) {
  const int4 bits = __ldg(reinterpret_cast<const int4*>(from));
  return *reinterpret_cast<const Pack<T>*>(&bits);
}

template <typename T>
__device__ __forceinline__ void store(Pack<T>* to, const Pack<T>& value) {
  *reinterpret_cast<int4*>(to) = *reinterpret_cast<const int4*>(&value);
}

// Runs the statement with `scalar_t` as the device's element type.
#define DAY0_FLOATS(op, dtype, ...)                                                                            \
  switch (dtype) {                                                                                             \
    case ::day0::ScalarType::Float: { using scalar_t = float; __VA_ARGS__; break; }                            \
    case ::day0::ScalarType::BFloat16: { using scalar_t = __nv_bfloat16; __VA_ARGS__; break; }                 \
    case ::day0::ScalarType::Half: { using scalar_t = __half; __VA_ARGS__; break; }                            \
    default: STD_TORCH_CHECK(false, op, ": dtype must be float32, bfloat16 or float16, got ",                  \
                             torch::headeronly::toString(dtype));                                              \
  }

}  // namespace day0
