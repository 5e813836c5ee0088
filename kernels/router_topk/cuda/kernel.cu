// Choice of experts for NVIDIA GPUs: a warp for each token, whose scores stay in registers.
//
// A number is compared by its key: unsigned, in the order of the numbers, with NaN above all and 0 for what may not be chosen.
// The best of a warp is then one instruction (redux.sync), and of equal keys the lowest index is another.

#include "../../common/cuda/operator.h"

#include <cmath>
#include <tuple>

using namespace day0;

namespace {

constexpr const char* kOp = "router_topk";
constexpr unsigned kAll = 0xffffffffu;
constexpr unsigned kNone = 0u;
constexpr int kWarps = 4;
constexpr int kMostExperts = 1024;
constexpr int kMostGroups = 32;

enum class Scoring { softmax, sigmoid, sqrtsoftplus };

template <typename T>
struct Router {
  const T* logits;    // (tokens, experts)
  const float* bias;  // (experts), or null
  float* weights;     // (tokens, k)
  int32_t* ids;       // (tokens, k)
  int64_t tokens, stride;
  int experts, k, groups, groups_kept;
  Scoring scoring;
  bool renormalise, vectors;
  float scale;
};

__device__ __forceinline__ unsigned key_of(float value) {
  const unsigned bits = __float_as_uint(value + 0.0f);  // -0 and 0 are equal
  if (isnan(value)) {
    return kAll;
  }
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float value_of(unsigned key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// kEach numbers of a row from `first` on, `absent` where it has ended. Rows whose ends are whole vectors are read by them.
template <typename T, int kEach>
__device__ __forceinline__ void read(const T* row, int first, int end, bool vectors, float absent, float (&into)[kEach]) {
  constexpr int kSize = Pack<T>::kSize;
  if constexpr (kEach % kSize == 0) {
    if (vectors) {
#pragma unroll
      for (int p = 0; p < kEach / kSize; ++p) {
        const Pack<T> pack = load(reinterpret_cast<const Pack<T>*>(row + first) + p);
#pragma unroll
        for (int i = 0; i < kSize; ++i) {
          into[p * kSize + i] = widen(pack.of[i]);
        }
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    into[i] = first + i < end ? widen(row[first + i]) : absent;
  }
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAll, value, step));
  }
  return value;
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value += __shfl_xor_sync(kAll, value, step);
  }
  return value;
}

// The best two keys of a group that is spread over the warp; kNone for those that it lacks.
template <int kEach>
__device__ __forceinline__ void best_two(const unsigned (&keys)[kEach], int first, int begin, int end, unsigned& best, unsigned& second) {
  best = second = kNone;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const unsigned key = first + i >= begin && first + i < end ? keys[i] : kNone;
    second = max(second, min(best, key));
    best = max(best, key);
  }
  const unsigned winner = __reduce_max_sync(kAll, best);
  // The lane that has it: its second may be the group's second, too.
  const bool mine = static_cast<int>(threadIdx.x % 32) == __ffs(__ballot_sync(kAll, best == winner)) - 1;
  second = __reduce_max_sync(kAll, mine ? second : best);
  best = winner;
}

// The best two keys of the group that a lane's experts all belong to, which `lanes` lanes, a power of two, share.
template <int kEach>
__device__ __forceinline__ void best_two_of_lanes(const unsigned (&keys)[kEach], int lanes, unsigned& best, unsigned& second) {
  best = second = kNone;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    second = max(second, min(best, keys[i]));
    best = max(best, keys[i]);
  }
  for (int step = 1; step < lanes; step *= 2) {
    const unsigned other = __shfl_xor_sync(kAll, best, step), after = __shfl_xor_sync(kAll, second, step);
    second = max(min(best, other), max(second, after));
    best = max(best, other);
  }
}

__device__ __forceinline__ unsigned group_key(unsigned best, unsigned second, bool biased) {
  return biased ? key_of(value_of(best) + (second == kNone ? 0.0f : value_of(second))) : best;
}

