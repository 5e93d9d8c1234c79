// The kernels' source, compiled once for each instruction set: the including file defines TOWLINE_KERNELS to
// the name of its set. Everything here is in an anonymous namespace, so that the linker does not merge code
// of different sets.
//
// Data is processed in blocks that stay in the first-level cache. Types that are combined directly use the
// result itself as accumulator; 16- and 8-bit floats are widened to a block of float32.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "collectives/reduce.h"
#include "collectives/reduce_table.h"
#include "collectives/small_floats.h"
#include "towline/collectives.h"

namespace towline::collectives {
namespace {

constexpr uint64_t kBlockBytes = 8192;

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  }
};
struct Product {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
      return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    } else {
      return a * b;
    }
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return (b < a || b != b) ? b : a;
    else
      return b < a ? b : a;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return (b > a || b != b) ? b : a;
    else
      return b > a ? b : a;
  }
};
struct Band {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Bor {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Bxor {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

// ---- Types that are combined directly

template <class T, class Op>
void two(T* to, const T* a, const T* b, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) to[i] = Op::apply(a[i], b[i]);
}

// Stores whole vectors past the caches; unaligned parts are stored normally.
template <class T, class Op>
void two_streaming(T* to, const T* a, const T* b, uint64_t count) {
#if defined(__AVX512F__) || defined(__AVX2__)
#if defined(__AVX512F__)
  constexpr uint64_t kVector = 64;
#else
  constexpr uint64_t kVector = 32;
#endif
  constexpr uint64_t kLanes = kVector / sizeof(T);
  const uint64_t misaligned = reinterpret_cast<uintptr_t>(to) % kVector;
  uint64_t head = misaligned == 0 ? 0 : (kVector - misaligned) / sizeof(T);
  head = std::min(head, count);
  two<T, Op>(to, a, b, head);
  uint64_t i = head;
  for (; i + kLanes <= count; i += kLanes) {
    alignas(kVector) T lanes[kLanes];
    for (uint64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = Op::apply(a[i + lane], b[i + lane]);
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_load_si512(lanes));
#else
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_load_si256(reinterpret_cast<const __m256i*>(lanes)));
#endif
  }
  two<T, Op>(to + i, a + i, b + i, count - i);
  _mm_sfence();
#else
  two<T, Op>(to, a, b, count);
#endif
}

template <class T>
void divide(T* values, uint64_t count, uint32_t divisor) {
  if constexpr (std::is_integral_v<T>) {
    const auto by = static_cast<std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>(divisor);
    for (uint64_t i = 0; i < count; ++i) values[i] = static_cast<T>(values[i] / by);
  } else {
    const T by = static_cast<T>(divisor);
    for (uint64_t i = 0; i < count; ++i) values[i] = values[i] / by;
  }
}

// Element by element: for so few that the blocks and passes below take longer than the elements.
constexpr uint64_t kFewBytes = 32;
template <class T, class Op>
void few(T* to, const T* const* from, const ReduceArgs& args) {
  for (uint64_t i = 0; i < args.count; ++i) {
    T sum = from[0][i];
    for (uint32_t source = 1; source < args.sources; ++source) sum = Op::apply(sum, from[source][i]);
    to[i] = sum;
  }
}

template <class T, class Op>
void plain(const ReduceArgs& args) {
  T* to = static_cast<T*>(args.to);
  const auto* const* from = reinterpret_cast<const T* const*>(args.from);
  const bool average = args.reduction == TOWLINE_REDUCE_AVG;
  if (args.count <= kFewBytes / sizeof(T) && !average) return few<T, Op>(to, from, args);
  if (args.sources == 2 && !average) {
    if (args.streaming)
      two_streaming<T, Op>(to, from[0], from[1], args.count);
    else
      two<T, Op>(to, from[0], from[1], args.count);
    return;
  }
  constexpr uint64_t kBlock = kBlockBytes / sizeof(T);
  alignas(64) T sums[kBlock];
  for (uint64_t begin = 0; begin < args.count; begin += kBlock) {
    const uint64_t count = std::min(kBlock, args.count - begin);
    if (args.sources == 1) {
      std::memcpy(sums, from[0] + begin, count * sizeof(T));
    } else {
      two<T, Op>(sums, from[0] + begin, from[1] + begin, count);
    }
    const uint32_t whole = average ? args.sources : std::max(args.sources, 1u) - 1;
    for (uint32_t source = 2; source < whole; ++source) two<T, Op>(sums, sums, from[source] + begin, count);
    if (average) {
      divide(sums, count, args.divisor);
      std::memcpy(to + begin, sums, count * sizeof(T));
    } else if (args.sources > 2) {
      two<T, Op>(to + begin, sums, from[args.sources - 1] + begin, count);
    } else {
      std::memcpy(to + begin, sums, count * sizeof(T));
    }
  }
}

// ---- 16- and 8-bit floats

template <class Format>
void widen(float* to, const typename Format::Bits* from, uint64_t count) {
  uint64_t i = 0;
#if defined(__F16C__)
  if constexpr (std::is_same_v<Format, Float16>) {
    for (; i + 8 <= count; i += 8)
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
#endif
  for (; i < count; ++i) to[i] = Format::widen(from[i]);
}

template <class Format>
void narrow(typename Format::Bits* to, const float* from, uint64_t count) {
  uint64_t i = 0;
#if defined(__F16C__)
  if constexpr (std::is_same_v<Format, Float16>) {
    for (; i + 8 <= count; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  }
#endif
  for (; i < count; ++i) to[i] = Format::narrow(from[i]);
}

template <class Format, class Op>
void combine(float* sums, const typename Format::Bits* from, uint64_t count) {
  alignas(64) float wide[256];
  for (uint64_t begin = 0; begin < count; begin += 256) {
    const uint64_t n = std::min<uint64_t>(256, count - begin);
    widen<Format>(wide, from + begin, n);
    two<float, Op>(sums + begin, sums + begin, wide, n);
  }
}

template <class Format, class Op>
void widened(const ReduceArgs& args) {
  using Bits = typename Format::Bits;
  Bits* to = static_cast<Bits*>(args.to);
  const auto* const* from = reinterpret_cast<const Bits* const*>(args.from);
  constexpr uint64_t kBlock = 1024;
  alignas(64) float block[kBlock];
  const Unrounded& unrounded = args.unrounded;
  for (uint64_t begin = 0; begin < args.count; begin += kBlock) {
    const uint64_t count = std::min(kBlock, args.count - begin);
    float* const sums = unrounded.sums != nullptr ? unrounded.sums + begin : block;
    uint32_t source = 0;
    if (!unrounded.begun) widen<Format>(sums, from[source++] + begin, count);
    for (; source < args.sources; ++source) combine<Format, Op>(sums, from[source] + begin, count);
    if (unrounded.sums != nullptr && !unrounded.ends) continue;
    if (args.reduction == TOWLINE_REDUCE_AVG) divide(sums, count, args.divisor);
    narrow<Format>(to + begin, sums, count);
  }
}

// ---- Bools

template <class Op>
void bools(const ReduceArgs& args) {
  auto* to = static_cast<uint8_t*>(args.to);
  const auto* const* from = reinterpret_cast<const uint8_t* const*>(args.from);
  for (uint64_t i = 0; i < args.count; ++i) {
    uint8_t value = from[0][i] != 0;
    for (uint32_t source = 1; source < args.sources; ++source)
      value = Op::apply(value, static_cast<uint8_t>(from[source][i] != 0));
    to[i] = value;
  }
}

// ---- Choosing

template <class T>
ReduceFn plain_for(uint32_t reduction) {
  switch (reduction) {
    case TOWLINE_REDUCE_SUM:
    case TOWLINE_REDUCE_AVG:
    case TOWLINE_REDUCE_PREMUL_SUM:
      return plain<T, Sum>;
    case TOWLINE_REDUCE_PRODUCT:
      return plain<T, Product>;
    case TOWLINE_REDUCE_MIN:
      return plain<T, Min>;
    case TOWLINE_REDUCE_MAX:
      return plain<T, Max>;
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (reduction == TOWLINE_REDUCE_BAND) return plain<T, Band>;
    if (reduction == TOWLINE_REDUCE_BOR) return plain<T, Bor>;
    if (reduction == TOWLINE_REDUCE_BXOR) return plain<T, Bxor>;
  }
  return nullptr;
}

template <class Format>
ReduceFn widened_for(uint32_t reduction) {
  switch (reduction) {
    case TOWLINE_REDUCE_SUM:
    case TOWLINE_REDUCE_AVG:
    case TOWLINE_REDUCE_PREMUL_SUM:
      return widened<Format, Sum>;
    case TOWLINE_REDUCE_PRODUCT:
      return widened<Format, Product>;
    case TOWLINE_REDUCE_MIN:
      return widened<Format, Min>;
    case TOWLINE_REDUCE_MAX:
      return widened<Format, Max>;
    default:
      return nullptr;
  }
}

ReduceFn bools_for(uint32_t reduction) {
  switch (reduction) {
    case TOWLINE_REDUCE_SUM:
    case TOWLINE_REDUCE_MAX:
    case TOWLINE_REDUCE_BOR:
      return bools<Bor>;
    case TOWLINE_REDUCE_PRODUCT:
    case TOWLINE_REDUCE_MIN:
    case TOWLINE_REDUCE_BAND:
      return bools<Band>;
    case TOWLINE_REDUCE_BXOR:
      return bools<Bxor>;
    default:
      return nullptr;
  }
}

ReduceFn choose(uint32_t datatype, uint32_t reduction) {
  switch (datatype) {
    case TOWLINE_FLOAT32:
      return plain_for<float>(reduction);
    case TOWLINE_FLOAT64:
      return plain_for<double>(reduction);
    case TOWLINE_FLOAT16:
      return widened_for<Float16>(reduction);
    case TOWLINE_BFLOAT16:
      return widened_for<Bfloat16>(reduction);
    case TOWLINE_FLOAT8_E4M3:
      return widened_for<Float8E4m3>(reduction);
    case TOWLINE_FLOAT8_E5M2:
      return widened_for<Float8E5m2>(reduction);
    case TOWLINE_INT8:
      return plain_for<int8_t>(reduction);
    case TOWLINE_UINT8:
      return plain_for<uint8_t>(reduction);
    case TOWLINE_INT16:
      return plain_for<int16_t>(reduction);
    case TOWLINE_UINT16:
      return plain_for<uint16_t>(reduction);
    case TOWLINE_INT32:
      return plain_for<int32_t>(reduction);
    case TOWLINE_UINT32:
      return plain_for<uint32_t>(reduction);
    case TOWLINE_INT64:
      return plain_for<int64_t>(reduction);
    case TOWLINE_UINT64:
      return plain_for<uint64_t>(reduction);
    case TOWLINE_BOOL:
      return bools_for(reduction);
    default:
      return nullptr;
  }
}

}  // namespace

ReduceFn TOWLINE_KERNELS(uint32_t datatype, uint32_t reduction) noexcept {
  return choose(datatype, reduction);
}

}  // namespace towline::collectives
