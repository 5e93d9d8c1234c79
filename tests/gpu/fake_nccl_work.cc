#include "fake_nccl_work.h"

#include <cstring>

#include "collectives/gpu/operations.h"

namespace towline::fake_nccl {
using namespace collectives;
using nccl::Datatype;

size_t bytes_of(int type) {
  switch (type) {
    case Datatype::kInt8:
    case Datatype::kUint8:
    case Datatype::kFloat8E4m3:
    case Datatype::kFloat8E5m2:
      return 1;
    case Datatype::kFloat16:
    case Datatype::kBfloat16:
      return 2;
    case Datatype::kInt64:
    case Datatype::kUint64:
    case Datatype::kFloat64:
      return 8;
    default:
      return 4;
  }
}

namespace {

uint32_t ours(int op) {
  switch (op) {
    case nccl::kProduct:
      return TOWLINE_REDUCE_PRODUCT;
    case nccl::kMax:
      return TOWLINE_REDUCE_MAX;
    case nccl::kMin:
      return TOWLINE_REDUCE_MIN;
    case nccl::kAverage:
      return TOWLINE_REDUCE_AVG;
    default:
      return TOWLINE_REDUCE_SUM;
  }
}

// Elements from `first` on of every rank's input.
template <class E>
void combine_all(const Meeting& meeting, size_t first, size_t count, void* to) {
  using Bits = typename E::Bits;
  std::vector<Bits> results(count);
  for (size_t i = 0; i < count; ++i) {
    typename E::Sum sum{};
    for (size_t rank = 0; rank < meeting.ranks.size(); ++rank) {
      const Operation& one = *meeting.ranks[rank];
      Bits bits;
      std::memcpy(&bits, static_cast<const Bits*>(one.from) + first + i, sizeof bits);
      if (one.reduction.scaled) bits = gpu::scale_one<E>(bits, one.reduction.factor);
      const uint32_t reduction = ours(one.reduction.op);
      sum = rank == 0 ? E::widen(bits)
                      : gpu::combine<E>(sum, E::widen(bits), reduction, gpu::is_sum(reduction));
    }
    results[i] = gpu::finish<E>(sum, ours(meeting.ranks[0]->reduction.op),
                                static_cast<uint32_t>(meeting.ranks.size()));
  }
  if (count != 0) std::memcpy(to, results.data(), count * sizeof(Bits));
}

void combine_to(const Meeting& meeting, size_t first, size_t count, void* to) {
  switch (meeting.ranks[0]->type) {
    case Datatype::kInt8:
      return combine_all<gpu::PlainElement<int8_t>>(meeting, first, count, to);
    case Datatype::kUint8:
      return combine_all<gpu::PlainElement<uint8_t>>(meeting, first, count, to);
    case Datatype::kInt32:
      return combine_all<gpu::PlainElement<int32_t>>(meeting, first, count, to);
    case Datatype::kUint32:
      return combine_all<gpu::PlainElement<uint32_t>>(meeting, first, count, to);
    case Datatype::kInt64:
      return combine_all<gpu::PlainElement<int64_t>>(meeting, first, count, to);
    case Datatype::kUint64:
      return combine_all<gpu::PlainElement<uint64_t>>(meeting, first, count, to);
    case Datatype::kFloat16:
      return combine_all<gpu::SmallElement<Float16>>(meeting, first, count, to);
    case Datatype::kBfloat16:
      return combine_all<gpu::SmallElement<Bfloat16>>(meeting, first, count, to);
    case Datatype::kFloat64:
      return combine_all<gpu::PlainElement<double>>(meeting, first, count, to);
    case Datatype::kFloat8E4m3:
      return combine_all<gpu::TinyElement<Float8E4m3>>(meeting, first, count, to);
    case Datatype::kFloat8E5m2:
      return combine_all<gpu::TinyElement<Float8E5m2>>(meeting, first, count, to);
    default:
      return combine_all<gpu::PlainElement<float>>(meeting, first, count, to);
  }
}

}  // namespace

void move(void* to, const void* from, size_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

bool alike(const Meeting& meeting) {
  const Operation& first = *meeting.ranks[0];
  for (const Operation* const one : meeting.ranks)
    if (one->kind != first.kind || one->count != first.count || one->type != first.type ||
        one->reduction.op != first.reduction.op || one->root != first.root)
      return false;
  return true;
}

void carry_out(const Meeting& meeting) {
  const Operation& first = *meeting.ranks[0];
  const size_t count = first.count;
  const size_t bytes = count * bytes_of(first.type);
  const auto root = static_cast<size_t>(first.root);
  std::vector<std::vector<uint8_t>> parts(meeting.ranks.size());
  switch (first.kind) {
    case Kind::kAllReduce: {
      std::vector<uint8_t> result(bytes + 1);
      combine_to(meeting, 0, count, result.data());
      for (Operation* const one : meeting.ranks) move(one->to, result.data(), bytes);
      break;
    }
    case Kind::kReduce:
      combine_to(meeting, 0, count, meeting.ranks[root]->to);
      break;
    case Kind::kBroadcast:
      for (Operation* const one : meeting.ranks) move(one->to, meeting.ranks[root]->from, bytes);
      break;
    case Kind::kAllGather:
      for (Operation* const one : meeting.ranks)
        for (size_t rank = 0; rank < meeting.ranks.size(); ++rank)
          move(static_cast<uint8_t*>(one->to) + rank * bytes, meeting.ranks[rank]->from, bytes);
      break;
    default:
      for (size_t rank = 0; rank < meeting.ranks.size(); ++rank) {
        parts[rank].resize(bytes + 1);
        combine_to(meeting, rank * count, count, parts[rank].data());
      }
      for (size_t rank = 0; rank < meeting.ranks.size(); ++rank)
        move(meeting.ranks[rank]->to, parts[rank].data(), bytes);
  }
  for (Operation* const one : meeting.ranks) one->done = true;
}

}  // namespace towline::fake_nccl
