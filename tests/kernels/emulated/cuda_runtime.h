// The part of CUDA's language that our kernels use, on the CPU, so that what they compute is tested without a GPU.
//
// The threads of a block are fibers of one thread, and blocks run one after another. A fiber runs until it waits for its warp or
// its block, so an operation of a warp, or a barrier, that not all reach does not end: as on a GPU. Races between barriers do not
// show.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static
#define threadIdx (emulated::Thread{emulated::block->current})
#define blockIdx (emulated::block->index)
#define blockDim (emulated::block->size)

struct dim3 {
  unsigned x;
  dim3(unsigned x = 1) : x(x) {}
};
struct alignas(16) int4 {
  int x, y, z, w;
};
using cudaStream_t = void*;
enum cudaError_t { cudaSuccess };
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return ""; }
using std::isnan;
using std::max;
using std::min;

namespace emulated {

constexpr unsigned kLanes = 32;
constexpr size_t kStack = 64 << 10;

struct Thread {
  unsigned x;
};

struct Barrier {
  unsigned size = 0, arrived = 0, generation = 0;
};

struct Block {
  dim3 index, size;
  const std::function<void()>* body;
  std::vector<ucontext_t> fibers;
  std::vector<char> stacks, done;
  std::vector<Barrier> warps;
  std::vector<uint64_t> given;
  Barrier all;
  ucontext_t scheduler;
  unsigned current = 0;
};

inline Block* block = nullptr;

inline void wait(Barrier& barrier) {
  const unsigned mine = barrier.generation;
  if (++barrier.arrived == barrier.size) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
  while (barrier.generation == mine) {
    swapcontext(&block->fibers[block->current], &block->scheduler);
  }
}

inline void fiber() {
  (*block->body)();
  block->done[block->current] = 1;
}

inline void run(Block& own) {
  const unsigned threads = own.size.x;
  own.fibers.resize(threads);
  own.stacks.resize(threads * kStack);
  own.done.resize(threads);
  own.given.resize(threads);
  own.warps.resize((threads + kLanes - 1) / kLanes);
  own.all.size = threads;
  block = &own;
  for (unsigned t = 0; t < threads; ++t) {
    ++own.warps[t / kLanes].size;
    getcontext(&own.fibers[t]);
    own.fibers[t].uc_stack.ss_sp = own.stacks.data() + t * kStack;
    own.fibers[t].uc_stack.ss_size = kStack;
    own.fibers[t].uc_link = &own.scheduler;
    makecontext(&own.fibers[t], fiber, 0);
  }
  while (std::count(own.done.begin(), own.done.end(), 0)) {
    for (own.current = 0; own.current < threads; ++own.current) {
      if (!own.done[own.current]) {
        swapcontext(&own.scheduler, &own.fibers[own.current]);
      }
    }
  }
  block = nullptr;
}

// What a launch, `kernel<<<grid, threads, 0, stream>>>(arguments)`, is replaced by.
inline void launch(dim3 grid, dim3 threads, const std::function<void()>& body) {
  for (unsigned index = 0; index < grid.x; ++index) {
    Block own;
    own.index = index;
    own.size = threads;
    own.body = &body;
    run(own);
  }
}

// Each lane gives a value; `of` makes the result from those of the whole warp.
template <typename T, typename Function>
auto together(T value, const Function& of) {
  const unsigned warp = block->current / kLanes;
  std::memcpy(&block->given[block->current], &value, sizeof(T));
  wait(block->warps[warp]);
  T lanes[kLanes];
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    std::memcpy(&lanes[lane], &block->given[kLanes * warp + lane], sizeof(T));
  }
  wait(block->warps[warp]);
  return of(lanes);
}

}  // namespace emulated

inline void __syncthreads() { emulated::wait(emulated::block->all); }

template <typename T>
T __shfl_sync(unsigned, T value, int from) {
  return emulated::together(value, [&](const T* lanes) { return lanes[from]; });
}

template <typename T>
T __shfl_xor_sync(unsigned, T value, int step) {
  return emulated::together(value, [&](const T* lanes) { return lanes[(threadIdx.x % emulated::kLanes) ^ step]; });
}

inline unsigned __ballot_sync(unsigned, bool value) {
  return emulated::together(value, [](const bool* lanes) {
    unsigned found = 0;
    for (unsigned lane = 0; lane < emulated::kLanes; ++lane) {
      found |= static_cast<unsigned>(lanes[lane]) << lane;
    }
    return found;
  });
}

inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  return emulated::together(value, [](const unsigned* lanes) { return *std::max_element(lanes, lanes + emulated::kLanes); });
}

inline int __ffs(unsigned value) { return __builtin_ffs(static_cast<int>(value)); }

template <typename T>
T __ldg(const T* from) {
  return *from;
}

template <typename T>
T __ldcs(const T* from) {
  return *from;
}

inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float rsqrtf(float value) { return 1.0f / std::sqrt(value); }
