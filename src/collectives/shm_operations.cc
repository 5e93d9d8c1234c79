// The operations of a host's ranks, as loops of phases of lockstep (see shm_group.h). A rank's own part is
// copied directly within the caller's memory; only data for other ranks goes through the stages.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "collectives/copy.h"
#include "collectives/shm_choice.h"

namespace towline::collectives {
Status ShmGroup::barrier(const Call& call) { return first_phase(call); }

bool ShmGroup::put_in_line(const Parts& parts, Lined& lined) const noexcept {
  uint64_t size = 0;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!fits_line(parts.bytes[rank])) return false;
    size += parts.bytes[rank];
  }
  if (!fits_line(size)) return false;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (rank == static_cast<size_t>(index_)) lined.mine = lined.size;
    if (parts.bytes[rank] != 0) std::memcpy(lined.bytes + lined.size, parts.at[rank], parts.bytes[rank]);
    lined.size += parts.bytes[rank];
  }
  return true;
}

// ---- broadcast, scatter

Status ShmGroup::broadcast(const Call& call) {
  if (is_loose(call.bytes)) return broadcast_loose(call);
  const uint64_t piece = settings_.stage_bytes;
  const bool streaming = call.bytes >= settings_.streaming_bytes;
  const uint64_t steps = pieces(call.bytes, piece);
  const auto give = [&](uint64_t) -> const uint8_t* { return index_ == call.root ? call.input : nullptr; };
  const auto take = [&](uint64_t rank) -> Taken {
    return {call.output, rank == static_cast<uint64_t>(call.root) && call.output != nullptr ? call.bytes : 0};
  };
  return copy_by_choice(call, DirectChoice::kBroadcast, call.bytes, give, take, [&](const auto& first) {
    for (uint64_t step = 0; step < steps; ++step) {
      const uint64_t begin = step * piece;
      const uint64_t bytes = piece_at(call.bytes, begin, piece);
      const uint64_t at = next_stage();
      if (index_ == call.root) copy(half(index_, at), call.input + begin, bytes);
      const Status status = step == 0 ? first() : phase(call.ends_by());
      if (is_error(status)) return status;
      if (index_ != call.root && bytes != 0) {
        copy_out(call.output + begin, half(call.root, at), bytes, streaming);
      }
    }
    if (index_ == call.root && call.output != nullptr) copy(call.output, call.input, call.bytes);
    if (index_ == call.root) prefetch_half(0, call.bytes, false);
    return Status::kOk;
  });
}

Status ShmGroup::scatter(const Call& call) {
  if (is_loose(call.bytes * ranks_.size())) return scatter_loose(call);
  const auto n = static_cast<uint64_t>(size());
  const uint64_t piece = share_bytes_;
  const bool is_root = index_ == call.root;
  const uint64_t steps = pieces(call.bytes, piece);
  const auto give = [&](uint64_t rank) -> const uint8_t* { return is_root ? call.in.at[rank] : nullptr; };
  const auto take = [&](uint64_t rank) -> Taken {
    return {call.output, rank == static_cast<uint64_t>(call.root) ? call.bytes : 0};
  };
  return copy_by_choice(call, DirectChoice::kScatter, call.bytes, give, take, [&](const auto& first) {
    for (uint64_t step = 0; step < steps; ++step) {
      const uint64_t begin = step * piece;
      const uint64_t bytes = piece_at(call.bytes, begin, piece);
      const uint64_t at = next_stage();
      if (is_root && bytes != 0) {
        for (uint64_t rank = 0; rank < n; ++rank)
          if (rank != static_cast<uint64_t>(index_))
            copy(half(index_, at) + rank * piece, call.in.at[rank] + begin, bytes);
      }
      const Status status = step == 0 ? first() : phase(call.ends_by());
      if (is_error(status)) return status;
      if (bytes == 0) continue;
      const auto me = static_cast<uint64_t>(index_);
      copy(call.output + begin, is_root ? call.in.at[me] + begin : half(call.root, at) + me * piece, bytes);
    }
    for (uint64_t rank = 0; is_root && rank < n; ++rank)
      if (rank != static_cast<uint64_t>(index_)) prefetch_half(rank * piece, call.bytes, false);
    return Status::kOk;
  });
}

// ---- gathers

