#include "collectives/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "collectives/calls/types.h"
#include "collectives/small_floats.h"

namespace towline::collectives {
namespace {

// Values of any type, small enough that sums and products of a few keep to the type's range.
double get(const uint8_t* at, uint32_t datatype) {
  switch (datatype) {
    case TOWLINE_FLOAT32: {
      float v;
      std::memcpy(&v, at, 4);
      return v;
    }
    case TOWLINE_FLOAT64: {
      double v;
      std::memcpy(&v, at, 8);
      return v;
    }
    case TOWLINE_FLOAT16: {
      uint16_t v;
      std::memcpy(&v, at, 2);
      return Float16::widen(v);
    }
    case TOWLINE_BFLOAT16: {
      uint16_t v;
      std::memcpy(&v, at, 2);
      return Bfloat16::widen(v);
    }
    case TOWLINE_FLOAT8_E4M3:
      return Float8E4m3::widen(*at);
    case TOWLINE_FLOAT8_E5M2:
      return Float8E5m2::widen(*at);
    case TOWLINE_INT8:
      return static_cast<int8_t>(*at);
    case TOWLINE_INT16: {
      int16_t v;
      std::memcpy(&v, at, 2);
      return v;
    }
    case TOWLINE_UINT16: {
      uint16_t v;
      std::memcpy(&v, at, 2);
      return v;
    }
    case TOWLINE_INT32: {
      int32_t v;
      std::memcpy(&v, at, 4);
      return v;
    }
    case TOWLINE_UINT32: {
      uint32_t v;
      std::memcpy(&v, at, 4);
      return v;
    }
    case TOWLINE_INT64: {
      int64_t v;
      std::memcpy(&v, at, 8);
      return static_cast<double>(v);
    }
    case TOWLINE_UINT64: {
      uint64_t v;
      std::memcpy(&v, at, 8);
      return static_cast<double>(v);
    }
    default:
      return *at;
  }
}

void put(uint8_t* at, uint32_t datatype, int value) {
  const auto as = [&](auto v) { std::memcpy(at, &v, sizeof v); };
  switch (datatype) {
    case TOWLINE_FLOAT32:
      return as(static_cast<float>(value));
    case TOWLINE_FLOAT64:
      return as(static_cast<double>(value));
    case TOWLINE_FLOAT16:
      return as(Float16::narrow(static_cast<float>(value)));
    case TOWLINE_BFLOAT16:
      return as(Bfloat16::narrow(static_cast<float>(value)));
    case TOWLINE_FLOAT8_E4M3:
      return as(Float8E4m3::narrow(static_cast<float>(value)));
    case TOWLINE_FLOAT8_E5M2:
      return as(Float8E5m2::narrow(static_cast<float>(value)));
    case TOWLINE_INT8:
      return as(static_cast<int8_t>(value));
    case TOWLINE_UINT8:
      return as(static_cast<uint8_t>(value));
    case TOWLINE_INT16:
      return as(static_cast<int16_t>(value));
    case TOWLINE_UINT16:
      return as(static_cast<uint16_t>(value));
    case TOWLINE_INT32:
      return as(static_cast<int32_t>(value));
    case TOWLINE_UINT32:
      return as(static_cast<uint32_t>(value));
    case TOWLINE_INT64:
      return as(static_cast<int64_t>(value));
    case TOWLINE_UINT64:
      return as(static_cast<uint64_t>(value));
    default:
      return as(static_cast<uint8_t>(value & 1));
  }
}

double expected(const std::vector<double>& values, uint32_t datatype, uint32_t reduction) {
  double result = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    const double v = values[i];
    switch (reduction) {
      case TOWLINE_REDUCE_PRODUCT:
        result *= v;
        break;
      case TOWLINE_REDUCE_MIN:
        result = std::min(result, v);
        break;
      case TOWLINE_REDUCE_MAX:
        result = std::max(result, v);
        break;
      case TOWLINE_REDUCE_BAND:
        result = static_cast<double>(static_cast<int64_t>(result) & static_cast<int64_t>(v));
        break;
      case TOWLINE_REDUCE_BOR:
        result = static_cast<double>(static_cast<int64_t>(result) | static_cast<int64_t>(v));
        break;
      case TOWLINE_REDUCE_BXOR:
        result = static_cast<double>(static_cast<int64_t>(result) ^ static_cast<int64_t>(v));
        break;
      default:
        result += v;
        break;
    }
  }
  if (datatype == TOWLINE_BOOL && (reduction == TOWLINE_REDUCE_SUM)) result = result != 0 ? 1 : 0;
  if (reduction == TOWLINE_REDUCE_AVG) {
    result /= static_cast<double>(values.size());
    if (!is_floating(datatype)) result = std::trunc(result);
  }
  return result;
}

TEST(Reduce, EveryTypeAndReductionByEveryKernelGivesTheSameBitsAndTheRightValue) {
  std::mt19937 random(7);
  for (uint32_t datatype = 0; datatype < kDatatypes; ++datatype) {
    for (uint32_t reduction = 0; reduction < kReductions; ++reduction) {
      if (!can_reduce(datatype, reduction)) continue;
      for (const uint32_t sources : {1u, 2u, 3u, 4u}) {
        const uint64_t count = 1003;
        const size_t element = datatype_bytes(datatype);
        // One element off from a vector's alignment.
        std::vector<std::vector<uint8_t>> inputs(sources, std::vector<uint8_t>((count + 1) * element));
        std::vector<const void*> from;
        for (auto& input : inputs) {
          for (uint64_t i = 0; i <= count; ++i)
            put(input.data() + i * element, datatype, static_cast<int>(random() % 3) + 1);
          from.push_back(input.data() + element);
        }
        std::vector<uint8_t> result(count * element);
        ReduceArgs args = {result.data(), from.data(), sources, datatype, reduction, sources, count};
        reduce(args);
        for (uint64_t i = 0; i < count; ++i) {
          std::vector<double> values;
          for (const void* source : from)
            values.push_back(get(static_cast<const uint8_t*>(source) + i * element, datatype));
          double right = expected(values, datatype, reduction);
          double got = get(result.data() + i * element, datatype);
          const double slack = is_floating(datatype) ? std::abs(right) * 0.13 : 0;
          ASSERT_NEAR(got, right, datatype <= TOWLINE_FLOAT64 ? 1e-5 : slack)
              << datatype_name(datatype) << " " << reduction_name(reduction) << " of " << sources << " at "
              << i;
        }
        for (const char* kernels : {"baseline", "avx2", "avx512", "neon"}) {
          for (const bool streaming : {false, true}) {
            std::vector<uint8_t> other(count * element);
            args.to = other.data();
            args.streaming = streaming;
            if (!reduce_with(kernels, args)) continue;
            EXPECT_EQ(other, result) << kernels << " " << datatype_name(datatype) << " "
                                     << reduction_name(reduction);
          }
        }
      }
    }
  }
}

TEST(Reduce, SmallFloatsAreRoundedOnceAfterAddingInFloat32) {
  // 256 + 1 + 1 in bfloat16: one by one each 1 is lost, together they make 258.
  const uint16_t big = Bfloat16::narrow(256.0f);
  const uint16_t one = Bfloat16::narrow(1.0f);
  const void* from[] = {&big, &one, &one};
  uint16_t sum = 0;
  reduce({&sum, from, 3, TOWLINE_BFLOAT16, TOWLINE_REDUCE_SUM, 3, 1});
  EXPECT_EQ(Bfloat16::widen(sum), 258.0f);
}

// As one call does it, with the kernels of every instruction set; more elements than a block has.
TEST(Reduce, SmallFloatsInSeveralCallsAreRoundedByTheLast) {
  constexpr uint64_t kCount = 2500;
  for (const uint32_t datatype :
       {TOWLINE_FLOAT16, TOWLINE_BFLOAT16, TOWLINE_FLOAT8_E4M3, TOWLINE_FLOAT8_E5M2}) {
    const uint64_t element = datatype_bytes(datatype);
    std::vector<std::vector<uint8_t>> inputs(4, std::vector<uint8_t>(kCount * element));
    for (size_t source = 0; source < inputs.size(); ++source)
      for (uint64_t i = 0; i < kCount; ++i)
        put(inputs[source].data() + i * element, datatype,
            static_cast<int>((i * 7 + source * 5) % 40) << (source % 3));
    const void* from[] = {inputs[0].data(), inputs[1].data(), inputs[2].data(), inputs[3].data()};
    for (const uint32_t reduction : {TOWLINE_REDUCE_SUM, TOWLINE_REDUCE_AVG, TOWLINE_REDUCE_MIN}) {
      std::vector<uint8_t> at_once(kCount * element);
      reduce({at_once.data(), from, 4, datatype, reduction, 4, kCount});
      for (const char* kernels : {"avx512", "avx2", "neon", "baseline"}) {
        std::vector<uint8_t> result(kCount * element);
        std::vector<float> sums(kCount);
        ReduceArgs args{result.data(), from, 2, datatype, reduction, 4, kCount};
        args.unrounded = {sums.data(), false, false};
        if (!reduce_with(kernels, args)) continue;
        EXPECT_EQ(result, std::vector<uint8_t>(kCount * element)) << "stored before the last call";
        for (uint32_t source = 2; source < 4; ++source) {
          args.from = from + source;
          args.sources = 1;
          args.unrounded = {sums.data(), true, source == 3};
          (void)reduce_with(kernels, args);
        }
        EXPECT_EQ(result, at_once) << kernels << " " << reduction_name(reduction);
      }
    }
  }
}

TEST(Reduce, MinAndMaxOfANanAreNan) {
  const float nan = NAN;
  const float one = 1;
  for (const uint32_t reduction : {TOWLINE_REDUCE_MIN, TOWLINE_REDUCE_MAX}) {
    float result = 0;
    const void* first[] = {&nan, &one};
    reduce({&result, first, 2, TOWLINE_FLOAT32, reduction, 2, 1});
    EXPECT_TRUE(std::isnan(result));
    const void* second[] = {&one, &nan};
    reduce({&result, second, 2, TOWLINE_FLOAT32, reduction, 2, 1});
    EXPECT_TRUE(std::isnan(result));
  }
}

TEST(SmallFloats, EveryValueComesBackFromFloat32) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if (!std::isnan(Float16::widen(half))) {
      ASSERT_EQ(Float16::narrow(Float16::widen(half)), half) << bits;
    }
    if (!std::isnan(Bfloat16::widen(half))) {
      ASSERT_EQ(Bfloat16::narrow(Bfloat16::widen(half)), half) << bits;
    }
  }
  for (uint32_t bits = 0; bits < 256; ++bits) {
    const auto byte = static_cast<uint8_t>(bits);
    if (!std::isnan(Float8E4m3::widen(byte))) {
      ASSERT_EQ(Float8E4m3::narrow(Float8E4m3::widen(byte)), byte) << bits;
    }
    if (!std::isnan(Float8E5m2::widen(byte))) {
      ASSERT_EQ(Float8E5m2::narrow(Float8E5m2::widen(byte)), byte) << bits;
    }
  }
  EXPECT_EQ(Float8E4m3::widen(0x7e), 448.0f);
  EXPECT_EQ(Float8E5m2::widen(0x7b), 57344.0f);
  EXPECT_TRUE(std::isnan(Float8E4m3::widen(Float8E4m3::narrow(1000.0f))));
  EXPECT_TRUE(std::isinf(Float8E5m2::widen(Float8E5m2::narrow(1e6f))));
}