// What may not be chosen, because its group is not among the best, gets kNone. Lane g has the value of group g.
template <int kEach>
__device__ __forceinline__ void keep_groups(unsigned (&keys)[kEach], int first, int experts, int groups, int groups_kept, bool biased) {
  const int lane = threadIdx.x % 32;
  const int size = experts / groups, lanes = size / kEach;
  const bool whole = size % kEach == 0 && (lanes & (lanes - 1)) == 0;  // as models have them: all groups at once
  unsigned value = kNone;
  if (whole) {
    unsigned best, second;
    best_two_of_lanes(keys, lanes, best, second);
    value = __shfl_sync(kAll, group_key(best, second, biased), lane * lanes % 32);
  } else {
    for (int group = 0; group < groups; ++group) {
      unsigned best, second;
      best_two(keys, first, group * size, (group + 1) * size, best, second);
      const unsigned found = group_key(best, second, biased);
      value = lane == group ? found : value;
    }
  }
  int better = 0;
  for (int group = 0; group < groups; ++group) {
    const unsigned other = __shfl_sync(kAll, value, group);
    better += other > value || (other == value && group < lane);
  }
  const unsigned kept = __ballot_sync(kAll, lane < groups && better < groups_kept);
  if (whole) {
    const bool mine = kept >> (lane / lanes) & 1u;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      keys[i] = mine ? keys[i] : kNone;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int group = min((first + i) / size, kMostGroups - 1);
    keys[i] = kept >> group & 1u ? keys[i] : kNone;
  }
}

// kEach experts, neighbours, in each lane.
template <typename T, int kEach>
__global__ void __launch_bounds__(32 * kWarps) a_warp_a_token(const Router<T> of) {
  const int lane = threadIdx.x % 32;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= of.tokens) {
    return;
  }
  const int first = lane * kEach;
  float scores[kEach];
  read<T>(of.logits + token * of.stride, first, of.experts, of.vectors, -INFINITY, scores);
  if (of.scoring == Scoring::softmax) {
    float most = scores[0];
#pragma unroll
    for (int i = 1; i < kEach; ++i) {
      most = fmaxf(most, scores[i]);
    }
    most = warp_max(most);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      scores[i] = first + i < of.experts ? expf(scores[i] - most) : 0.0f;
      sum += scores[i];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      scores[i] /= sum;
    }
  } else if (of.scoring == Scoring::sigmoid) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      scores[i] = 1.0f / (1.0f + expf(-scores[i]));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      scores[i] = sqrtf(scores[i] > 20.0f ? scores[i] : log1pf(expf(scores[i])));
    }
  }
  float bias[kEach];
  if (of.bias != nullptr) {
    read<float>(of.bias, first, of.experts, of.vectors, 0.0f, bias);
  }
  unsigned keys[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    keys[i] = first + i < of.experts ? key_of(of.bias != nullptr ? scores[i] + bias[i] : scores[i]) : kNone;
  }
  if (of.groups > 1) {
    keep_groups(keys, first, of.experts, of.groups, of.groups_kept, of.bias != nullptr);
  }

  float* weights = of.weights + token * of.k;
  int32_t* ids = of.ids + token * of.k;
  float sum = 0.0f, weight = 0.0f;
  int id = 0;
  for (int choice = 0; choice < of.k; ++choice) {
    unsigned best = kNone;
    int slot = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      slot = keys[i] > best ? i : slot;
      best = max(best, keys[i]);
    }
    const unsigned winner = __reduce_max_sync(kAll, best);
    // Lanes have their experts in order, so that the lowest lane has the lowest index, too.
    const int from = __ffs(__ballot_sync(kAll, best == winner)) - 1;
    float score = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i == slot) {
        score = scores[i];
        keys[i] = lane == from ? kNone : keys[i];
      }
    }
    score = __shfl_sync(kAll, score, from);
    const int expert = __shfl_sync(kAll, first + slot, from);
    sum += score;
    if (lane == choice % 32) {
      weight = score;
      id = expert;
    }
    if (choice % 32 == 31 || choice == of.k - 1) {
      const int at = choice / 32 * 32 + lane;
      if (at <= choice) {
        ids[at] = id;
        weights[at] = weight;
      }
    }
  }
  for (int at = lane; at < of.k; at += 32) {  // each lane those that it has written
    const float found = of.k <= 32 ? weight : weights[at];
    weights[at] = (of.renormalise ? found / sum : found) * of.scale;
  }
}

template <typename T>
void launch(const Router<T>& of, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((of.tokens + kWarps - 1) / kWarps)), block(32 * kWarps);
  const auto run = [&]<int kEach>(std::integral_constant<int, kEach>) {
    Router<T> own = of;
    own.vectors = of.experts == 32 * kEach && aligned(of.logits, of.stride * sizeof(T)) && aligned(of.bias);
    a_warp_a_token<T, kEach><<<grid, block, 0, stream>>>(own);
  };
  const int each = (of.experts + 31) / 32;
  if (each <= 1) {
    run(std::integral_constant<int, 1>());
  } else if (each <= 2) {
    run(std::integral_constant<int, 2>());
  } else if (each <= 4) {
    run(std::integral_constant<int, 4>());
  } else if (each <= 8) {
    run(std::integral_constant<int, 8>());
  } else if (each <= 12) {
    run(std::integral_constant<int, 12>());
  } else if (each <= 16) {
    run(std::integral_constant<int, 16>());
  } else if (each <= 28) {
    run(std::integral_constant<int, 28>());
  } else {
    run(std::integral_constant<int, 32>());
  }
  check_launch(kOp);
}

