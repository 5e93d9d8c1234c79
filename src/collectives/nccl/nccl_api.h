// The part of NCCL's binary interface that is used here, as of NCCL 2.14, loaded at run time: from the process, which
// may have it with torch, or by its name or the setting collectives.nccl_library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/os/dynamic_library.h"

namespace towline::collectives::nccl {

using Result = int;
using Comm = struct OpaqueComm*;
using Stream = void*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidArgument = 4;
inline constexpr Result kInvalidUsage = 5;
inline constexpr Result kRemoteError = 6;
inline constexpr Result kInProgress = 7;

struct UniqueId {
  char bytes[128];
};

// The head of NCCL's structure, which it takes by its size and version.
struct Settings {
  size_t size = sizeof(Settings);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 1;
};

enum Datatype : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8E4m3 = 10,  // from 2.24 on
  kFloat8E5m2 = 11,
};

using Reduction = int;
inline constexpr Reduction kSum = 0;
inline constexpr Reduction kProduct = 1;
inline constexpr Reduction kMax = 2;
inline constexpr Reduction kMin = 3;
inline constexpr Reduction kAverage = 4;

inline constexpr int kScalarOnHost = 1;
inline constexpr int kWithFloat8 = 22400;  // NCCL's version numbers
inline constexpr int kOldest = 21400;

struct Api {
  // Throws Error that says what is missing. `file`: a library's path, or empty for the usual places.
  explicit Api(const std::string& file);

  [[nodiscard]] std::string text(Result code, Comm comm = nullptr) const;

  DynamicLibrary library;
  int version = 0;  // 22803: NCCL 2.28.3

  Result (*get_version)(int*) = nullptr;
  const char* (*get_error_string)(Result) = nullptr;
  const char* (*get_last_error)(Comm) = nullptr;
  Result (*get_unique_id)(UniqueId*) = nullptr;
  Result (*init)(Comm*, int, UniqueId, int, Settings*) = nullptr;
  Result (*destroy)(Comm) = nullptr;
  Result (*abort)(Comm) = nullptr;
  Result (*get_async_error)(Comm, Result*) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*make_premul_sum)(Reduction*, void*, int, int, Comm) = nullptr;
  Result (*free_reduction)(Reduction, Comm) = nullptr;
  Result (*all_reduce)(const void*, void*, size_t, int, Reduction, Comm, Stream) = nullptr;
  Result (*reduce)(const void*, void*, size_t, int, Reduction, int, Comm, Stream) = nullptr;
  Result (*broadcast)(const void*, void*, size_t, int, int, Comm, Stream) = nullptr;
  Result (*all_gather)(const void*, void*, size_t, int, Comm, Stream) = nullptr;
  Result (*reduce_scatter)(const void*, void*, size_t, int, Reduction, Comm, Stream) = nullptr;
  Result (*send)(const void*, size_t, int, int, Comm, Stream) = nullptr;
  Result (*recv)(void*, size_t, int, int, Comm, Stream) = nullptr;
};

}  // namespace towline::collectives::nccl