Status ShmGroup::all_gather(const Call& call) {
  const uint64_t piece = settings_.stage_bytes;
  const auto me = static_cast<size_t>(index_);
  const uint64_t largest = *std::ranges::max_element(call.out.bytes);
  if (fits_line(largest)) {
    const Status status = first_phase(call, call.input, call.out.bytes[me]);
    if (is_error(status)) return status;
    copy(call.out.at[me], call.input, call.out.bytes[me]);
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      if (rank != me)
        copy(call.out.at[rank], line(static_cast<int>(rank), phase_).inlined, call.out.bytes[rank]);
    return status;
  }
  const bool streaming = largest * static_cast<uint64_t>(size()) >= settings_.streaming_bytes;
  const uint64_t steps = pieces(largest, piece);
  const auto give = [&](uint64_t) { return call.input; };
  const auto take = [&](uint64_t rank) -> Taken { return {call.out.at[rank], call.out.bytes[rank]}; };
  return copy_by_choice(call, DirectChoice::kAllGather, largest, give, take, [&](const auto& first) {
    for (uint64_t step = 0; step < steps; ++step) {
      const uint64_t begin = step * piece;
      const uint64_t at = next_stage();
      const uint64_t mine = piece_at(call.out.bytes[me], begin, piece);
      if (mine != 0) {
        copy(half(index_, at), call.input + begin, mine);
        if (call.out.at[me] != call.input)
          copy_out(call.out.at[me] + begin, call.input + begin, mine, streaming);
      }
      const Status status = step == 0 ? first() : phase(call.ends_by());
      if (is_error(status)) return status;
      for (int offset = 1; offset < size(); ++offset) {
        const int other = after(index_, offset);
        const auto i = static_cast<size_t>(other);
        const uint64_t bytes = piece_at(call.out.bytes[i], begin, piece);
        if (bytes != 0) copy_out(call.out.at[i] + begin, half(other, at), bytes, streaming);
      }
    }
    prefetch_half(0, call.out.bytes[me], true);
    return Status::kOk;
  });
}

Status ShmGroup::gather(const Call& call) {
  if (is_loose(call.bytes)) return gather_loose(call);
  const uint64_t piece = settings_.stage_bytes;
  const bool is_root = index_ == call.root;
  const uint64_t steps = pieces(call.bytes, piece);
  const auto give = [&](uint64_t) { return call.input; };
  const auto take = [&](uint64_t rank) -> Taken {
    return is_root ? Taken{call.out.at[rank], call.bytes} : Taken{nullptr, 0};
  };
  return copy_by_choice(call, DirectChoice::kGather, call.bytes, give, take, [&](const auto& first) {
    for (uint64_t step = 0; step < steps; ++step) {
      const uint64_t begin = step * piece;
      const uint64_t bytes = piece_at(call.bytes, begin, piece);
      const uint64_t at = next_stage();
      if (!is_root) copy(half(index_, at), call.input + begin, bytes);
      const Status status = step == 0 ? first() : phase(call.ends_by());
      if (is_error(status)) return status;
      if (!is_root || bytes == 0) continue;
      for (int other = 0; other < size(); ++other) {
        const uint8_t* from = other == index_ ? call.input + begin : half(other, at);
        copy(call.out.at[static_cast<size_t>(other)] + begin, from, bytes);
      }
    }
    if (!is_root) prefetch_half(0, call.bytes, false);
    return Status::kOk;
  });
}

// ---- all_to_all

Status ShmGroup::all_to_all(const Call& call) {
  Lined lined;
  if (put_in_line(call.in, lined)) {
    const Status status = first_phase(call, lined.bytes, lined.size);
    if (is_error(status)) return status;
    const auto me = static_cast<size_t>(index_);
    copy(call.out.at[me], call.in.at[me], call.out.bytes[me]);
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      if (rank != me)
        copy(call.out.at[rank], line(static_cast<int>(rank), phase_).inlined + lined.mine,
             call.out.bytes[rank]);
    return status;
  }
  const uint64_t bytes = *std::ranges::max_element(call.in.bytes);
  const auto give = [&](uint64_t rank) { return call.in.at[rank]; };
  const auto take = [&](uint64_t rank) -> Taken { return {call.out.at[rank], call.out.bytes[rank]}; };
  return copy_by_choice(call, DirectChoice::kAllToAll, bytes, give, take,
                        [&](const auto& first) { return to_everyone(call, bytes, first); });
}

