// FP8 dequantisation by blocks for the CPU.

#include "arguments.h"

#define DAY0_LOOPS "../../fp8_block_dequantise/cpu/loops.h"
#define DAY0_WITH_BF16
#include "../../common/cpu/multiversion.h"

using namespace day0;

namespace {

constexpr const char* kOp = "fp8_block_dequantise";

void fp8_block_dequantise_out(Tensor codes, Tensor scales, int64_t block_rows, int64_t block_columns, ScalarType dtype, Tensor out) {
  const int64_t dims = codes.dim();
  check_cpu(kOp, "codes", codes);
  check_dtype(kOp, "codes", codes, ScalarType::Float8_e4m3fn);
  STD_TORCH_CHECK(dims >= 2, kOp, ": codes must be a matrix or a stack of matrices, got shape ", shape(codes));
  STD_TORCH_CHECK(block_rows > 0 && block_columns > 0, kOp, ": a block must have rows and columns, got ", block_rows, " by ", block_columns);
  const int64_t rows = codes.size(dims - 2), columns = codes.size(dims - 1);
  std::vector<int64_t> wanted(codes.sizes().begin(), codes.sizes().end());
  check_out(kOp, "out", out);
  check_dtype(kOp, "out", out, dtype);
  check_shape(kOp, "out", out, wanted);
  wanted[dims - 2] = rows / block_rows + (rows % block_rows != 0);
  wanted[dims - 1] = columns / block_columns + (columns % block_columns != 0);
  check_cpu(kOp, "scales", scales);
  check_dtype(kOp, "scales", scales, ScalarType::Float);
  check_shape(kOp, "scales", scales, wanted);
  if (codes.numel() == 0) {
    return;
  }
  scales = torch::stable::contiguous(scales);
  const Tensor stack = with_rows(torch::stable::reshape(codes, {-1, rows, columns}));
  DAY0_FLOATS(kOp, dtype, {
    const int64_t bytes = static_cast<int64_t>(sizeof(scalar_t));
    const Coded<scalar_t> of{
        static_cast<const Float8_e4m3fn*>(stack.data_ptr()), static_cast<const float*>(scales.data_ptr()), static_cast<scalar_t*>(out.data_ptr()),
        rows, columns, stack.stride(0), stack.stride(1), block_rows, block_columns, block_columns % 64 == 0 ? write_mode(out, columns * bytes) : Write::cached};
    const auto loops = DAY0_SELECT_BF16(dequantise<scalar_t>);
    parallel(stack.size(0) * rows, columns, [&](int64_t begin, int64_t end) { loops(of, begin, end); });
  });
}

Tensor fp8_block_dequantise(Tensor codes, Tensor scales, int64_t block_rows, int64_t block_columns, ScalarType dtype) {
  Tensor out = torch::stable::new_empty(codes, codes.sizes(), dtype);
  fp8_block_dequantise_out(codes, scales, block_rows, block_columns, dtype, out);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(day0, CPU, library) {
  library.impl("fp8_block_dequantise", TORCH_BOX(&fp8_block_dequantise));
  library.impl("fp8_block_dequantise.out", TORCH_BOX(&fp8_block_dequantise_out));
}
