// Compiles a kernel's loops once for each instruction set, and chooses among them when called.
//
//   #define DAY0_LOOPS "../../rotary/cpu/loops.h"   // relative to this file
//   #include "../../common/cpu/multiversion.h"
//   auto rows = DAY0_SELECT(rows<BFloat16>);          // avx512::rows, avx2::rows or portable::rows
//
// The loops take a struct of arguments, declared before, and a range: void rows(const Arguments<T>&, int64_t begin, int64_t end).
// Their header has no include guard and holds functions and templates only: a lambda that a template makes would be
// compiled for the baseline, so threads are started by the caller (operator.h). The same way is taken by Highway
// (foreach_target.h), which is not used here to keep what a user's machine must have down to a compiler and torch.
// Compilers other than GCC, and machines other than x86-64, get the portable loops, vectorised for the target they are given.
#pragma once

#include "instruction_set.h"

#define DAY0_INLINE inline __attribute__((always_inline))

#if DAY0_X86
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prefer-vector-width=512")
#define DAY0_VECTORS 512
namespace day0::avx512 {
#include "vector.h"
#include DAY0_LOOPS
}  // namespace day0::avx512
#undef DAY0_VECTORS
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define DAY0_VECTORS 256
namespace day0::avx2 {
#include "vector.h"
#include DAY0_LOOPS
}  // namespace day0::avx2
#undef DAY0_VECTORS
#pragma GCC pop_options
#endif

#if DAY0_X86 && defined(DAY0_WITH_BF16)
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c,prefer-vector-width=512")
#define DAY0_VECTORS 512
#define DAY0_BF16 1
namespace day0::avx512_bf16 {
#include "vector.h"
#include DAY0_LOOPS
}  // namespace day0::avx512_bf16
#undef DAY0_BF16
#undef DAY0_VECTORS
#pragma GCC pop_options
#endif

#define DAY0_VECTORS 0
namespace day0::portable {
#include "vector.h"
#include DAY0_LOOPS
}  // namespace day0::portable
#undef DAY0_VECTORS

// The same with a set that has dot products of bfloat16; its loops are compiled where DAY0_WITH_BF16 is defined.
#if DAY0_X86
#define DAY0_SELECT_BF16(...)                                                               \
  (::day0::instruction_set() == ::day0::InstructionSet::avx512_bf16 ? &::day0::avx512_bf16::__VA_ARGS__ : DAY0_SELECT(__VA_ARGS__))
#else
#define DAY0_SELECT_BF16(...) DAY0_SELECT(__VA_ARGS__)
#endif

#if DAY0_X86
#define DAY0_SELECT(...)                                                                                    \
  (::day0::instruction_set() >= ::day0::InstructionSet::avx512 ? &::day0::avx512::__VA_ARGS__               \
   : ::day0::instruction_set() == ::day0::InstructionSet::avx2 ? &::day0::avx2::__VA_ARGS__                 \
                                                               : &::day0::portable::__VA_ARGS__)
#else
#define DAY0_SELECT(...) (&::day0::portable::__VA_ARGS__)
#endif