TEST(SmallFloats, TiesGoToEven) {
  EXPECT_EQ(Float16::widen(Float16::narrow(2049.0f)), 2048.0f);
  EXPECT_EQ(Float16::widen(Float16::narrow(2051.0f)), 2052.0f);
  EXPECT_EQ(Bfloat16::widen(Bfloat16::narrow(257.0f)), 256.0f);
  EXPECT_EQ(Bfloat16::widen(Bfloat16::narrow(259.0f)), 260.0f);
  EXPECT_EQ(Float8E4m3::widen(Float8E4m3::narrow(17.0f)), 16.0f);
  EXPECT_EQ(Float8E4m3::widen(Float8E4m3::narrow(19.0f)), 20.0f);
  EXPECT_TRUE(std::isinf(Float16::widen(Float16::narrow(65520.0f))));
  EXPECT_EQ(Float16::widen(Float16::narrow(65519.0f)), 65504.0f);
}

TEST(Scale, IsRoundedToTheType) {
  const int32_t in[] = {3, -4};
  int32_t out[2];
  scale(out, in, 2, TOWLINE_INT32, 2.9);
  EXPECT_EQ(out[0], 6);
  EXPECT_EQ(out[1], -8);
  const double wide[] = {1.5};
  double result[1];
  scale(result, wide, 1, TOWLINE_FLOAT64, 0.5);
  EXPECT_EQ(result[0], 0.75);
}

}  // namespace
}  // namespace towline::collectives
