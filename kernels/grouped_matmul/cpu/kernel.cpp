// Products of runs of rows with experts' weights for the CPU.

#include "arguments.h"

#define DAY0_LOOPS "../../grouped_matmul/cpu/loops.h"
#define DAY0_WITH_BF16
#include "../../common/cpu/multiversion.h"

using namespace day0;

namespace {

constexpr const char* kOp = "grouped_matmul";

Tensor checked_scale(const char* name, const Tensor& scale, const std::vector<int64_t>& sizes) {
  check_cpu(kOp, name, scale);
  check_dtype(kOp, name, scale, ScalarType::Float);
  check_shape(kOp, name, scale, sizes);
  return torch::stable::contiguous(scale);
}

template <typename T, typename W>
void run(Grouped<T, W>& of, const std::vector<int64_t>& begins, const std::vector<int64_t>& ends, const std::vector<int64_t>& experts, int64_t rows) {
  of.begins = begins.data();
  of.ends = ends.data();
  of.experts = experts.data();
  of.used = static_cast<int64_t>(experts.size());
  const int64_t owned = experts.empty() ? 0 : ends.back();
  std::memset(static_cast<void*>(of.out + owned * of.columns), 0, static_cast<size_t>((rows - owned) * of.columns) * sizeof(T));
  const auto loops = DAY0_SELECT_BF16(pieces<T, W>);
  const int64_t blocks = (of.columns + kColumns - 1) / kColumns;
  parallel(blocks * of.used, kColumns * of.inner, [&](int64_t begin, int64_t end) { loops(of, begin, end); });
}

void grouped_matmul_out(Tensor x, Tensor weight, Tensor ends, std::optional<Tensor> x_scale, std::optional<Tensor> weight_scale, int64_t block_rows, int64_t block_columns,
                        ScalarType dtype, Tensor out) {
  check_dims(kOp, "x", x, 2);
  check_dims(kOp, "weight", weight, 3);
  const int64_t rows = x.size(0), inner = x.size(1), experts = weight.size(0), columns = weight.size(1);
  STD_TORCH_CHECK(weight.size(2) == inner, kOp, ": weight must be (experts, columns, ", inner, ") as x's rows have it, got ", shape(weight));
  STD_TORCH_CHECK(block_rows > 0 && block_columns > 0, kOp, ": a block must have rows and columns, got ", block_rows, " by ", block_columns);
  STD_TORCH_CHECK(!x_scale || weight_scale, kOp, ": FP8 rows need an FP8 weight");
  check_dtype(kOp, "x (FP8 has a scale, any other is of the result's dtype)", x, x_scale ? ScalarType::Float8_e4m3fn : dtype);
  check_dtype(kOp, "weight (FP8 has a scale, any other is of the result's dtype)", weight, weight_scale ? ScalarType::Float8_e4m3fn : dtype);
  check_cpu(kOp, "ends", ends);
  check_dtype(kOp, "ends", ends, ScalarType::Int);
  check_shape(kOp, "ends", ends, {experts});
  check_out(kOp, "out", out);
  check_dtype(kOp, "out", out, dtype);
  check_shape(kOp, "out", out, {rows, columns});
  const int64_t across = inner / block_columns + (inner % block_columns != 0), down = columns / block_rows + (columns % block_rows != 0);
  if (x_scale) {
    x_scale = checked_scale("x_scale", *x_scale, {rows, across});
    x = torch::stable::to(x, dtype);  // exact in any of the dtypes
  }
  if (weight_scale) {
    weight_scale = checked_scale("weight_scale", *weight_scale, {experts, down, across});
  }
  x = with_rows(x);
  weight = with_rows(weight);
  std::vector<int64_t> used, begins, lasts;
  int64_t begin = 0;
  const int32_t* end_of = static_cast<const int32_t*>(ends.data_ptr());
  for (int64_t expert = 0; expert < experts; ++expert) {
    const int64_t end = end_of[expert * ends.stride(0)];
    STD_TORCH_CHECK(end >= begin && end <= rows, kOp, ": ends must rise to at most ", rows, " rows, got ", end, " after ", begin, " at expert ", expert);
    if (end > begin) {
      used.push_back(expert);
      begins.push_back(begin);
      lasts.push_back(end);
    }
    begin = end;
  }
  const auto multiply = [&]<typename T, typename W>(const T*, const W*) {
    Grouped<T, W> of{
        static_cast<const T*>(x.data_ptr()), static_cast<const W*>(weight.data_ptr()), x_scale ? static_cast<const float*>(x_scale->data_ptr()) : nullptr,
        weight_scale ? static_cast<const float*>(weight_scale->data_ptr()) : nullptr, static_cast<T*>(out.data_ptr()), nullptr, nullptr, nullptr, 0,
        columns, inner, x.stride(0), weight.stride(0), weight.stride(1), block_rows, block_columns};
    run(of, begins, lasts, used, rows);
  };
  if (out.numel() == 0) {
    return;
  }
  DAY0_FLOATS(kOp, dtype, {
    const scalar_t* type = nullptr;
    if (weight_scale) {
      multiply(type, static_cast<const Float8_e4m3fn*>(nullptr));
    } else {
      multiply(type, type);
    }
  });
}

Tensor grouped_matmul(Tensor x, Tensor weight, Tensor ends, std::optional<Tensor> x_scale, std::optional<Tensor> weight_scale, int64_t block_rows, int64_t block_columns, ScalarType dtype) {
  check_dims(kOp, "x", x, 2);
  check_dims(kOp, "weight", weight, 3);
  Tensor out = empty(x, {x.size(0), weight.size(1)}, dtype);
  grouped_matmul_out(x, weight, ends, x_scale, weight_scale, block_rows, block_columns, dtype, out);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(day0, CPU, library) {
  library.impl("grouped_matmul", TORCH_BOX(&grouped_matmul));
  library.impl("grouped_matmul.out", TORCH_BOX(&grouped_matmul_out));
}