// First every rank learns the counts of all ranks, sent and expected, so all see the same disagreement.
Status ShmGroup::all_to_all_v(const Call& call) {
  const auto n = static_cast<size_t>(size());
  const uint64_t row = n * sizeof(uint64_t);
  if (2 * row > settings_.stage_bytes)
    return breaker_.raise(Status::kLimitExceeded,
                          "all_to_all_v: tuning.collectives.stage_bytes is too small for the counts");
  const uint64_t at = next_stage();
  std::memcpy(half(index_, at), call.in.bytes.data(), row);
  std::memcpy(half(index_, at) + row, call.out.bytes.data(), row);
  if (const Status status = first_phase(call); is_error(status)) return status;
  uint64_t largest = 0;
  for (size_t from = 0; from < n; ++from)
    std::memcpy(counts_.data() + from * n, half(static_cast<int>(from), at), row);
  for (size_t to = 0; to < n; ++to) {
    for (size_t from = 0; from < n; ++from) {
      uint64_t expected = 0;
      std::memcpy(&expected, half(static_cast<int>(to), at) + row + from * sizeof expected, sizeof expected);
      const uint64_t sent = counts_[from * n + to];
      if (sent != expected) {
        return breaker_.raise(Status::kMismatch,
                              fmt::format("{}: rank {} sends {} bytes to rank {}, which expects {}",
                                          describe(call.header), ranks_[from], sent, ranks_[to], expected));
      }
      largest = std::max(largest, sent);
    }
  }
  const auto next = [&] { return phase(call.ends_by()); };  // the first one has been
  return largest == 0 ? next() : to_everyone(call, largest, next);
}

template <typename First>
Status ShmGroup::to_everyone(const Call& call, uint64_t most_bytes, const First& first) {
  const auto n = static_cast<uint64_t>(size());
  const auto me = static_cast<uint64_t>(index_);
  const uint64_t piece = share_bytes_;
  const bool streaming = call.streaming || most_bytes * n >= settings_.streaming_bytes;
  const uint64_t steps = pieces(most_bytes, piece);
  for (uint64_t step = 0; step < steps; ++step) {
    const uint64_t begin = step * piece;
    const uint64_t at = next_stage();
    for (uint64_t rank = 0; rank < n; ++rank) {
      const uint64_t bytes = piece_at(call.in.bytes[rank], begin, piece);
      if (bytes == 0) continue;
      if (rank == me)
        copy_out(call.out.at[me] + begin, call.in.at[me] + begin, bytes, streaming);
      else
        copy(half(index_, at) + rank * piece, call.in.at[rank] + begin, bytes);
    }
    const Status status = step == 0 ? first() : phase(call.ends_by());
    if (is_error(status)) return status;
    for (uint64_t offset = 1; offset < n; ++offset) {
      const auto rank = static_cast<uint64_t>(after(index_, static_cast<int>(offset)));
      const uint64_t bytes = piece_at(call.out.bytes[rank], begin, piece);
      if (bytes != 0)
        copy_out(call.out.at[rank] + begin, half(static_cast<int>(rank), at) + me * piece, bytes, streaming);
    }
  }
  for (uint64_t rank = 0; rank < n; ++rank)
    if (rank != me) prefetch_half(rank * piece, call.in.bytes[rank], true);
  return Status::kOk;
}

// ---- control

Status ShmGroup::exchange(const Header& header, const void* mine, uint64_t bytes,
                          std::vector<std::vector<uint8_t>>& all, Deadline deadline) {
  Call call;
  call.header = header;
  call.deadline = deadline;
  const uint64_t at = next_stage();
  uint8_t* const stage = half(index_, at);
  std::memcpy(stage, &bytes, sizeof bytes);
  if (bytes != 0) std::memcpy(stage + sizeof bytes, mine, bytes);
  if (const Status status = first_phase(call); is_error(status)) return status;
  all.resize(ranks_.size());
  for (int other = 0; other < size(); ++other) {
    uint64_t length = 0;
    std::memcpy(&length, half(other, at), sizeof length);
    length = std::min(length, kMostExchanged);
    const uint8_t* const from = half(other, at) + sizeof length;
    all[static_cast<size_t>(other)].assign(from, from + length);
  }
  return Status::kOk;
}

}  // namespace towline::collectives
