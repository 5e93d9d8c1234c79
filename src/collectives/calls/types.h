// Names and sizes of the C API's enumerators: data types, reductions, operations.
#pragma once

#include <cstddef>
#include <cstdint>

#include "towline/collectives.h"

namespace towline::collectives {

inline constexpr uint32_t kDatatypes = TOWLINE_BOOL + 1;
inline constexpr uint32_t kReductions = TOWLINE_REDUCE_PREMUL_SUM + 1;
inline constexpr uint32_t kOps = TOWLINE_COLLECTIVE_BATCH + 1;

size_t datatype_bytes(uint32_t datatype) noexcept;  // 0: unknown
const char* datatype_name(uint32_t datatype) noexcept;
const char* reduction_name(uint32_t reduction) noexcept;
const char* op_name(uint32_t op) noexcept;

inline bool is_floating(uint32_t datatype) noexcept { return datatype <= TOWLINE_FLOAT8_E5M2; }
inline bool reduces(uint32_t op) noexcept {
  return op == TOWLINE_COLLECTIVE_ALL_REDUCE || op == TOWLINE_COLLECTIVE_REDUCE ||
         op == TOWLINE_COLLECTIVE_REDUCE_SCATTER || op == TOWLINE_COLLECTIVE_REDUCE_SCATTER_V;
}
inline bool has_root(uint32_t op) noexcept {
  return op == TOWLINE_COLLECTIVE_REDUCE || op == TOWLINE_COLLECTIVE_BROADCAST ||
         op == TOWLINE_COLLECTIVE_GATHER || op == TOWLINE_COLLECTIVE_SCATTER ||
         op == TOWLINE_COLLECTIVE_SEND || op == TOWLINE_COLLECTIVE_RECV;
}
// Whether elements of the type can be reduced this way.
bool can_reduce(uint32_t datatype, uint32_t reduction) noexcept;

}  // namespace towline::collectives
