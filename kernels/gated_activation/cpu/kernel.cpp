// Gated activation for the CPU: each row is read once and half a row written.

#include "arguments.h"

#define DAY0_LOOPS "../../gated_activation/cpu/loops.h"
#define DAY0_WITH_BF16
#include "../../common/cpu/multiversion.h"

using namespace day0;

namespace {

constexpr const char* kOp = "gated_activation";

template <typename T, Activation A>
void run(const Gated<T>& of, int64_t rows, bool interleaved) {
  const bool plain = of.limit == std::numeric_limits<float>::infinity() && of.alpha == 1.0f && of.beta == 0.0f;
  const auto loops = interleaved ? DAY0_SELECT_BF16(rows<T, A, true, false>)
                     : plain     ? DAY0_SELECT_BF16(rows<T, A, false, true>)
                                 : DAY0_SELECT_BF16(rows<T, A, false, false>);
  parallel(rows, 2 * of.size, [&](int64_t begin, int64_t end) { loops(of, begin, end); });
}

void gated_activation_out(Tensor x, std::string activation, std::optional<double> limit, double alpha, double beta, bool interleaved, Tensor out) {
  check_cpu(kOp, "x", x);
  STD_TORCH_CHECK(x.dim() >= 1 && x.size(x.dim() - 1) % 2 == 0, kOp, ": x must have an even last dimension, gate and up, got shape ", shape(x));
  const int64_t size = x.size(x.dim() - 1) / 2;
  std::vector<int64_t> wanted(x.sizes().begin(), x.sizes().end());
  wanted.back() = size;
  check_out(kOp, "out", out);
  check_dtype(kOp, "out", out, x.scalar_type());
  check_shape(kOp, "out", out, wanted);
  STD_TORCH_CHECK(activation == "silu" || activation == "gelu" || activation == "gelu_tanh", kOp, ": activation must be silu, gelu or gelu_tanh, got ", activation);
  if (out.numel() == 0) {
    return;
  }
  const Tensor rows = with_rows(torch::stable::reshape(x, {-1, 2 * size}));
  DAY0_FLOATS(kOp, x.scalar_type(), {
    const Gated<scalar_t> of{
        static_cast<const scalar_t*>(rows.data_ptr()), static_cast<scalar_t*>(out.data_ptr()), size, rows.stride(0),
        static_cast<float>(limit.value_or(std::numeric_limits<double>::infinity())), static_cast<float>(alpha), static_cast<float>(beta),
        write_mode(out, size * static_cast<int64_t>(sizeof(scalar_t)))};
    if (activation == "silu") {
      run<scalar_t, Activation::silu>(of, rows.size(0), interleaved);
    } else if (activation == "gelu") {
      run<scalar_t, Activation::gelu>(of, rows.size(0), interleaved);
    } else {
      run<scalar_t, Activation::gelu_tanh>(of, rows.size(0), interleaved);
    }
  });
}

Tensor gated_activation(Tensor x, std::string activation, std::optional<double> limit, double alpha, double beta, bool interleaved) {
  STD_TORCH_CHECK(x.dim() >= 1, kOp, ": x has no dimension");
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() /= 2;
  Tensor out = empty(x, sizes, x.scalar_type());
  gated_activation_out(x, activation, limit, alpha, beta, interleaved, out);
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(day0, CPU, library) {
  library.impl("gated_activation", TORCH_BOX(&gated_activation));
  library.impl("gated_activation.out", TORCH_BOX(&gated_activation_out));
}
