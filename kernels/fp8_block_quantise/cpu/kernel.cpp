// FP8 quantisation by blocks for the CPU.

#include "arguments.h"

#define DAY0_LOOPS "../../fp8_block_quantise/cpu/loops.h"
#include "../../common/cpu/multiversion.h"

#include <tuple>

using namespace day0;

namespace {

constexpr const char* kOp = "fp8_block_quantise";

std::vector<int64_t> scales_shape(const Tensor& x, int64_t block_rows, int64_t block_columns) {
  check_dims(kOp, "x", x, 2);
  STD_TORCH_CHECK(block_rows > 0 && block_columns > 0, kOp, ": a block must have rows and columns, got ", block_rows, " by ", block_columns);
  return {x.size(0) / block_rows + (x.size(0) % block_rows != 0), x.size(1) / block_columns + (x.size(1) % block_columns != 0)};
}

void fp8_block_quantise_out(Tensor x, int64_t block_rows, int64_t block_columns, bool power_of_two, Tensor codes, Tensor scales) {
  const std::vector<int64_t> wanted = scales_shape(x, block_rows, block_columns);
  check_out(kOp, "the output of codes", codes);
  check_dtype(kOp, "the output of codes", codes, ScalarType::Float8_e4m3fn);
  check_shape(kOp, "the output of codes", codes, {x.size(0), x.size(1)});
  check_out(kOp, "the output of scales", scales);
  check_dtype(kOp, "the output of scales", scales, ScalarType::Float);
  check_shape(kOp, "the output of scales", scales, wanted);
  if (x.numel() == 0) {
    return;
  }
  x = with_rows(x);
  DAY0_FLOATS(kOp, x.scalar_type(), {
    const bool vectors = block_columns % 64 == 0;
    const Blocks<scalar_t> of{
        static_cast<const scalar_t*>(x.data_ptr()), static_cast<Float8_e4m3fn*>(codes.data_ptr()), static_cast<float*>(scales.data_ptr()),
        x.size(0), x.size(1), x.stride(0), block_rows, block_columns, power_of_two, vectors ? write_mode(codes, x.size(1)) : Write::cached};
    const auto loops = DAY0_SELECT(quantise<scalar_t>);
    parallel(wanted[0], std::min(block_rows, x.size(0)) * x.size(1), [&](int64_t begin, int64_t end) { loops(of, begin, end); });
  });
}

std::tuple<Tensor, Tensor> fp8_block_quantise(Tensor x, int64_t block_rows, int64_t block_columns, bool power_of_two) {
  const std::vector<int64_t> wanted = scales_shape(x, block_rows, block_columns);
  Tensor codes = torch::stable::new_empty(x, x.sizes(), ScalarType::Float8_e4m3fn);
  Tensor scales = empty(x, wanted, ScalarType::Float);
  fp8_block_quantise_out(x, block_rows, block_columns, power_of_two, codes, scales);
  return {codes, scales};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(day0, CPU, library) {
  library.impl("fp8_block_quantise", TORCH_BOX(&fp8_block_quantise));
  library.impl("fp8_block_quantise.out", TORCH_BOX(&fp8_block_quantise_out));
}
