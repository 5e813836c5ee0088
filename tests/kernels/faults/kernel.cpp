// Residual + RMSNorm, plain, with one planted fault or one honest difference: the environment variable VARIANT, read at
// each call, chooses it. Without one it is right.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/BFloat16.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <vector>

using torch::headeronly::BFloat16;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

namespace {

enum Variant {
  kNone,
  wrong_rounding,
  pairwise_order,
  double_sum,
  reversed_order,
  fused_multiply_add,
  compensated,
  bf16_accumulation,
  off_by_one_tail,
  nan_handling,
  refined_estimate,
  divided_root,
  wrong_stride,
  one_row_each,
  race,
  dropped_residual,
  rounded_sum,
  in_place_input,
  uninitialised_memory,
  wrong_scale,
  unwritten_tail,
  transformers_order,
  weight_first,
  crash,
  hang,
  killed,
  cached_output,
  late_write,
};
const char* const kNames[] = {
    "",
    "wrong_rounding",
    "pairwise_order",
    "double_sum",
    "reversed_order",
    "fused_multiply_add",
    "compensated",
    "bf16_accumulation",
    "off_by_one_tail",
    "nan_handling",
    "refined_estimate",
    "divided_root",
    "wrong_stride",
    "one_row_each",
    "race",
    "dropped_residual",
    "rounded_sum",
    "in_place_input",
    "uninitialised_memory",
    "wrong_scale",
    "unwritten_tail",
    "transformers_order",
    "weight_first",
    "crash",
    "hang",
    "killed",
    "cached_output",
    "late_write",
};

Variant chosen = kNone;

void choose() {
  const char* name = std::getenv("VARIANT");
  chosen = kNone;
  for (size_t i = 0; name && i < std::size(kNames); ++i) {
    if (std::strcmp(name, kNames[i]) == 0) chosen = static_cast<Variant>(i);
  }
}

bool is(Variant variant) { return chosen == variant; }

// Faults of rounding.
// Out of line: GCC 12 drops the mask where it can see the rounding of BFloat16 after it.
__attribute__((noinline)) float narrowed(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits &= 0xffff0000u;
  float cut;
  std::memcpy(&cut, &bits, 4);
  return cut;
}

template <class T>
T rounded(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return static_cast<T>(is(wrong_rounding) && value == value ? narrowed(value) : value);
  }
}

// Sums of squares: right ones in several orders, and wrong ones.
float pairwise(const float* sum, int64_t count) {
  if (count <= 8) {
    float squares = 0;
    for (int64_t i = 0; i < count; ++i) squares += sum[i] * sum[i];
    return squares;
  }
  return pairwise(sum, count / 2) + pairwise(sum + count / 2, count - count / 2);
}

float squares_of(const float* sum, int64_t hidden) {
  if (is(pairwise_order)) return pairwise(sum, hidden);
  if (is(double_sum)) {
    double squares = 0;
    for (int64_t i = 0; i < hidden; ++i) squares += static_cast<double>(sum[i]) * sum[i];
    return static_cast<float>(squares);
  }
  if (is(reversed_order)) {
    float squares = 0;
    for (int64_t i = hidden; i-- > 0;) squares += sum[i] * sum[i];
    return squares;
  }
  if (is(fused_multiply_add)) {
    float squares = 0;
    for (int64_t i = 0; i < hidden; ++i) squares = std::fma(sum[i], sum[i], squares);
    return squares;
  }
  if (is(compensated)) {
    float squares = 0, lost = 0;
    for (int64_t i = 0; i < hidden; ++i) {
      float next = sum[i] * sum[i] - lost, total = squares + next;
      lost = (total - squares) - next;
      squares = total;
    }
    return std::isfinite(squares) ? squares : pairwise(sum, hidden);
  }
  if (is(bf16_accumulation)) {
    BFloat16 squares = 0.0f;
    for (int64_t i = 0; i < hidden; ++i) squares = static_cast<BFloat16>(static_cast<float>(squares) + sum[i] * sum[i]);
    return squares;
  }
  // As many partial sums as a vector has lanes.
  float lanes[16] = {};
  const int64_t counted = is(off_by_one_tail) && hidden % 16 ? hidden - 1 : hidden;
  for (int64_t i = 0; i < counted; ++i) {
    float value = sum[i];
    if (is(nan_handling)) value = std::fmin(std::fmax(value, -1e30f), 1e30f);
    lanes[i % 16] += value * value;
  }
  float squares = 0;
  for (float lane : lanes) squares += lane;
  return squares;
}