void router_topk_out(Tensor logits, std::optional<Tensor> bias, int64_t k, std::string scoring, int64_t groups, int64_t groups_kept, bool renormalise, double scale, Tensor weights, Tensor ids) {
  check_device(kOp, "logits", logits, logits);
  STD_TORCH_CHECK(logits.dim() == 2, kOp, ": logits must have 2 dimensions, got shape ", shape(logits));
  const int64_t count = logits.size(0), experts = logits.size(1);
  STD_TORCH_CHECK(scoring == "softmax" || scoring == "sigmoid" || scoring == "sqrtsoftplus", kOp, ": scoring must be softmax, sigmoid or sqrtsoftplus, got ", scoring);
  STD_TORCH_CHECK(experts <= kMostExperts, kOp, ": at most ", kMostExperts, " experts fit the registers of a warp, got ", experts);
  STD_TORCH_CHECK(groups >= 1 && experts % groups == 0, kOp, ": ", experts, " experts do not divide into ", groups, " groups");
  STD_TORCH_CHECK(groups <= kMostGroups, kOp, ": at most ", kMostGroups, " groups, one for each lane, got ", groups);
  STD_TORCH_CHECK(groups_kept >= 1 && groups_kept <= groups, kOp, ": ", groups_kept, " of ", groups, " groups cannot be kept");
  STD_TORCH_CHECK(k >= 1 && k <= experts / groups * groups_kept, kOp, ": ", k, " experts cannot be chosen of ", experts / groups * groups_kept);
  if (bias) {
    check_device(kOp, "bias", *bias, logits);
    check_dtype(kOp, "bias", *bias, ScalarType::Float);
    check_shape(kOp, "bias", *bias, {experts});
    bias = torch::stable::contiguous(*bias);
  }
  check_out(kOp, "the output of weights", weights, logits);
  check_dtype(kOp, "the output of weights", weights, ScalarType::Float);
  check_shape(kOp, "the output of weights", weights, {count, k});
  check_out(kOp, "the output of experts", ids, logits);
  check_dtype(kOp, "the output of experts", ids, ScalarType::Int);
  check_shape(kOp, "the output of experts", ids, {count, k});
  if (count == 0) {
    return;
  }
  STD_TORCH_CHECK(count < (int64_t{1} << 32), kOp, ": more tokens than a grid has");
  const torch::stable::accelerator::DeviceGuard guard(logits.get_device_index());
  logits = with_rows(logits);
  const cudaStream_t stream = current_stream(kOp, logits);
  const Scoring by = scoring == "softmax" ? Scoring::softmax : scoring == "sigmoid" ? Scoring::sigmoid : Scoring::sqrtsoftplus;
  DAY0_FLOATS(kOp, logits.scalar_type(), {
    const Router<scalar_t> of{
        static_cast<const scalar_t*>(logits.const_data_ptr()), bias ? static_cast<const float*>(bias->const_data_ptr()) : nullptr,
        static_cast<float*>(weights.mutable_data_ptr()), static_cast<int32_t*>(ids.mutable_data_ptr()), count, logits.stride(0),
        static_cast<int>(experts), static_cast<int>(k), static_cast<int>(groups), static_cast<int>(groups_kept), by, renormalise, false,
        static_cast<float>(scale)};
    launch<scalar_t>(of, stream);
  });
}

std::tuple<Tensor, Tensor> router_topk(Tensor logits, std::optional<Tensor> bias, int64_t k, std::string scoring, int64_t groups, int64_t groups_kept, bool renormalise, double scale) {
  STD_TORCH_CHECK(logits.dim() == 2, kOp, ": logits must have 2 dimensions, got shape ", shape(logits));
  STD_TORCH_CHECK(k >= 1 && k <= logits.size(1), kOp, ": ", k, " experts cannot be chosen of ", logits.size(1));
  Tensor weights = torch::stable::new_empty(logits, std::vector<int64_t>{logits.size(0), k}, ScalarType::Float);
  Tensor ids = torch::stable::new_empty(logits, std::vector<int64_t>{logits.size(0), k}, ScalarType::Int);
  router_topk_out(logits, bias, k, scoring, groups, groups_kept, renormalise, scale, weights, ids);
  return {weights, ids};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(day0, CUDA, library) {
  library.impl("router_topk", TORCH_BOX(&router_topk));
  library.impl("router_topk.out", TORCH_BOX(&router_topk_out));
}
