#include "collectives/nccl/nccl_calls.h"

#include <array>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "collectives/calls/types.h"
#include "collectives/small_floats.h"

namespace towline::collectives::nccl {
namespace {

constexpr int kNone = -1;

// NCCL's type, for combining. NCCL has no bools and no 16-bit integers; bools combine as bytes.
int type_of(uint32_t datatype) {
  switch (datatype) {
    case TOWLINE_FLOAT32:
      return kFloat32;
    case TOWLINE_FLOAT64:
      return kFloat64;
    case TOWLINE_FLOAT16:
      return kFloat16;
    case TOWLINE_BFLOAT16:
      return kBfloat16;
    case TOWLINE_FLOAT8_E4M3:
      return kFloat8E4m3;
    case TOWLINE_FLOAT8_E5M2:
      return kFloat8E5m2;
    case TOWLINE_INT8:
      return kInt8;
    case TOWLINE_UINT8:
    case TOWLINE_BOOL:
      return kUint8;
    case TOWLINE_INT32:
      return kInt32;
    case TOWLINE_UINT32:
      return kUint32;
    case TOWLINE_INT64:
      return kInt64;
    case TOWLINE_UINT64:
      return kUint64;
    default:
      return kNone;
  }
}

// PREMUL_SUM has an operator of its own. A bool is true if any bit of its byte is set, so "any" is the largest byte and
// "all" the smallest.
int reduction_of(uint32_t datatype, uint32_t reduction) {
  const bool boolean = datatype == TOWLINE_BOOL;
  switch (reduction) {
    case TOWLINE_REDUCE_SUM:
      return boolean ? kMax : kSum;
    case TOWLINE_REDUCE_PRODUCT:
      return boolean ? kMin : kProduct;
    case TOWLINE_REDUCE_MIN:
      return kMin;
    case TOWLINE_REDUCE_MAX:
      return kMax;
    case TOWLINE_REDUCE_AVG:
      return kAverage;
    case TOWLINE_REDUCE_BOR:
      return boolean ? kMax : kNone;
    case TOWLINE_REDUCE_BAND:
      return boolean ? kMin : kNone;
    default:
      return kNone;
  }
}

// Parts that stand side by side, of one size.
bool side_by_side(const Parts& parts, uint64_t bytes) {
  for (size_t i = 0; i < parts.at.size(); ++i)
    if (parts.bytes[i] != bytes || parts.at[i] != parts.at[0] + i * bytes) return false;
  return true;
}

// A PREMUL_SUM's factor in the operation's type. Little endian: the low bytes of an integer are the narrower types'.
std::array<unsigned char, 8> factor_of(uint32_t datatype, double factor) {
  std::array<unsigned char, 8> bytes = {};
  const auto put = [&bytes](auto value) { std::memcpy(bytes.data(), &value, sizeof value); };
  const auto narrow = static_cast<float>(factor);
  switch (datatype) {
    case TOWLINE_FLOAT32:
      put(narrow);
      break;
    case TOWLINE_FLOAT64:
      put(factor);
      break;
    case TOWLINE_FLOAT16:
      put(Float16::narrow(narrow));
      break;
    case TOWLINE_BFLOAT16:
      put(Bfloat16::narrow(narrow));
      break;
    case TOWLINE_FLOAT8_E4M3:
      put(Float8E4m3::narrow(narrow));
      break;
    case TOWLINE_FLOAT8_E5M2:
      put(Float8E5m2::narrow(narrow));
      break;
    default:
      put(static_cast<int64_t>(factor));
  }
  return bytes;
}

class Caller {
 public:
  Caller(const Api& api, Comm comm, Stream stream) : api_(api), comm_(comm), stream_(stream) {}