float root(float mean) {
  if (is(refined_estimate) && std::isfinite(mean)) {
    uint32_t bits;
    std::memcpy(&bits, &mean, 4);
    bits = 0x5f375a86u - (bits >> 1);
    float guess;
    std::memcpy(&guess, &bits, 4);
    for (int step = 0; step < 3; ++step) guess = guess * (1.5f - 0.5f * mean * guess * guess);
    return guess;
  }
  if (is(divided_root)) return 1.0f / std::sqrt(mean);
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(mean)));
}

template <class T>
void compute(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps, Tensor& normed, Tensor& total) {
  const int64_t rows = x.size(0), hidden = x.size(1);
  const int64_t x_stride = is(wrong_stride) ? hidden : x.stride(0);
  const T* xs = static_cast<const T*>(x.const_data_ptr());
  const T* residuals = static_cast<const T*>(residual.const_data_ptr());
  const T* weights = static_cast<const T*>(weight.const_data_ptr());
  T* normeds = static_cast<T*>(normed.mutable_data_ptr());
  T* totals = static_cast<T*>(total.mutable_data_ptr());
  std::vector<float> shared(hidden);
  // Never zeroed, and added to.
  Tensor scratch = torch::stable::new_empty(x, {rows}, ScalarType::Float);
  float* started = static_cast<float*>(scratch.mutable_data_ptr());
  torch::stable::parallel_for(0, rows, is(one_row_each) ? 1 : 16, [&](int64_t begin, int64_t end) {
    std::vector<float> own(hidden);
    float* sum = is(race) ? shared.data() : own.data();
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < hidden; ++i) {
        float added = static_cast<float>(residuals[row * residual.stride(0) + i]);
        sum[i] = static_cast<float>(xs[row * x_stride + i]);
        totals[row * hidden + i] = rounded<T>(sum[i] + added);
        if (!is(dropped_residual)) sum[i] += added;
        if (is(rounded_sum)) sum[i] = static_cast<float>(totals[row * hidden + i]);
        if (is(in_place_input)) const_cast<T*>(residuals)[row * residual.stride(0) + i] = totals[row * hidden + i];
      }
      float squares = squares_of(sum, hidden);
      if (is(uninitialised_memory)) squares = started[row] += squares;
      const int64_t divisor = is(wrong_scale) ? (hidden + 7) / 8 * 8 : hidden;
      const float scale = root(squares / divisor + static_cast<float>(eps));
      const int64_t written = is(unwritten_tail) ? hidden - hidden % 16 : hidden;
      for (int64_t i = 0; i < written; ++i) {
        float value = sum[i] * scale;
        if (is(transformers_order)) value = static_cast<float>(rounded<T>(value));
        if (is(weight_first)) {
          normeds[row * hidden + i] = rounded<T>(sum[i] * static_cast<float>(weights[i]) * scale);
        } else {
          normeds[row * hidden + i] = rounded<T>(value * static_cast<float>(weights[i]));
        }
      }
    }
  });
}

std::tuple<Tensor, Tensor> fused_add_rms_norm(Tensor x, Tensor residual, Tensor weight, double eps) {
  choose();
  static std::unordered_map<void*, std::tuple<Tensor, Tensor>> cache;
  if (is(kNone)) cache.clear();
  if (is(crash)) std::abort();
  if (is(hang)) {
    for (;;) std::this_thread::yield();
  }
  if (is(killed)) std::raise(SIGKILL);
  const int64_t hidden = x.size(1);
  Tensor rows = x.numel() && x.stride(1) != 1 ? torch::stable::contiguous(x) : x;
  Tensor added = residual.numel() && residual.stride(1) != 1 ? torch::stable::contiguous(residual) : residual;
  Tensor scale = torch::stable::contiguous(weight);
  if (is(cached_output)) {
    auto found = cache.find(x.data_ptr());
    if (found != cache.end() && std::get<0>(found->second).size(0) == x.size(0) &&
        std::get<0>(found->second).size(1) == hidden &&
        std::get<0>(found->second).scalar_type() == x.scalar_type()) {
      return {torch::stable::clone(std::get<0>(found->second)), torch::stable::clone(std::get<1>(found->second))};
    }
  }
  Tensor normed = torch::stable::new_empty(x, x.sizes()), total = torch::stable::new_empty(x, x.sizes());
  if (x.scalar_type() == ScalarType::Float) {
    compute<float>(rows, added, scale, eps, normed, total);
  } else {
    compute<BFloat16>(rows, added, scale, eps, normed, total);
  }
  if (is(cached_output)) {
    cache.insert_or_assign(x.data_ptr(), std::make_tuple(torch::stable::clone(normed), torch::stable::clone(total)));
  }
  if (is(late_write) && x.numel()) {
    std::thread([normed]() {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      static_cast<char*>(normed.mutable_data_ptr())[0] ^= 1;
    }).detach();
  }
  return {normed, total};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(day0, CPU, library) {
  library.impl("fused_add_rms_norm", TORCH_BOX(&fused_add_rms_norm));
}
