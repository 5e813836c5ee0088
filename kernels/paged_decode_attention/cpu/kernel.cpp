// Attention of one token of each sequence for the CPU (flash decoding: pieces of a sequence in parallel, then merged).

#include "arguments.h"

#define DAY0_LOOPS "../../paged_decode_attention/cpu/loops.h"
#define DAY0_WITH_BF16
#include "../../common/cpu/multiversion.h"

using namespace day0;

namespace {

constexpr const char* kOp = "paged_decode_attention";

struct Scale {
  const float* data = nullptr;
  int64_t stride = 0;
};

Scale scale_of(const char* name, std::optional<Tensor>& scale, int64_t heads) {
  if (!scale) {
    return {};
  }
  check_cpu(kOp, name, *scale);
  check_dtype(kOp, name, *scale, ScalarType::Float);
  STD_TORCH_CHECK(scale->numel() == 1 || scale->numel() == heads, kOp, ": ", name, " must be one number or one for each of ", heads, " heads, got shape ", shape(*scale));
  scale = torch::stable::contiguous(*scale);
  return {static_cast<const float*>(scale->data_ptr()), scale->numel() == 1 ? 0 : 1};
}

// The tokens that each sequence attends to, in pieces. Every block that is read is checked.
void cut(const Tensor& table, const Tensor& lengths, std::optional<int64_t> window, int64_t block_size, int64_t blocks, std::vector<Piece>& pieces, std::vector<int64_t>& first) {
  const int32_t* length_of = static_cast<const int32_t*>(lengths.data_ptr());
  const int32_t* block_of = static_cast<const int32_t*>(table.data_ptr());
  const int64_t sequences = lengths.size(0), across = table.size(1);
  for (int64_t sequence = 0; sequence < sequences; ++sequence) {
    const int64_t length = length_of[sequence];
    STD_TORCH_CHECK(length >= 0 && length <= across * block_size, kOp, ": length ", length, " of sequence ", sequence, " is not within the ", across * block_size, " tokens of its blocks");
    const int64_t begin = window ? std::max<int64_t>(0, length - *window) : 0;
    for (int64_t index = begin / block_size; index * block_size < length; ++index) {
      const int32_t block = block_of[sequence * across + index];
      STD_TORCH_CHECK(block >= 0 && block < blocks, kOp, ": block ", block, " of sequence ", sequence, " is not in the cache of ", blocks, " blocks");
    }
    first.push_back(static_cast<int64_t>(pieces.size()));
    for (int64_t token = begin; token < length; token += kPiece) {
      pieces.push_back({sequence, token, std::min(token + kPiece, length)});
    }
  }
  first.push_back(static_cast<int64_t>(pieces.size()));
}

template <typename T, typename C>
void run(Attention<T, C>& of, const std::vector<Piece>& pieces, const std::vector<int64_t>& first) {
  const int64_t count = static_cast<int64_t>(pieces.size());
  std::vector<float> partial(static_cast<size_t>(count * of.heads * of.group * of.partial_size()));
  of.partial = partial.data();
  of.pieces = pieces.data();
  of.first_piece = first.data();
  const auto attend = DAY0_SELECT_BF16(pieces<T, C>);
  const auto merge = DAY0_SELECT(merge<T, C>);
  parallel(count * of.heads, kPiece * of.key_size, [&](int64_t begin, int64_t end) { attend(of, begin, end); });
  const int64_t outputs = (static_cast<int64_t>(first.size()) - 1) * of.heads * of.group;
  parallel(outputs, of.value_size, [&](int64_t begin, int64_t end) { merge(of, begin, end); });
}

void paged_decode_attention_out(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor lengths, double scale, std::optional<double> soft_cap,
                                std::optional<int64_t> window, std::optional<Tensor> key_scale, std::optional<Tensor> value_scale, Tensor out) {
  check_dims(kOp, "query", query, 3);
  check_dims(kOp, "key_cache", key_cache, 4);
  check_dims(kOp, "value_cache", value_cache, 4);
  const int64_t sequences = query.size(0), query_heads = query.size(1), key_size = query.size(2), heads = key_cache.size(2), value_size = value_cache.size(3);
  check_shape(kOp, "key_cache", key_cache, {value_cache.size(0), value_cache.size(1), value_cache.size(2), key_size});
  STD_TORCH_CHECK(heads > 0 && query_heads % heads == 0, kOp, ": ", query_heads, " query heads do not share ", heads, " heads evenly");
  STD_TORCH_CHECK(key_scale.has_value() == value_scale.has_value(), kOp, ": give both scales or none");
  STD_TORCH_CHECK(!soft_cap || *soft_cap > 0, kOp, ": a soft cap must be above zero");
  STD_TORCH_CHECK(!window || *window > 0, kOp, ": a window must be above zero");
  const ScalarType cached = key_scale ? ScalarType::Float8_e4m3fn : query.scalar_type();
  check_dtype(kOp, "key_cache (FP8 has a scale, any other dtype none)", key_cache, cached);
  check_dtype(kOp, "value_cache (FP8 has a scale, any other dtype none)", value_cache, cached);
  check_dims(kOp, "block_table", block_table, 2);
  check_dtype(kOp, "block_table", block_table, ScalarType::Int);
  check_dtype(kOp, "lengths", lengths, ScalarType::Int);
  check_cpu(kOp, "lengths", lengths);
  check_shape(kOp, "lengths", lengths, {sequences});
  STD_TORCH_CHECK(block_table.size(0) == sequences, kOp, ": block_table must have a row for each of ", sequences, " sequences, got ", block_table.size(0));
  check_out(kOp, "out", out);
  check_dtype(kOp, "out", out, query.scalar_type());
  check_shape(kOp, "out", out, {sequences, query_heads, value_size});
  if (out.numel() == 0) {
    return;
  }
  query = torch::stable::contiguous(query);
  key_cache = with_rows(key_cache);
  value_cache = with_rows(value_cache);
  block_table = torch::stable::contiguous(block_table);
  lengths = torch::stable::contiguous(lengths);
  const Scale by_key = scale_of("key_scale", key_scale, heads), by_value = scale_of("value_scale", value_scale, heads);
  std::vector<Piece> pieces;
  std::vector<int64_t> first;
  cut(block_table, lengths, window, key_cache.size(1), key_cache.size(0), pieces, first);
  const auto attention = [&]<typename T, typename C>(const T*, const C*) {
    Attention<T, C> of{
        static_cast<const T*>(query.data_ptr()), static_cast<const C*>(key_cache.data_ptr()), static_cast<const C*>(value_cache.data_ptr()),
        static_cast<const int32_t*>(block_table.data_ptr()), by_key.data, by_value.data, nullptr, static_cast<T*>(out.data_ptr()), nullptr, nullptr,
        heads, query_heads / heads, key_size, value_size, key_cache.size(1), block_table.size(1),
        {key_cache.stride(0), key_cache.stride(1), key_cache.stride(2)}, {value_cache.stride(0), value_cache.stride(1), value_cache.stride(2)},
        by_key.stride, by_value.stride, static_cast<float>(scale), static_cast<float>(soft_cap.value_or(0.0))};
    run(of, pieces, first);
  };
  DAY0_FLOATS(kOp, query.scalar_type(), {
    const scalar_t* type = nullptr;
    if (key_scale) {
      attention(type, static_cast<const Float8_e4m3fn*>(nullptr));
    } else {
      attention(type, type);
    }
  });
}

Tensor paged_decode_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor lengths, double scale, std::optional<double> soft_cap,
                              std::optional<int64_t> window, std::optional<Tensor> key_scale, std::optional<Tensor> value_scale) {
  check_dims(kOp, "query", query, 3);
  check_dims(kOp, "value_cache", value_cache, 4);
  Tensor out = empty(query, {query.size(0), query.size(1), value_cache.size(3)}, query.scalar_type());
  paged_decode_attention_out(query, key_cache, value_cache, block_table, lengths, scale, soft_cap, window, key_scale, value_scale, out);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(day0, CPU, library) {
  library.impl("paged_decode_attention", TORCH_BOX(&paged_decode_attention));
  library.impl("paged_decode_attention.out", TORCH_BOX(&paged_decode_attention_out));
}
