// Rotary embedding for the CPU: query and key are read and written once. An output may be its input (in place).

#include "arguments.h"

#define DAY0_LOOPS "../../rotary/cpu/loops.h"
#define DAY0_WITH_BF16
#include "../../common/cpu/multiversion.h"

#include <tuple>

using namespace day0;

namespace {

constexpr const char* kOp = "rotary";

template <typename T>
Heads<T> heads_of(const Tensor& in, const Tensor& out) {
  return {static_cast<const T*>(in.data_ptr()), static_cast<T*>(out.data_ptr()), in.size(1), in.stride(0), in.stride(1), out.stride(0), out.stride(1)};
}

template <typename T, typename C>
void turn(const Tensor& positions, const Tensor& query, const Tensor& key, const Tensor& cos_sin, bool interleaved, const Tensor& query_out, const Tensor& key_out) {
  const int64_t size = query.size(2), rotary = cos_sin.size(1);
  const int64_t turned = (interleaved ? rotary : rotary / 2) * static_cast<int64_t>(sizeof(T));
  const bool vectors = size * sizeof(T) % 64 == 0 && reinterpret_cast<uintptr_t>(key_out.data_ptr()) % 64 == 0;
  const bool in_place = query_out.data_ptr() == query.data_ptr();
  const Rotation<T, C> of{
      heads_of<T>(query, query_out), heads_of<T>(key, key_out), static_cast<const int64_t*>(positions.data_ptr()), static_cast<const C*>(cos_sin.data_ptr()),
      positions.stride(0), cos_sin.stride(0), size, rotary, interleaved, vectors && !in_place ? write_mode(query_out, turned) : Write::cached};
  const auto loops = DAY0_SELECT_BF16(tokens<T, C>);
  parallel(positions.size(0), (query.size(1) + key.size(1)) * size, [&](int64_t begin, int64_t end) { loops(of, begin, end); });
}

void check_heads(const char* name, const Tensor& tensor, const Tensor& query, const Tensor& out) {
  check_dims(kOp, name, tensor, 3);
  check_dtype(kOp, name, tensor, query.scalar_type());
  STD_TORCH_CHECK(tensor.size(0) == query.size(0) && tensor.size(2) == query.size(2), kOp, ": query and key must agree in tokens and head size, got ", shape(query), " and ", shape(tensor));
  check_out(kOp, "an output", out);
  check_dtype(kOp, "an output", out, query.scalar_type());
  check_shape(kOp, "an output", out, {tensor.size(0), tensor.size(1), tensor.size(2)});
}

void rotary_out(Tensor positions, Tensor query, Tensor key, Tensor cos_sin, bool interleaved, Tensor query_out, Tensor key_out) {
  check_dims(kOp, "positions", positions, 1);
  check_dtype(kOp, "positions", positions, ScalarType::Long);
  check_heads("query", query, query, query_out);
  check_heads("key", key, query, key_out);
  check_dims(kOp, "cos_sin", cos_sin, 2);
  STD_TORCH_CHECK(positions.size(0) == query.size(0), kOp, ": there must be one position for each of ", query.size(0), " tokens, got ", positions.size(0));
  const int64_t rotary = cos_sin.size(1), count = positions.size(0);
  STD_TORCH_CHECK(rotary % 2 == 0 && rotary <= query.size(2), kOp, ": the rotary size must be even and no larger than a head of ", query.size(2), ", got ", rotary);
  const int64_t* where = static_cast<const int64_t*>(positions.data_ptr());
  for (int64_t token = 0; token < count; ++token) {
    const int64_t position = where[token * positions.stride(0)];
    STD_TORCH_CHECK(position >= 0 && position < cos_sin.size(0), kOp, ": position ", position, " of token ", token, " is not in the ", cos_sin.size(0), " rows of cos_sin");
  }
  query = with_rows(query);
  key = with_rows(key);
  cos_sin = with_rows(cos_sin);
  DAY0_FLOATS(kOp, query.scalar_type(), {
    if (cos_sin.scalar_type() == ScalarType::Float) {
      turn<scalar_t, float>(positions, query, key, cos_sin, interleaved, query_out, key_out);
    } else {
      check_dtype(kOp, "cos_sin", cos_sin, query.scalar_type());
      turn<scalar_t, scalar_t>(positions, query, key, cos_sin, interleaved, query_out, key_out);
    }
  });
}

std::tuple<Tensor, Tensor> rotary(Tensor positions, Tensor query, Tensor key, Tensor cos_sin, bool interleaved) {
  check_dims(kOp, "query", query, 3);
  check_dims(kOp, "key", key, 3);
  Tensor query_out = torch::stable::new_empty(query, query.sizes());
  Tensor key_out = torch::stable::new_empty(key, key.sizes());
  rotary_out(positions, query, key, cos_sin, interleaved, query_out, key_out);
  return {query_out, key_out};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(day0, CPU, library) {
  library.impl("rotary", TORCH_BOX(&rotary));
  library.impl("rotary.out", TORCH_BOX(&rotary_out));
}
