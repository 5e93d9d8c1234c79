// Elements as kernels combine them: the same values, bit for bit, as the CPU's kernels give (reduce_kernels.h).
#pragma once

#include <cstdint>
#include <type_traits>

#include "collectives/gpu/job.h"
#include "collectives/small_floats.h"
#include "towline/collectives.h"

namespace towline::collectives::gpu {

template <class T>
struct PlainElement {
  using Bits = T;
  using Sum = T;
  TOWLINE_DEVICE static Sum widen(Bits bits) { return bits; }
  TOWLINE_DEVICE static Bits narrow(Sum value) { return value; }
};
template <class Format>
struct SmallElement {
  using Bits = typename Format::Bits;
  using Sum = float;
  TOWLINE_DEVICE static Sum widen(Bits bits) { return Format::widen(bits); }
  TOWLINE_DEVICE static Bits narrow(Sum value) { return Format::narrow(value); }
};
template <class Format>
struct TinyElement {
  using Bits = typename Format::Bits;
  using Sum = float;
  TOWLINE_DEVICE_CALL static Sum widen(Bits bits) { return Format::widen(bits); }
  TOWLINE_DEVICE_CALL static Bits narrow(Sum value) { return Format::narrow(value); }
};
struct BoolElement {
  using Bits = uint8_t;
  using Sum = uint8_t;
  TOWLINE_DEVICE static Sum widen(Bits bits) { return bits != 0; }
  TOWLINE_DEVICE static Bits narrow(Sum value) { return value; }
};

// All but sums, which are in line.
template <class E>
TOWLINE_DEVICE_CALL typename E::Sum combine_so(typename E::Sum a, typename E::Sum b, uint32_t reduction) {
  using T = typename E::Sum;
  if constexpr (std::is_same_v<E, BoolElement>) {
    if (reduction == TOWLINE_REDUCE_PRODUCT || reduction == TOWLINE_REDUCE_MIN ||
        reduction == TOWLINE_REDUCE_BAND)
      return a & b;
    return reduction == TOWLINE_REDUCE_BXOR ? a ^ b : a | b;
  } else if constexpr (std::is_integral_v<T>) {
    using U = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
    switch (reduction) {
      case TOWLINE_REDUCE_PRODUCT:
        return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
      case TOWLINE_REDUCE_MIN:
        return b < a ? b : a;
      case TOWLINE_REDUCE_MAX:
        return b > a ? b : a;
      case TOWLINE_REDUCE_BAND:
        return static_cast<T>(a & b);
      case TOWLINE_REDUCE_BOR:
        return static_cast<T>(a | b);
      case TOWLINE_REDUCE_BXOR:
        return static_cast<T>(a ^ b);
      default:
        return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    }
  } else {
    switch (reduction) {
      case TOWLINE_REDUCE_PRODUCT:
        return a * b;
      case TOWLINE_REDUCE_MIN:
        return (b < a || b != b) ? b : a;
      case TOWLINE_REDUCE_MAX:
        return (b > a || b != b) ? b : a;
      default:
        return a + b;
    }
  }
}

TOWLINE_DEVICE bool is_sum(uint32_t reduction) {
  return reduction == TOWLINE_REDUCE_SUM || reduction == TOWLINE_REDUCE_AVG ||
         reduction == TOWLINE_REDUCE_PREMUL_SUM;
}

template <class E>
TOWLINE_DEVICE typename E::Sum combine(typename E::Sum a, typename E::Sum b, uint32_t reduction, bool sums) {
  using T = typename E::Sum;
  if (!sums) return combine_so<E>(a, b, reduction);
  if constexpr (std::is_same_v<E, BoolElement>) {
    return a | b;
  } else if constexpr (std::is_integral_v<T>) {
    using U = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}

template <class T>
TOWLINE_DEVICE_CALL T average(T sum, uint32_t ranks) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(sum /
                          static_cast<std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>(ranks));
  else
    return sum / static_cast<T>(ranks);
}

// The result of all ranks' values.
template <class E>
TOWLINE_DEVICE typename E::Bits finish(typename E::Sum sum, uint32_t reduction, uint32_t ranks) {
  if (reduction == TOWLINE_REDUCE_AVG) sum = average(sum, ranks);
  return E::narrow(sum);
}

// One rank's input of a PREMUL_SUM.
template <class E>
TOWLINE_DEVICE typename E::Bits scale_one(typename E::Bits bits, double factor) {
  using T = typename E::Sum;
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint64_t>(bits) * static_cast<uint64_t>(static_cast<int64_t>(factor)));
  else
    return E::narrow(E::widen(bits) * static_cast<T>(factor));
}

