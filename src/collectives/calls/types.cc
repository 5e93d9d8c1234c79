#include "collectives/calls/types.h"

namespace towline::collectives {
namespace {

struct Datatype {
  const char* name;
  size_t bytes;
};
constexpr Datatype kDatatypeTable[] = {
    {"float32", 4},     {"float64", 8}, {"float16", 2}, {"bfloat16", 2}, {"float8_e4m3", 1},
    {"float8_e5m2", 1}, {"int8", 1},    {"uint8", 1},   {"int16", 2},    {"uint16", 2},
    {"int32", 4},       {"uint32", 4},  {"int64", 8},   {"uint64", 8},   {"bool", 1},
};
constexpr const char* kReductionNames[] = {"sum", "product", "min", "max",       "band",
                                           "bor", "bxor",    "avg", "premul_sum"};
constexpr const char* kOpNames[] = {"barrier",    "all_reduce",   "reduce",         "broadcast",
                                    "all_gather", "all_gather_v", "reduce_scatter", "reduce_scatter_v",
                                    "gather",     "scatter",      "all_to_all",     "all_to_all_v",
                                    "send",       "recv",         "batch"};
static_assert(sizeof kDatatypeTable / sizeof *kDatatypeTable == kDatatypes);
static_assert(sizeof kReductionNames / sizeof *kReductionNames == kReductions);
static_assert(sizeof kOpNames / sizeof *kOpNames == kOps);

}  // namespace

size_t datatype_bytes(uint32_t datatype) noexcept {
  return datatype < kDatatypes ? kDatatypeTable[datatype].bytes : 0;
}
const char* datatype_name(uint32_t datatype) noexcept {
  return datatype < kDatatypes ? kDatatypeTable[datatype].name : "unknown";
}
const char* reduction_name(uint32_t reduction) noexcept {
  return reduction < kReductions ? kReductionNames[reduction] : "unknown";
}
const char* op_name(uint32_t op) noexcept { return op < kOps ? kOpNames[op] : "unknown"; }

bool can_reduce(uint32_t datatype, uint32_t reduction) noexcept {
  if (datatype >= kDatatypes || reduction >= kReductions) return false;
  switch (reduction) {
    case TOWLINE_REDUCE_BAND:
    case TOWLINE_REDUCE_BOR:
    case TOWLINE_REDUCE_BXOR:
      return !is_floating(datatype);
    case TOWLINE_REDUCE_AVG:
    case TOWLINE_REDUCE_PREMUL_SUM:
      return datatype != TOWLINE_BOOL;
    default:
      return true;
  }
}

}  // namespace towline::collectives
