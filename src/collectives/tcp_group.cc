#include "collectives/tcp_group.h"

#include <algorithm>
#include <cstring>

#include "base/copy/copy.h"
#include "base/copy/stream_copy.h"
#include "collectives/calls/types.h"
#include "collectives/reduce.h"

namespace towline::collectives {
namespace {

constexpr uint64_t kFlatBytes = 16 << 10;   // up to here all_reduce and all_gather minimise steps, not bytes
constexpr uint64_t kPieceBytes = 1 << 20;   // piece of a part that is received to be reduced
constexpr uint64_t kTreeBytes = 256 << 10;  // broadcast up to here: a tree
constexpr uint64_t kStreamBytes = 4 << 20;  // from this size on, own parts are stored past the caches

std::span<const uint8_t> bytes_at(const uint8_t* at, uint64_t bytes) {
  return {at, static_cast<size_t>(bytes)};
}
std::span<uint8_t> bytes_at(uint8_t* at, uint64_t bytes) { return {at, static_cast<size_t>(bytes)}; }

bool contains(std::span<const int> indices, int index) {
  return std::ranges::find(indices, index) != indices.end();
}

// Each addition would round: their sums are kept in float32 until the last.
bool is_small_float(uint32_t datatype) { return is_floating(datatype) && datatype_bytes(datatype) < 4; }

void copy_own(uint8_t* to, const uint8_t* from, uint64_t bytes) {
  if (bytes == 0 || to == from) return;
  if (bytes >= kStreamBytes)
    stream_copy(to, from, bytes);
  else
    copy_bytes(to, from, bytes);
}

}  // namespace

TcpGroup::TcpGroup(TcpMesh& mesh, int index, std::vector<int> ranks, Arrivals& arrivals)
    : mesh_(mesh), index_(index), ranks_(std::move(ranks)), arrivals_(arrivals), sources_(ranks_.size()) {}

Status TcpGroup::swap(const Call& call, int step, std::span<const uint8_t> out, std::span<uint8_t> in) {
  return mesh_.exchange(call.header, ranks_[static_cast<size_t>(ahead(step))], out,
                        ranks_[static_cast<size_t>(back(step))], in, call.deadline);
}
Status TcpGroup::exchange(const Call& call) {
  const Status status = mesh_.exchange_all(call.header, messages_, call.deadline);
  messages_.clear();
  return status;
}
Status TcpGroup::send(const Call& call, int to, std::span<const uint8_t> out) {
  return mesh_.exchange(call.header, ranks_[static_cast<size_t>(to)], out, -1, {}, call.deadline);
}
Status TcpGroup::receive(const Call& call, int from, std::span<uint8_t> in) {
  return mesh_.exchange(call.header, -1, {}, ranks_[static_cast<size_t>(from)], in, call.deadline);
}

Status TcpGroup::compare(const Call& call) {
  return size() == 1 || call.compared ? Status::kOk : swap(call, 1, {}, {});
}

// After step k every rank knows that 2^(k+1) ranks have arrived.
Status TcpGroup::barrier(const Call& call) {
  for (int step = 1; step < size(); step *= 2)
    if (const Status status = swap(call, step, {}, {}); is_error(status)) return status;
  return Status::kOk;
}

// Cuts the buffer into equal parts of whole elements; the last ones are shorter.
void TcpGroup::cut(const Call& call, uint8_t* base, Parts& parts) const {
  const auto n = static_cast<uint64_t>(size());
  const uint64_t elements = call.bytes / call.element;
  const uint64_t share = (elements + n - 1) / n * call.element;
  parts.resize(n);
  for (uint64_t rank = 0; rank < n; ++rank) {
    const uint64_t begin = std::min(rank * share, call.bytes);
    parts.at[rank] = base + begin;
    parts.bytes[rank] = std::min(share, call.bytes - begin);
  }
}

// Reduces this rank's part of all ranks, piece by piece, into `to`. `to` may be the place of the own part.
Status TcpGroup::reduce_parts(const Call& call, const Parts& in, uint8_t* to) {
  if (arrivals_.any_order && size() > 2) return reduce_in_any_order(call, in, to);
  const auto me = static_cast<size_t>(index_);
  const uint64_t largest = *std::ranges::max_element(in.bytes);
  for (uint64_t begin = 0; begin == 0 || begin < largest; begin += kPieceBytes) {
    const auto piece = [&](size_t rank) {
      return begin >= in.bytes[rank] ? 0 : std::min(kPieceBytes, in.bytes[rank] - begin);
    };
    const uint64_t mine = piece(me);
    received_.resize(static_cast<size_t>(size()) * mine);
    for (int step = 1; step < size(); ++step) {
      const auto from = static_cast<size_t>(back(step));
      const auto target = static_cast<size_t>(ahead(step));
      give(ahead(step), bytes_at(const_cast<const uint8_t*>(in.at[target]) + begin, piece(target)));
      take(back(step), bytes_at(received_.data() + from * mine, mine));
    }
    if (const Status status = exchange(call); is_error(status)) return status;
    for (size_t rank = 0; rank < sources_.size(); ++rank)
      sources_[rank] = rank == me ? in.at[me] + begin : received_.data() + rank * mine;
    collectives::reduce({to + begin, sources_.data(), static_cast<uint32_t>(sources_.size()), call.datatype,
                         call.reduction, call.divisor, mine / call.element});
  }
  return Status::kOk;
}

// The pieces of each other rank go and come one after another, independently of those of the rest.
Status TcpGroup::reduce_in_any_order(const Call& call, const Parts& in, uint8_t* to) {
  const auto me = static_cast<size_t>(index_);
  const uint64_t slot = std::min(kPieceBytes, in.bytes[me]);
  received_.resize(static_cast<size_t>(size()) * slot);
  moved_.assign(static_cast<size_t>(2 * (size() - 1)), 0);
  absent_.assign((in.bytes[me] + kPieceBytes - 1) / kPieceBytes, static_cast<uint32_t>(size() - 1));
  const bool small = is_small_float(call.datatype);
  if (small) unrounded_.resize(in.bytes[me] / call.element);
  const auto message = [&](size_t place) -> TcpMesh::Message {
    const int step = static_cast<int>(place / 2) + 1;
    const bool sends = place % 2 == 0;
    const auto part = static_cast<size_t>(sends ? ahead(step) : index_);
    const uint64_t bytes = std::min(kPieceBytes, in.bytes[part] - moved_[place]);
    if (sends)
      return {rank(ahead(step)),
              true,
              bytes_at(const_cast<const uint8_t*>(in.at[part]) + moved_[place], bytes),
              {}};
    const auto from = static_cast<size_t>(back(step));
    return {rank(back(step)), false, {}, bytes_at(received_.data() + from * slot, bytes)};
  };
  const auto add = [&](uint64_t begin, std::span<const uint8_t> piece) {
    uint32_t& absent = absent_[begin / kPieceBytes];
    const bool first = absent == static_cast<uint32_t>(size() - 1);
    const bool last = --absent == 0;
    const void* const both[] = {first ? in.at[me] + begin : to + begin, piece.data()};
    ReduceArgs args{
        to + begin, both, 2, call.datatype, call.reduction, call.divisor, piece.size() / call.element};
    if (small) {
      args.unrounded = {unrounded_.data() + begin / call.element, !first, last};
      if (!first) {
        args.from = both + 1;
        args.sources = 1;
      }
    } else if (call.reduction == TOWLINE_REDUCE_AVG && !last) {
      args.reduction = TOWLINE_REDUCE_SUM;
    }
    collectives::reduce(args);
    if (!last) arrivals_.added_early.fetch_add(1, std::memory_order_relaxed);
  };
  for (size_t place = 0; place < moved_.size(); ++place) messages_.push_back(message(place));
  const auto next = [&](size_t place, TcpMesh::Message& done) {
    const TcpMesh::Message moved = message(place);
    if (!moved.sends && !moved.in.empty()) add(moved_[place], moved.in);
    moved_[place] += moved.sends ? moved.out.size() : moved.in.size();
    done = message(place);
    return !done.out.empty() || !done.in.empty();
  };
  const Status status = mesh_.exchange_all(call.header, messages_, call.deadline, next);
  messages_.clear();
  return status;
}

Status TcpGroup::share_parts(const Call& call, const uint8_t* mine, const Parts& out) {
  const auto me = static_cast<size_t>(index_);
  for (int step = 1; step < size(); ++step) {
    const auto from = static_cast<size_t>(back(step));
    give(ahead(step), bytes_at(mine, out.bytes[me]));
    take(back(step), bytes_at(out.at[from], out.bytes[from]));
  }
  if (const Status status = exchange(call); is_error(status)) return status;
  copy_own(out.at[me], mine, out.bytes[me]);
  return Status::kOk;
}

// Collects `bytes` bytes of every rank in sources_, by rank. After step k every rank has those of 2^(k+1)
// ranks: its own and those of the ranks before it, in that order, so that the bytes it sends next are
// contiguous.
Status TcpGroup::collect(const Call& call, const uint8_t* mine, uint64_t bytes) {
  received_.resize(ranks_.size() * bytes);
  copy_own(received_.data(), mine, bytes);
  for (int step = 1; step < size(); step *= 2) {
    const uint64_t length = static_cast<uint64_t>(std::min(step, size() - step)) * bytes;
    const Status status = swap(call, step, bytes_at(received_.data(), length),
                               bytes_at(received_.data() + static_cast<uint64_t>(step) * bytes, length));
    if (is_error(status)) return status;
  }
  for (int behind = 0; behind < size(); ++behind)
    sources_[static_cast<size_t>(back(behind))] = received_.data() + static_cast<uint64_t>(behind) * bytes;
  return Status::kOk;
}

Status TcpGroup::all_reduce(const Call& call) {
  const auto me = static_cast<size_t>(index_);
  if (call.bytes <= kFlatBytes) {
    if (const Status status = collect(call, call.input, call.bytes); is_error(status)) return status;
    collectives::reduce({call.output, sources_.data(), static_cast<uint32_t>(sources_.size()), call.datatype,
                         call.reduction, call.divisor, call.bytes / call.element});
    return Status::kOk;
  }
  cut(call, const_cast<uint8_t*>(call.input), in_);
  cut(call, call.output, out_);
  if (const Status status = reduce_parts(call, in_, out_.at[me]); is_error(status)) return status;
  return share_parts(call, out_.at[me], out_);
}

Status TcpGroup::reduce(const Call& call) {
  const auto me = static_cast<size_t>(index_);
  cut(call, const_cast<uint8_t*>(call.input), in_);
  result_.resize(in_.bytes[me]);
  if (const Status status = reduce_parts(call, in_, result_.data()); is_error(status)) return status;
  if (index_ != call.root) return send(call, call.root, result_);
  cut(call, call.output, out_);
  copy_own(out_.at[me], result_.data(), result_.size());
  for (int other = 0; other < size(); ++other) {
    const auto i = static_cast<size_t>(other);
    if (other == index_) continue;
    if (const Status status = receive(call, other, bytes_at(out_.at[i], out_.bytes[i])); is_error(status))
      return status;
  }
  return Status::kOk;
}

Status TcpGroup::broadcast(const Call& call) {
  const int n = size();
  if (const Status status = compare(call); is_error(status)) return status;
  if (index_ == call.root && call.output != nullptr) copy_own(call.output, call.input, call.bytes);
  if (call.bytes <= kTreeBytes || n <= 2 || call.output == nullptr) {
    // A binomial tree: in round k each rank that has the data sends it to the rank 2^k further from the root.
    const int place = (index_ - call.root + n) % n;
    const uint8_t* data = index_ == call.root ? call.input : call.output;
    for (int step = 1; step < n; step *= 2) {
      Status status = Status::kOk;
      if (place < step && place + step < n)
        status = send(call, (index_ + step) % n, bytes_at(data, call.bytes));
      else if (place >= step && place < 2 * step)
        status = receive(call, (index_ - step + n) % n, bytes_at(call.output, call.bytes));
      if (is_error(status)) return status;
    }
    return Status::kOk;
  }
  // The root gives each rank a part; then every rank gets all parts.
  cut(call, call.output, out_);
  const auto me = static_cast<size_t>(index_);
  for (int other = 0; other < n; ++other) {
    const auto i = static_cast<size_t>(other);
    Status status = Status::kOk;
    if (index_ == call.root && other != index_)
      status = send(call, other, bytes_at(out_.at[i], out_.bytes[i]));
    if (index_ != call.root && other == index_)
      status = receive(call, call.root, bytes_at(out_.at[me], out_.bytes[me]));
    if (is_error(status)) return status;
  }
  return share_parts(call, out_.at[me], out_);
}

Status TcpGroup::all_gather(const Call& call) {
  const uint64_t part = call.out.bytes.front();
  const bool even = std::ranges::all_of(call.out.bytes, [&](uint64_t bytes) { return bytes == part; });
  if (!even || part > kFlatBytes) return share_parts(call, call.input, call.out);
  if (const Status status = collect(call, call.input, part); is_error(status)) return status;
  for (size_t rank = 0; rank < sources_.size(); ++rank)
    copy_own(call.out.at[rank], static_cast<const uint8_t*>(sources_[rank]), part);
  return Status::kOk;
}

Status TcpGroup::reduce_scatter(const Call& call) { return reduce_parts(call, call.in, call.output); }

Status TcpGroup::gather(const Call& call, std::span<const int> beside) {
  if (const Status status = compare(call); is_error(status)) return status;
  if (index_ != call.root) return send(call, call.root, bytes_at(call.input, call.bytes));
  for (int other = 0; other < size(); ++other) {
    const auto i = static_cast<size_t>(other);
    if (other != index_ && !contains(beside, other)) take(other, bytes_at(call.out.at[i], call.out.bytes[i]));
  }
  const auto me = static_cast<size_t>(index_);
  if (beside.empty()) copy_own(call.out.at[me], call.input, call.out.bytes[me]);  // while theirs arrive
  return exchange(call);
}

Status TcpGroup::scatter(const Call& call, std::span<const int> beside) {
  if (const Status status = compare(call); is_error(status)) return status;
  if (index_ != call.root) return receive(call, call.root, bytes_at(call.output, call.bytes));
  for (int other = 0; other < size(); ++other) {
    const auto i = static_cast<size_t>(other);
    if (other == index_ || contains(beside, other)) continue;
    give(other, bytes_at(static_cast<const uint8_t*>(call.in.at[i]), call.in.bytes[i]));
  }
  if (const Status status = exchange(call); is_error(status)) return status;
  // The own part comes last, since no other rank waits for it.
  const auto me = static_cast<size_t>(index_);
  if (beside.empty()) copy_own(call.output, call.in.at[me], call.in.bytes[me]);
  return Status::kOk;
}

Status TcpGroup::all_to_all(const Call& call, std::span<const int> beside) {
  const auto me = static_cast<size_t>(index_);
  if (beside.empty()) copy_own(call.out.at[me], call.in.at[me], call.in.bytes[me]);
  for (int step = 1; step < size(); ++step) {
    const int to = ahead(step);
    const int from = back(step);
    const auto out = static_cast<size_t>(to);
    const auto in = static_cast<size_t>(from);
    if (!contains(beside, to))
      give(to, bytes_at(static_cast<const uint8_t*>(call.in.at[out]), call.in.bytes[out]));
    if (!contains(beside, from)) take(from, bytes_at(call.out.at[in], call.out.bytes[in]));
  }
  return exchange(call);
}

}  // namespace towline::collectives
