// Writes to a paged cache for the CPU. The caches' layout is free: blocks with heads outside or inside (HND and NHD), and caches of
// keys and values in one tensor, are given as views.

#include "arguments.h"

#define DAY0_LOOPS "../../kv_cache_write/cpu/loops.h"
#include "../../common/cpu/multiversion.h"

using namespace day0;

namespace {

constexpr const char* kOp = "kv_cache_write";

Entries entries(const char* name, const Tensor& in, const Tensor& cache, const std::optional<Tensor>& scale, ScalarType cached) {
  check_dims(kOp, name, in, 3);
  check_dims(kOp, "a cache", cache, 4);
  check_dtype(kOp, "a cache (FP8 has a scale, any other dtype none)", cache, cached);
  const int64_t heads = in.size(1), size = in.size(2);
  STD_TORCH_CHECK(cache.size(2) == heads && cache.size(3) == size, kOp, ": the cache of the ", name, " must have ", heads, " heads of ", size, ", got shape ", shape(cache));
  Entries of{in.data_ptr(), cache.data_ptr(), nullptr, heads, size, in.stride(0), in.stride(1), cache.stride(0), cache.stride(1), cache.stride(2), cache.stride(3), 0};
  if (scale) {
    check_out(kOp, "a scale", *scale);
    check_dtype(kOp, "a scale", *scale, ScalarType::Float);
    STD_TORCH_CHECK(scale->numel() == 1 || scale->numel() == heads, kOp, ": a scale must be one number or one for each of ", heads, " heads, got shape ", shape(*scale));
    of.scale = static_cast<const float*>(scale->data_ptr());
    of.scale_stride = scale->numel() == 1 ? 0 : 1;
  }
  return of;
}

// Streaming stores need each head's numbers to be whole vectors at their place in the cache.
bool whole_vectors(const Entries& of, int64_t element) {
  bool whole = of.cache_stride == 1 && reinterpret_cast<uintptr_t>(of.cache) % 64 == 0;
  for (int64_t distance : {of.size, of.block_stride, of.slot_stride, of.cache_head_stride}) {
    whole = whole && distance * element % 64 == 0;
  }
  return whole;
}

void kv_cache_write(Tensor key, Tensor value, Tensor key_cache, Tensor value_cache, Tensor slots, std::optional<Tensor> key_scale, std::optional<Tensor> value_scale) {
  STD_TORCH_CHECK(key_scale.has_value() == value_scale.has_value(), kOp, ": give both scales or none");
  check_dtype(kOp, "value", value, key.scalar_type());
  check_dims(kOp, "slots", slots, 1);
  check_dtype(kOp, "slots", slots, ScalarType::Long);
  check_dims(kOp, "key", key, 3);
  check_dims(kOp, "value", value, 3);
  STD_TORCH_CHECK(key.size(0) == slots.size(0) && value.size(0) == slots.size(0), kOp, ": key, value and slots must agree in tokens, got ", key.size(0), ", ", value.size(0), " and ", slots.size(0));
  const ScalarType cached = key_scale ? ScalarType::Float8_e4m3fn : key.scalar_type();
  key = with_rows(key);
  value = with_rows(value);
  if (key_scale) {
    key_scale = torch::stable::contiguous(*key_scale);
    value_scale = torch::stable::contiguous(*value_scale);
  }
  CacheWrite of{entries("key", key, key_cache, key_scale, cached), entries("value", value, value_cache, value_scale, cached),
                static_cast<const int64_t*>(slots.data_ptr()), slots.stride(0), key_cache.size(1), Write::cached};
  STD_TORCH_CHECK(key_cache.size(0) == value_cache.size(0) && key_cache.size(1) == value_cache.size(1), kOp, ": both caches must have the same blocks, got shapes ", shape(key_cache), " and ", shape(value_cache));
  const int64_t count = slots.size(0), room = key_cache.size(0) * key_cache.size(1);
  for (int64_t token = 0; token < count; ++token) {
    STD_TORCH_CHECK(of.slots[token * of.slots_stride] < room, kOp, ": slot ", of.slots[token * of.slots_stride], " of token ", token, " is past the cache's ", room, " slots");
  }
  const int64_t element = static_cast<int64_t>(key_cache.element_size());
  if (whole_vectors(of.key, element) && whole_vectors(of.value, element)) {
    of.write = write_mode(count * of.key.heads * (of.key.size + of.value.size) * element);
  }
  DAY0_FLOATS(kOp, key.scalar_type(), {
    const auto loops = key_scale ? DAY0_SELECT(tokens<scalar_t, Float8_e4m3fn>) : DAY0_SELECT(tokens<scalar_t, scalar_t>);
    parallel(count, of.key.heads * (of.key.size + of.value.size), [&](int64_t begin, int64_t end) { loops(of, begin, end); });
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(day0, CPU, library) { library.impl("kv_cache_write", TORCH_BOX(&kv_cache_write)); }
