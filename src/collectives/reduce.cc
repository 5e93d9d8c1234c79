#include "collectives/reduce.h"

#include <cstring>

#include "collectives/calls/types.h"
#include "collectives/reduce_table.h"
#include "collectives/small_floats.h"

namespace towline::collectives {
namespace {

using Chooser = ReduceFn (*)(uint32_t, uint32_t) noexcept;

struct Kernels {
  const char* name;
  Chooser choose;
  bool usable;
};

struct KernelTable {
  Kernels sets[3];
  uint32_t count = 0;
  const Kernels* best = nullptr;
  ReduceFn functions[kDatatypes][kReductions] = {};

  KernelTable() noexcept {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    sets[count++] = {"avx512", avx512_kernel, avx512};
    sets[count++] = {"avx2", avx2_kernel, avx2};
    sets[count++] = {"baseline", baseline_kernel, true};
#elif defined(__aarch64__)
    sets[count++] = {"neon", baseline_kernel, true};
#else
    sets[count++] = {"baseline", baseline_kernel, true};
#endif
    for (uint32_t i = 0; i < count && best == nullptr; ++i)
      if (sets[i].usable) best = &sets[i];
    for (uint32_t type = 0; type < kDatatypes; ++type)
      for (uint32_t op = 0; op < kReductions; ++op) functions[type][op] = best->choose(type, op);
  }
};

const KernelTable& table() noexcept {
  static const KernelTable built;
  return built;
}

template <class T>
void scale_plain(void* to, const void* from, uint64_t count, double factor) noexcept {
  const auto* in = static_cast<const T*>(from);
  auto* out = static_cast<T*>(to);
  const T by = static_cast<T>(factor);
  for (uint64_t i = 0; i < count; ++i) out[i] = static_cast<T>(in[i] * by);
}

template <class T>
void scale_integer(void* to, const void* from, uint64_t count, double factor) noexcept {
  const auto* in = static_cast<const T*>(from);
  auto* out = static_cast<T*>(to);
  const auto by = static_cast<uint64_t>(static_cast<int64_t>(factor));
  for (uint64_t i = 0; i < count; ++i) out[i] = static_cast<T>(static_cast<uint64_t>(in[i]) * by);
}

template <class Format>
void scale_small(void* to, const void* from, uint64_t count, double factor) noexcept {
  const auto* in = static_cast<const typename Format::Bits*>(from);
  auto* out = static_cast<typename Format::Bits*>(to);
  const auto by = static_cast<float>(factor);
  for (uint64_t i = 0; i < count; ++i) out[i] = Format::narrow(Format::widen(in[i]) * by);
}

}  // namespace

void reduce(const ReduceArgs& args) noexcept {
  if (args.count != 0) table().functions[args.datatype][args.reduction](args);
}

const char* reduce_kernels() noexcept { return table().best->name; }

bool reduce_with(const char* kernels, const ReduceArgs& args) noexcept {
  const KernelTable& all = table();
  for (uint32_t i = 0; i < all.count; ++i) {
    if (std::strcmp(all.sets[i].name, kernels) != 0 || !all.sets[i].usable) continue;
    all.sets[i].choose(args.datatype, args.reduction)(args);
    return true;
  }
  return false;
}

void scale(void* to, const void* from, uint64_t count, uint32_t datatype, double factor) noexcept {
  switch (datatype) {
    case TOWLINE_FLOAT32:
      return scale_plain<float>(to, from, count, factor);
    case TOWLINE_FLOAT64:
      return scale_plain<double>(to, from, count, factor);
    case TOWLINE_FLOAT16:
      return scale_small<Float16>(to, from, count, factor);
    case TOWLINE_BFLOAT16:
      return scale_small<Bfloat16>(to, from, count, factor);
    case TOWLINE_FLOAT8_E4M3:
      return scale_small<Float8E4m3>(to, from, count, factor);
    case TOWLINE_FLOAT8_E5M2:
      return scale_small<Float8E5m2>(to, from, count, factor);
    case TOWLINE_INT8:
    case TOWLINE_UINT8:
      return scale_integer<uint8_t>(to, from, count, factor);
    case TOWLINE_INT16:
    case TOWLINE_UINT16:
      return scale_integer<uint16_t>(to, from, count, factor);
    case TOWLINE_INT32:
    case TOWLINE_UINT32:
      return scale_integer<uint32_t>(to, from, count, factor);
    case TOWLINE_INT64:
    case TOWLINE_UINT64:
      return scale_integer<uint64_t>(to, from, count, factor);
    default:
      return;
  }
}

}  // namespace towline::collectives
