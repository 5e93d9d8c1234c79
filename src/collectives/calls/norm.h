// The all_reduce that an all_reduce with RMSNorm begins with.
#pragma once

#include "towline/collectives_gpu.h"

namespace towline::collectives {

inline towline_collective_t all_reduce_of(const towline_collective_norm_t& norm) noexcept {
  towline_collective_t call = {};
  call.struct_size = sizeof call;
  call.op = TOWLINE_COLLECTIVE_ALL_REDUCE;
  call.datatype = norm.datatype;
  call.reduction = TOWLINE_REDUCE_SUM;
  call.count = norm.rows * norm.width;
  call.input = norm.input;
  call.output = norm.output;
  return call;
}

}  // namespace towline::collectives
