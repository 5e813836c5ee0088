// Residual + RMSNorm for the CPU: each row is read once and both outputs are written once.

#include "arguments.h"

#define DAY0_LOOPS "../../fused_add_rms_norm/cpu/loops.h"
#define DAY0_WITH_BF16
#include "../../common/cpu/multiversion.h"

#include <tuple>

using namespace day0;

namespace {

constexpr const char* kOp = "fused_add_rms_norm";

void fused_add_rms_norm_out(Tensor x, Tensor residual, Tensor weight, double eps, Tensor normed, Tensor total) {
  check_cpu(kOp, "x", x);
  STD_TORCH_CHECK(x.dim() >= 1, kOp, ": x has no dimension");
  const int64_t hidden = x.size(x.dim() - 1);
  const std::vector<int64_t> wanted(x.sizes().begin(), x.sizes().end());
  check_dims(kOp, "weight", weight, 1);
  check_shape(kOp, "weight", weight, {hidden});
  check_dtype(kOp, "weight", weight, x.scalar_type());
  check_cpu(kOp, "residual", residual);
  check_shape(kOp, "residual", residual, wanted);
  check_dtype(kOp, "residual", residual, x.scalar_type());
  for (const Tensor& out : {normed, total}) {
    check_out(kOp, "an output", out);
    check_shape(kOp, "an output", out, wanted);
    check_dtype(kOp, "an output", out, x.scalar_type());
  }
  if (x.numel() == 0) {
    return;
  }
  x = with_rows(torch::stable::reshape(x, {-1, hidden}));
  residual = with_rows(torch::stable::reshape(residual, {-1, hidden}));
  weight = torch::stable::contiguous(weight);
  DAY0_FLOATS(kOp, x.scalar_type(), {
    const int64_t bytes = hidden * static_cast<int64_t>(sizeof(scalar_t));
    const bool both = write_mode(normed, bytes) == Write::streaming && write_mode(total, bytes) == Write::streaming;
    const Rows<scalar_t> of{
        static_cast<const scalar_t*>(x.data_ptr()), static_cast<const scalar_t*>(residual.data_ptr()), static_cast<const scalar_t*>(weight.data_ptr()),
        static_cast<scalar_t*>(normed.data_ptr()), static_cast<scalar_t*>(total.data_ptr()), hidden, x.stride(0), residual.stride(0), eps,
        both ? Write::streaming : Write::cached};
    const auto loops = DAY0_SELECT_BF16(rows<scalar_t>);
    parallel(x.size(0), hidden, [&](int64_t begin, int64_t end) { loops(of, begin, end); });
  });
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
