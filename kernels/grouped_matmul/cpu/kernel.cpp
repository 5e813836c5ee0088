// Products of runs of rows with experts' weights for the CPU.

#include "work.h"

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

// Rows of an expert from which packing them pays. A vector's products take the same time however many of its sixteen lanes are rows; against
// that, FP8 is converted once for all packed rows, and for four at a time of those that are not.
constexpr int64_t kPackedFrom = 17, kPackedFromOfFp8 = 5;

// Whether there is a packed way for the types: with dot products of bfloat16, over pairs of numbers that have one scale.
template <typename T>
bool packs(int64_t inner, bool scaled, int64_t block_columns) {
  return std::is_same_v<T, BFloat16> && instruction_set() == InstructionSet::avx512_bf16 && inner >= 32 &&
         (!scaled || block_columns >= inner || (block_columns >= 32 && block_columns % 2 == 0));
}

// `ends` of each expert's rows; those past the last are of none.
template <typename T, typename W>
void run(const Grouped<T, W>& of, const std::vector<int64_t>& ends, int64_t rows) {
  const bool scaled = of.weight_scale != nullptr;
  Work work{!packs<T>(of.inner, scaled, of.block_columns) ? rows + 1 : scaled ? kPackedFromOfFp8 : kPackedFrom};
  int64_t top = 0;
  for (size_t expert = 0; expert < ends.size(); ++expert) {
    if (ends[expert] > top) {
      work.add(static_cast<int64_t>(expert), top, ends[expert] - top, of.columns);
      top = ends[expert];
    }
  }
  std::memset(static_cast<void*>(of.out + top * of.columns), 0, static_cast<size_t>((rows - top) * of.columns) * sizeof(T));
  const int64_t count = static_cast<int64_t>(work.pieces.size());
  const int64_t worth = count * kDirectColumns * of.inner / 16384 + 1;  // as parallel() of operator.h counts: threads that save more than they cost
  const int64_t threads = std::min<int64_t>(torch::stable::get_num_threads(), worth);
  const Share share(count, threads);
  const auto loops = DAY0_SELECT_BF16(pieces<T, W>);
  torch::stable::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      loops(of, work, share, thread);
    }
  });
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
  std::vector<int64_t> lasts;
  int64_t begin = 0;
  const int32_t* end_of = static_cast<const int32_t*>(ends.data_ptr());
  for (int64_t expert = 0; expert < experts; ++expert) {
    const int64_t end = end_of[expert * ends.stride(0)];
    STD_TORCH_CHECK(end >= begin && end <= rows, kOp, ": ends must rise to at most ", rows, " rows, got ", end, " after ", begin, " at expert ", expert);
    lasts.push_back(end);
    begin = end;
  }
  const auto multiply = [&]<typename T, typename W>(const T*, const W*) {
    const Grouped<T, W> of{
        static_cast<const T*>(x.data_ptr()), static_cast<const W*>(weight.data_ptr()), x_scale ? static_cast<const float*>(x_scale->data_ptr()) : nullptr,
        weight_scale ? static_cast<const float*>(weight_scale->data_ptr()) : nullptr, static_cast<T*>(out.data_ptr()),
        columns, inner, x.stride(0), weight.stride(0), weight.stride(1), block_rows, block_columns};
    run(of, lasts, rows);
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
