// The kernels: one function for each instruction set, compiled with that set's flags.
#pragma once

#include <cstdint>

#include "collectives/reduce.h"

namespace towline::collectives {

using ReduceFn = void (*)(const ReduceArgs&);

// Null if elements of the type can't be reduced this way.
ReduceFn baseline_kernel(uint32_t datatype, uint32_t reduction) noexcept;
#if defined(__x86_64__)
ReduceFn avx2_kernel(uint32_t datatype, uint32_t reduction) noexcept;
ReduceFn avx512_kernel(uint32_t datatype, uint32_t reduction) noexcept;
#endif

}  // namespace towline::collectives