template <class Bits>
TOWLINE_DEVICE Bits load_any(uint64_t address) {
  if constexpr (sizeof(Bits) != 1) {
    if ((address & (sizeof(Bits) - 1)) != 0) {
      uint64_t value = 0;
      for (uint32_t i = 0; i < sizeof(Bits); ++i)
        value |= static_cast<uint64_t>(device::load_unit<uint8_t>(address + i)) << (8 * i);
      Bits bits;
      memcpy(&bits, &value, sizeof bits);
      return bits;
    }
  }
  return device::load_unit<Bits>(address);
}
template <class Bits>
TOWLINE_DEVICE void store_any(uint64_t address, Bits bits) {
  if constexpr (sizeof(Bits) != 1) {
    if ((address & (sizeof(Bits) - 1)) != 0) {
      uint64_t value = 0;
      memcpy(&value, &bits, sizeof bits);
      for (uint32_t i = 0; i < sizeof(Bits); ++i)
        device::store_unit<uint8_t>(address + i, static_cast<uint8_t>(value >> (8 * i)));
      return;
    }
  }
  device::store_unit<Bits>(address, bits);
}

template <class Bits>
union Lanes {
  device::Pack pack;
  Bits lane[16 / sizeof(Bits)];
  TOWLINE_DEVICE Lanes() {}
};

// Packs of 16 bytes: kSources loads of kUnroll packs are under way at a time.
template <class E, uint32_t kSources, uint32_t kUnroll>
TOWLINE_DEVICE void reduce_packs(const Job& job, const uint64_t* from, const uint64_t* to, uint32_t targets,
                                 uint64_t packs) {
  using Bits = typename E::Bits;
  using Sum = typename E::Sum;
  constexpr uint32_t kLanes = 16 / sizeof(Bits);
  const uint32_t reduction = job.mark.reduction;
  const bool plain = is_sum(reduction);
  const uint64_t step = device::threads();
  for (uint64_t first = device::thread(); first < packs; first += step * kUnroll) {
    Sum sums[kUnroll][kLanes];
    for (uint32_t begin = 0; begin < job.size; begin += kSources) {
      Lanes<Bits> data[kSources][kUnroll];
      TOWLINE_UNROLL
      for (uint32_t s = 0; s < kSources; ++s) {
        if (begin + s >= job.size) continue;
        TOWLINE_UNROLL
        for (uint32_t k = 0; k < kUnroll; ++k)
          if (first + k * step < packs)
            data[s][k].pack = device::load_pack(from[begin + s] + (first + k * step) * 16);
      }
      TOWLINE_UNROLL
      for (uint32_t s = 0; s < kSources; ++s) {
        if (begin + s >= job.size) continue;
        TOWLINE_UNROLL
        for (uint32_t k = 0; k < kUnroll; ++k) {
          if (first + k * step >= packs) continue;
          TOWLINE_UNROLL
          for (uint32_t lane = 0; lane < kLanes; ++lane) {
            const Sum value = E::widen(data[s][k].lane[lane]);
            sums[k][lane] = begin + s == 0 ? value : combine<E>(sums[k][lane], value, reduction, plain);
          }
        }
      }
    }
    TOWLINE_UNROLL
    for (uint32_t k = 0; k < kUnroll; ++k) {
      if (first + k * step >= packs) continue;
      Lanes<Bits> result;
      TOWLINE_UNROLL
      for (uint32_t lane = 0; lane < kLanes; ++lane)
        result.lane[lane] = finish<E>(sums[k][lane], reduction, job.size);
      for (uint32_t target = 0; target < targets; ++target)
        device::store_pack(to[target] + (first + k * step) * 16, result.pack);
    }
  }
}

// Reduces `count` elements of all ranks, in rank order, and stores the result at every target. By one block.
template <class E>
TOWLINE_DEVICE_CALL void reduce_range(const Job& job, const uint64_t* from, const uint64_t* to,
                                      uint32_t targets, uint64_t count) {
  using Bits = typename E::Bits;
  using Sum = typename E::Sum;
  uint64_t apart = 0;
  for (uint32_t s = 0; s < job.size; ++s) apart |= from[s];
  for (uint32_t target = 0; target < targets; ++target) apart |= to[target];
  uint64_t done = 0;
  if ((apart & 15) == 0) {
    const uint64_t packs = count * sizeof(Bits) / 16;
    if (job.size <= 2)
      reduce_packs<E, 2, 2>(job, from, to, targets, packs);
    else
      reduce_packs<E, 4, 1>(job, from, to, targets, packs);
    done = packs * 16 / sizeof(Bits);
  }
  for (uint64_t i = done + device::thread(); i < count; i += device::threads()) {
    Sum sum = E::widen(load_any<Bits>(from[0] + i * sizeof(Bits)));
    for (uint32_t s = 1; s < job.size; ++s)
      sum = combine<E>(sum, E::widen(load_any<Bits>(from[s] + i * sizeof(Bits))), job.mark.reduction,
                       is_sum(job.mark.reduction));
    const Bits bits = finish<E>(sum, job.mark.reduction, job.size);
    for (uint32_t target = 0; target < targets; ++target)
      store_any<Bits>(to[target] + i * sizeof(Bits), bits);
  }
}

template <class E>
TOWLINE_DEVICE_CALL void scale_range(uint64_t to, uint64_t from, uint64_t count, double factor) {
  using Bits = typename E::Bits;
  for (uint64_t i = device::thread(); i < count; i += device::threads())
    store_any<Bits>(to + i * sizeof(Bits), scale_one<E>(load_any<Bits>(from + i * sizeof(Bits)), factor));
}

}  // namespace towline::collectives::gpu