  void take(Result result) {
    if (first_ == kSuccess) first_ = result;
  }
  void send(const void* from, uint64_t bytes, int peer) {
    if (bytes != 0) take(api_.send(from, bytes, kUint8, peer, comm_, stream_));
  }
  void receive(void* to, uint64_t bytes, int peer) {
    if (bytes != 0) take(api_.recv(to, bytes, kUint8, peer, comm_, stream_));
  }
  // All of them as one.
  template <class Calls>
  void group(Calls&& calls) {
    take(api_.group_start());
    if (first_ != kSuccess) return;
    calls();
    take(api_.group_end());
  }
  // Between parts and memory where they stand side by side: messages of this rank to itself.
  void copy(const Parts& parts, uint8_t* flat, bool gather, int rank) {
    group([&] {
      for (size_t i = 0; i < parts.at.size(); ++i) {
        uint8_t* const place = flat + i * parts.bytes[i];
        send(gather ? parts.at[i] : place, parts.bytes[i], rank);
        receive(gather ? place : parts.at[i], parts.bytes[i], rank);
      }
    });
  }
  [[nodiscard]] Result result() const { return first_; }

 private:
  const Api& api_;
  const Comm comm_;
  const Stream stream_;
  Result first_ = kSuccess;
};

}  // namespace

void check_supported(const towline_collective_t& call, int version) {
  if (call.op == TOWLINE_COLLECTIVE_RECV && call.root < 0)
    fail(Status::kUnsupported, "recv from any rank: NCCL needs a rank");
  if (!reduces(call.op)) return;
  if (type_of(call.datatype) == kNone)
    fail(Status::kUnsupported, "NCCL does not reduce {}: the backend gpu does", datatype_name(call.datatype));
  if ((call.datatype == TOWLINE_FLOAT8_E4M3 || call.datatype == TOWLINE_FLOAT8_E5M2) && version < kWithFloat8)
    fail(Status::kUnsupported, "this NCCL ({}.{}) does not reduce {}: 2.24 and the backend gpu do",
         version / 10000, version / 100 % 100, datatype_name(call.datatype));
  if (call.reduction != TOWLINE_REDUCE_PREMUL_SUM && reduction_of(call.datatype, call.reduction) == kNone)
    fail(Status::kUnsupported, "NCCL has no {} of {}: the backend gpu has", reduction_name(call.reduction),
         datatype_name(call.datatype));
}

Result enqueue(const Api& api, Comm comm, const towline_collective_t& call, const Call& parts, int rank,
               int size, const Room& room, Stream stream) {
  Caller caller(api, comm, stream);
  const uint64_t bytes = parts.bytes;
  const auto me = static_cast<size_t>(rank);
  const bool is_root = rank == call.root;
  int reduction = kSum;
  int type = kUint8;
  const bool scaled = reduces(call.op) && call.reduction == TOWLINE_REDUCE_PREMUL_SUM;
  if (reduces(call.op)) {
    type = type_of(call.datatype);
    if (scaled) {
      auto factor = factor_of(call.datatype, call.factor);
      caller.take(api.make_premul_sum(&reduction, factor.data(), type, kScalarOnHost, comm));
      if (caller.result() != kSuccess) return caller.result();
    } else {
      reduction = reduction_of(call.datatype, call.reduction);
    }
  }
  const uint64_t count = bytes / parts.element;
  switch (call.op) {
    case TOWLINE_COLLECTIVE_BARRIER:
      caller.take(api.all_reduce(room(1), room(1), 1, kUint8, kMax, comm, stream));
      break;
    case TOWLINE_COLLECTIVE_ALL_REDUCE:
      caller.take(api.all_reduce(parts.input, parts.output, count, type, reduction, comm, stream));
      break;
    case TOWLINE_COLLECTIVE_REDUCE:
      caller.take(api.reduce(parts.input, parts.output, count, type, reduction, call.root, comm, stream));
      break;
    case TOWLINE_COLLECTIVE_BROADCAST:
      caller.take(api.broadcast(parts.input, parts.output, bytes, kUint8, call.root, comm, stream));
      break;
    case TOWLINE_COLLECTIVE_ALL_GATHER: {
      const bool flat = side_by_side(parts.out, bytes);
      void* const to = flat ? parts.out.at[0] : room(bytes * parts.out.at.size());
      caller.take(api.all_gather(parts.input, to, bytes, kUint8, comm, stream));
      if (!flat) caller.copy(parts.out, static_cast<uint8_t*>(to), false, rank);
      break;
    }
    case TOWLINE_COLLECTIVE_ALL_GATHER_V:
      caller.group([&] {
        for (int peer = 0; peer < size; ++peer) {
          const auto i = static_cast<size_t>(peer);
          if (parts.out.bytes[i] == 0) continue;
          caller.take(api.broadcast(peer == rank ? parts.input : parts.out.at[i], parts.out.at[i],
                                    parts.out.bytes[i], kUint8, peer, comm, stream));
        }
      });
      break;
    case TOWLINE_COLLECTIVE_REDUCE_SCATTER: {
      const bool flat = side_by_side(parts.in, bytes);
      void* const from = flat ? parts.in.at[0] : room(bytes * parts.in.at.size());
      if (!flat) caller.copy(parts.in, static_cast<uint8_t*>(from), true, rank);
      caller.take(api.reduce_scatter(from, parts.output, count, type, reduction, comm, stream));
      break;
    }
    case TOWLINE_COLLECTIVE_REDUCE_SCATTER_V:
      caller.group([&] {
        for (int peer = 0; peer < size; ++peer) {
          const auto i = static_cast<size_t>(peer);
          if (parts.in.bytes[i] == 0) continue;
          // Only the root's output is written.
          void* const to = peer == rank ? parts.output : parts.in.at[i];
          caller.take(api.reduce(parts.in.at[i], to, parts.in.bytes[i] / parts.element, type, reduction, peer,
                                 comm, stream));
        }
      });
      break;
    case TOWLINE_COLLECTIVE_GATHER:
      caller.group([&] {
        const bool in_place = is_root && parts.input == parts.out.at[me];
        if (!in_place) caller.send(parts.input, bytes, call.root);
        if (!is_root) return;
        for (int peer = 0; peer < size; ++peer)
          if (peer != rank || !in_place) caller.receive(parts.out.at[static_cast<size_t>(peer)], bytes, peer);
      });
      break;
    case TOWLINE_COLLECTIVE_SCATTER:
      caller.group([&] {
        const bool in_place = is_root && parts.output == parts.in.at[me];
        if (!in_place) caller.receive(parts.output, bytes, call.root);
        if (!is_root) return;
        for (int peer = 0; peer < size; ++peer)
          if (peer != rank || !in_place) caller.send(parts.in.at[static_cast<size_t>(peer)], bytes, peer);
      });
      break;
    case TOWLINE_COLLECTIVE_ALL_TO_ALL:
    case TOWLINE_COLLECTIVE_ALL_TO_ALL_V:
      caller.group([&] {
        for (int peer = 0; peer < size; ++peer) {
          const auto i = static_cast<size_t>(peer);
          caller.send(parts.in.at[i], parts.in.bytes[i], peer);
          caller.receive(parts.out.at[i], parts.out.bytes[i], peer);
        }
      });
      break;
    default:
      return kInvalidArgument;
  }
  if (scaled) caller.take(api.free_reduction(reduction, comm));
  return caller.result();
}

Result enqueue_message(const Api& api, Comm comm, const towline_collective_t& call, Stream stream) {
  Caller caller(api, comm, stream);
  const uint64_t bytes = call.count * datatype_bytes(call.datatype);
  if (call.op == TOWLINE_COLLECTIVE_SEND)
    caller.send(call.input, bytes, call.root);
  else
    caller.receive(call.output, bytes, call.root);
  return caller.result();
}

}  // namespace towline::collectives::nccl
