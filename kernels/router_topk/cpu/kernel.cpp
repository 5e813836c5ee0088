// Choice of experts for the CPU: a token's scores stay in the first-level cache.

#include "arguments.h"

#define DAY0_LOOPS "../../router_topk/cpu/loops.h"
#include "../../common/cpu/multiversion.h"

#include <tuple>

using namespace day0;

namespace {

constexpr const char* kOp = "router_topk";

void router_topk_out(Tensor logits, std::optional<Tensor> bias, int64_t k, std::string scoring, int64_t groups, int64_t groups_kept, bool renormalise, double scale, Tensor weights, Tensor ids) {
  check_dims(kOp, "logits", logits, 2);
  const int64_t count = logits.size(0), experts = logits.size(1);
  STD_TORCH_CHECK(scoring == "softmax" || scoring == "sigmoid" || scoring == "sqrtsoftplus", kOp, ": scoring must be softmax, sigmoid or sqrtsoftplus, got ", scoring);
  const Scoring by = scoring == "softmax" ? Scoring::softmax : scoring == "sigmoid" ? Scoring::sigmoid : Scoring::sqrtsoftplus;
  STD_TORCH_CHECK(groups >= 1 && experts % groups == 0, kOp, ": ", experts, " experts do not divide into ", groups, " groups");
  STD_TORCH_CHECK(groups_kept >= 1 && groups_kept <= groups, kOp, ": ", groups_kept, " of ", groups, " groups cannot be kept");
  STD_TORCH_CHECK(k >= 1 && k <= experts / groups * groups_kept, kOp, ": ", k, " experts cannot be chosen of ", experts / groups * groups_kept);
  if (bias) {
    check_cpu(kOp, "bias", *bias);
    check_dtype(kOp, "bias", *bias, ScalarType::Float);
    check_shape(kOp, "bias", *bias, {experts});
    bias = torch::stable::contiguous(*bias);
  }
  check_out(kOp, "the output of weights", weights);
  check_dtype(kOp, "the output of weights", weights, ScalarType::Float);
  check_shape(kOp, "the output of weights", weights, {count, k});
  check_out(kOp, "the output of experts", ids);
  check_dtype(kOp, "the output of experts", ids, ScalarType::Int);
  check_shape(kOp, "the output of experts", ids, {count, k});
  logits = with_rows(logits);
  DAY0_FLOATS(kOp, logits.scalar_type(), {
    const Router<scalar_t> of{
        static_cast<const scalar_t*>(logits.data_ptr()), bias ? static_cast<const float*>(bias->data_ptr()) : nullptr, static_cast<float*>(weights.data_ptr()),
        static_cast<int32_t*>(ids.data_ptr()), experts, logits.stride(0), k, groups, groups_kept, by, renormalise, static_cast<float>(scale)};
    const auto loops = DAY0_SELECT(tokens<scalar_t>);
    parallel(count, 8 * experts, [&](int64_t begin, int64_t end) { loops(of, begin, end); });
  });
}

std::tuple<Tensor, Tensor> router_topk(Tensor logits, std::optional<Tensor> bias, int64_t k, std::string scoring, int64_t groups, int64_t groups_kept, bool renormalise, double scale) {
  check_dims(kOp, "logits", logits, 2);
  STD_TORCH_CHECK(k >= 1 && k <= logits.size(1), kOp, ": ", k, " experts cannot be chosen of ", logits.size(1));
  Tensor weights = empty(logits, {logits.size(0), k}, ScalarType::Float);
  Tensor ids = empty(logits, {logits.size(0), k}, ScalarType::Int);
  router_topk_out(logits, bias, k, scoring, groups, groups_kept, renormalise, scale, weights, ids);
  return {weights, ids};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(day0, CPU, library) {
  library.impl("router_topk", TORCH_BOX(&router_topk));
  library.impl("router_topk.out", TORCH_BOX(&router_topk_out));
}
