// Reducing the inputs of several ranks, element by element, in the order of the ranks.
//
// Kernels are compiled for several instruction sets; one is chosen at run time, once. All give bitwise the
// same results: each element is combined in the same order with the same operations, 16- and 8-bit floats in
// float32 with one rounding at the end.
#pragma once

#include <cstddef>
#include <cstdint>

namespace towline::collectives {

// A reduction in several calls, of 16- or 8-bit floats: between the calls its results stay in float32, unrounded.
struct Unrounded {
  float* sums = nullptr;  // null: one call does it all
  bool begun = false;     // `sums` holds what calls before this one combined
  bool ends = false;      // with this call, which divides, rounds and stores
};

// to[i] = from[0][i] op from[1][i] op ... for `count` elements. `sources` is at least 1. For AVG the result
// is divided by `divisor`. to may be one of the sources, otherwise none overlap. PREMUL_SUM is SUM here: see
// scale(). `streaming`: store past the caches, for results that are not read soon.
struct ReduceArgs {
  void* to;
  const void* const* from;
  uint32_t sources;
  uint32_t datatype;
  uint32_t reduction;
  uint32_t divisor;
  uint64_t count;
  bool streaming = false;
  Unrounded unrounded = {};
};
void reduce(const ReduceArgs& args) noexcept;

// to[i] = from[i] * factor, rounded to the type. Integers: the factor is rounded towards zero first.
void scale(void* to, const void* from, uint64_t count, uint32_t datatype, double factor) noexcept;

// "avx512", "avx2", "neon", "baseline".
const char* reduce_kernels() noexcept;

// For tests: reduces with the kernels of one instruction set; false if this processor does not have it.
bool reduce_with(const char* kernels, const ReduceArgs& args) noexcept;

}  // namespace towline::collectives
