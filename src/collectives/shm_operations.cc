// The operations of a host's ranks, as loops of phases of lockstep (see shm_group.h). A rank's own part is
// copied directly within the caller's memory; only data for other ranks goes through the stages.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "collectives/copy.h"
#include "collectives/reduce.h"
#include "collectives/shm_group.h"

namespace towline::collectives {
namespace {

constexpr uint64_t kLine = 64;

uint64_t pieces(uint64_t bytes, uint64_t piece) { return bytes == 0 ? 1 : (bytes + piece - 1) / piece; }

// The rest of `bytes` from `begin` on, at most `piece`.
uint64_t piece_at(uint64_t bytes, uint64_t begin, uint64_t piece) {
  return begin >= bytes ? 0 : std::min(piece, bytes - begin);
}

ReduceArgs reduce_args(const Call& call, void* to, const std::vector<const void*>& from, uint64_t bytes) {
  return {
      to,           from.data(),         static_cast<uint32_t>(from.size()), call.datatype, call.reduction,
      call.divisor, bytes / call.element};
}

}  // namespace

// Parts of less than kLeastBytes have no choice.
template <typename Give, typename Take, typename Staged>
Status ShmGroup::by_choice(const Call& call, DirectChoice::Operation operation, uint64_t bytes,
                           const Give& give, const Take& take, const Staged& staged) {
  if (bytes < DirectChoice::kLeastBytes || size() == 1) return staged([&] { return first_phase(call); });
  const uint64_t began_ns = monotonic_now_ns();
  const uint32_t of_class = DirectChoice::class_of(operation, bytes);
  const bool direct = choice_.direct(of_class);
  bool good = direct;
  if (direct) {
    if (const Status status = directly(call, give, take, good); is_error(status)) return status;
    if (!good) choice_.prove(false, settings_.single_copy);  // memory without ordinary pages behind it, say
  }
  if (!good) {
    const Status status = staged([&] { return direct ? phase(call.deadline) : choice_phase(call); });
    if (is_error(status)) return status;
  }
  choice_.ended(of_class, good, bytes, monotonic_now_ns() - began_ns);
  return choice_.is_proved() ? Status::kOk : prove_direct(call.deadline);
}

// The stages carry where the parts for the others are.
template <typename Give, typename Take>
Status ShmGroup::directly(const Call& call, const Give& give, const Take& take, bool& good) {
  const auto n = static_cast<uint64_t>(size());
  const auto me = static_cast<uint64_t>(index_);
  const uint64_t at = next_stage();
  for (uint64_t rank = 0; rank < n; ++rank) {
    const auto address = reinterpret_cast<uint64_t>(give(rank));
    std::memcpy(half(index_, at) + rank * sizeof address, &address, sizeof address);
  }
  if (const Status status = choice_phase(call); is_error(status)) return status;
  for (uint64_t offset = 1; offset < n && good; ++offset) {
    const uint64_t rank = (me + offset) % n;
    const Taken part = take(rank);
    if (part.bytes == 0) continue;
    uint64_t address = 0;
    std::memcpy(&address, half(static_cast<int>(rank), at) + me * sizeof address, sizeof address);
    good = read_from(static_cast<int>(rank), part.to, address, part.bytes);
  }
  const Taken own = take(me);
  const uint8_t* const from = give(me);
  if (own.bytes != 0 && own.to != from)
    copy_out(own.to, from, own.bytes, own.bytes * n >= settings_.streaming_bytes);
  return everyone(call.deadline, good);
}

Status ShmGroup::barrier(const Call& call) { return first_phase(call); }

// ---- all_reduce, reduce

Status ShmGroup::all_reduce(const Call& call) { return reduce_to(call, -1); }

Status ShmGroup::reduce(const Call& call) { return reduce_to(call, call.root); }

Status ShmGroup::reduce_to(const Call& call, int root) {
  if (root >= 0 && is_loose(call.bytes)) return reduce_loose(call);
  if (root < 0 && fits_line(call.bytes)) {
    // The data is in the lines with which ranks report their arrival.
    const Status status = first_phase(call, call.input, call.bytes);
    if (!is_error(status)) static_cast<void>(reduce_given(call));  // in the lines, so it can't fail
    return status;
  }
  if (call.bytes <= settings_.flat_bytes) return reduce_flat(call, root);
  return reduce_in_slices(call, root);
}

// Reduces the data of all ranks in the phase that was posted last. False: a rank's line is invalid.
bool ShmGroup::reduce_given(const Call& call) {
  for (int other = 0; other < size(); ++other) {
    sources_[static_cast<size_t>(other)] = given(other, phase_, call.bytes);
    if (sources_[static_cast<size_t>(other)] == nullptr) return false;
  }
  if (!fits_line(call.bytes)) {
    collectives::reduce(reduce_args(call, call.output, sources_, call.bytes));
    return true;
  }
  alignas(8) uint8_t values[64][sizeof(Posted::inlined)];
  alignas(8) uint8_t result[sizeof(Posted::inlined)];
  if (size() <= 64) {
    // Copied out first, so that the kernel's vector loads do not touch lines that others write.
    for (size_t other = 0; other < ranks_.size(); ++other) {
      std::memcpy(values[other], sources_[other], sizeof *values);
      sources_[other] = values[other];
    }
  }
  collectives::reduce(reduce_args(call, result, sources_, call.bytes));
  copy(call.output, result, call.bytes);
  return true;
}

// Every rank gives all its data, and each rank that wants the result reduces all: one phase.
Status ShmGroup::reduce_flat(const Call& call, int root) {
  const uint64_t at = next_stage();
  copy(half(index_, at), call.input, call.bytes);
  const Status status = first_phase(call);
  if (is_error(status) || !wanted_here(root)) return status;
  for (int other = 0; other < size(); ++other) sources_[static_cast<size_t>(other)] = half(other, at);
  collectives::reduce(reduce_args(call, call.output, sources_, call.bytes));
  return Status::kOk;
}

// Each rank reduces its slice of a piece; results are collected from the stages. While piece k is reduced,
// piece k + 1 is put into the other half, and the result of k replaces the own slice, which no other rank
// needs. So there is one phase per piece.
Status ShmGroup::reduce_in_slices(const Call& call, int root) {
  const auto n = static_cast<uint64_t>(size());
  const auto me = static_cast<uint64_t>(index_);
  const uint64_t most = settings_.stage_bytes / n / kLine * kLine;  // limit for a slice
  const uint64_t steps = pieces(call.bytes, most * n);
  const bool streaming = call.bytes >= settings_.streaming_bytes;
  // Slice r of the piece at `begin`: in the data, and in a stage.
  struct Slice {
    uint64_t begin;
    uint64_t bytes;
  };
  const auto slice = [&](uint64_t step, uint64_t rank) -> Slice {
    const uint64_t begin = step * most * n;
    const uint64_t whole = piece_at(call.bytes, begin, most * n);
    const uint64_t share = std::min(most, ((whole + n - 1) / n + kLine - 1) / kLine * kLine);
    return {begin + rank * share, piece_at(whole, rank * share, share)};
  };
  const auto put_inputs = [&](uint64_t step, uint64_t at) {
    uint8_t* const stage = half(index_, at);
    for (uint64_t rank = 0; rank < n; ++rank) {
      if (rank == me) continue;
      const Slice part = slice(step, rank);
      copy(stage + rank * most, call.input + part.begin, part.bytes);
    }
  };

  put_inputs(0, next_stage());
  if (const Status status = first_phase(call); is_error(status)) return status;
  for (uint64_t step = 0; step < steps; ++step) {
    const uint64_t inputs = stage_;
    const uint64_t results = next_stage();
    const Slice mine = slice(step, me);
    uint8_t* const result = half(index_, results) + me * most;
    for (uint64_t rank = 0; rank < n; ++rank) {
      sources_[rank] = rank == me ? static_cast<const void*>(call.input + mine.begin)
                                  : half(static_cast<int>(rank), inputs) + me * most;
    }
    const bool wanted_here = this->wanted_here(root);
    const bool wanted_there = root < 0 ? n > 1 : root != index_;
    if (!wanted_there) {
      ReduceArgs args = reduce_args(call, call.output + mine.begin, sources_, mine.bytes);
      args.streaming = streaming;
      if (mine.bytes != 0) collectives::reduce(args);
    } else if (mine.bytes != 0) {
      // By pieces that the first-level cache keeps, so that the second copy reads no memory.
      constexpr uint64_t kPiece = 8192;
      for (uint64_t done = 0; done < mine.bytes; done += kPiece) {
        const uint64_t bytes = std::min(kPiece, mine.bytes - done);
        collectives::reduce(reduce_args(call, result + done, sources_, bytes));
        if (wanted_here) copy_out(call.output + mine.begin + done, result + done, bytes, streaming);
        for (const void*& source : sources_) source = static_cast<const uint8_t*>(source) + bytes;
      }
    }
    if (step + 1 < steps) put_inputs(step + 1, results);
    if (const Status status = phase(call.deadline); is_error(status)) return status;
    if (!wanted_here) continue;
    for (uint64_t offset = 1; offset < n; ++offset) {
      const uint64_t rank = (me + offset) % n;
      const Slice part = slice(step, rank);
      copy_out(call.output + part.begin, half(static_cast<int>(rank), results) + rank * most, part.bytes,
               streaming);
    }
  }
  return Status::kOk;
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
  return by_choice(call, DirectChoice::kBroadcast, call.bytes, give, take, [&](const auto& first) {
    for (uint64_t step = 0; step < steps; ++step) {
      const uint64_t begin = step * piece;
      const uint64_t bytes = piece_at(call.bytes, begin, piece);
      const uint64_t at = next_stage();
      if (index_ == call.root) copy(half(index_, at), call.input + begin, bytes);
      const Status status = step == 0 ? first() : phase(call.deadline);
      if (is_error(status)) return status;
      if (index_ != call.root && bytes != 0) {
        copy_out(call.output + begin, half(call.root, at), bytes, streaming);
      }
    }
    if (index_ == call.root && call.output != nullptr) copy(call.output, call.input, call.bytes);
    return Status::kOk;
  });
}

Status ShmGroup::scatter(const Call& call) {
  if (is_loose(call.bytes * ranks_.size())) return scatter_loose(call);
  const auto n = static_cast<uint64_t>(size());
  const uint64_t piece = settings_.stage_bytes / n / kLine * kLine;
  const bool is_root = index_ == call.root;
  const uint64_t steps = pieces(call.bytes, piece);
  const auto give = [&](uint64_t rank) -> const uint8_t* { return is_root ? call.in.at[rank] : nullptr; };
  const auto take = [&](uint64_t rank) -> Taken {
    return {call.output, rank == static_cast<uint64_t>(call.root) ? call.bytes : 0};
  };
  return by_choice(call, DirectChoice::kScatter, call.bytes, give, take, [&](const auto& first) {
    for (uint64_t step = 0; step < steps; ++step) {
      const uint64_t begin = step * piece;
      const uint64_t bytes = piece_at(call.bytes, begin, piece);
      const uint64_t at = next_stage();
      if (is_root && bytes != 0) {
        for (uint64_t rank = 0; rank < n; ++rank)
          if (rank != static_cast<uint64_t>(index_))
            copy(half(index_, at) + rank * piece, call.in.at[rank] + begin, bytes);
      }
      const Status status = step == 0 ? first() : phase(call.deadline);
      if (is_error(status)) return status;
      if (bytes == 0) continue;
      const auto me = static_cast<uint64_t>(index_);
      copy(call.output + begin, is_root ? call.in.at[me] + begin : half(call.root, at) + me * piece, bytes);
    }
    return Status::kOk;
  });
}

// ---- gathers

Status ShmGroup::all_gather(const Call& call) {
  const uint64_t piece = settings_.stage_bytes;
  const auto me = static_cast<size_t>(index_);
  const uint64_t largest = *std::ranges::max_element(call.out.bytes);
  const bool streaming = largest * static_cast<uint64_t>(size()) >= settings_.streaming_bytes;
  const uint64_t steps = pieces(largest, piece);
  const auto give = [&](uint64_t) { return call.input; };
  const auto take = [&](uint64_t rank) -> Taken { return {call.out.at[rank], call.out.bytes[rank]}; };
  return by_choice(call, DirectChoice::kAllGather, largest, give, take, [&](const auto& first) {
    for (uint64_t step = 0; step < steps; ++step) {
      const uint64_t begin = step * piece;
      const uint64_t at = next_stage();
      const uint64_t mine = piece_at(call.out.bytes[me], begin, piece);
      if (mine != 0) {
        copy(half(index_, at), call.input + begin, mine);
        if (call.out.at[me] != call.input)
          copy_out(call.out.at[me] + begin, call.input + begin, mine, streaming);
      }
      const Status status = step == 0 ? first() : phase(call.deadline);
      if (is_error(status)) return status;
      for (int offset = 1; offset < size(); ++offset) {
        const int other = (index_ + offset) % size();
        const auto i = static_cast<size_t>(other);
        const uint64_t bytes = piece_at(call.out.bytes[i], begin, piece);
        if (bytes != 0) copy_out(call.out.at[i] + begin, half(other, at), bytes, streaming);
      }
    }
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
  return by_choice(call, DirectChoice::kGather, call.bytes, give, take, [&](const auto& first) {
    for (uint64_t step = 0; step < steps; ++step) {
      const uint64_t begin = step * piece;
      const uint64_t bytes = piece_at(call.bytes, begin, piece);
      const uint64_t at = next_stage();
      if (!is_root) copy(half(index_, at), call.input + begin, bytes);
      const Status status = step == 0 ? first() : phase(call.deadline);
      if (is_error(status)) return status;
      if (!is_root || bytes == 0) continue;
      for (int other = 0; other < size(); ++other) {
        const uint8_t* from = other == index_ ? call.input + begin : half(other, at);
        copy(call.out.at[static_cast<size_t>(other)] + begin, from, bytes);
      }
    }
    return Status::kOk;
  });
}

// ---- reduce_scatter

Status ShmGroup::reduce_scatter(const Call& call) {
  const auto n = static_cast<uint64_t>(size());
  const auto me = static_cast<uint64_t>(index_);
  const uint64_t piece = settings_.stage_bytes / n / kLine * kLine;
  const uint64_t largest = *std::ranges::max_element(call.in.bytes);
  const bool streaming = largest * n >= settings_.streaming_bytes;
  const uint64_t steps = pieces(largest, piece);
  for (uint64_t step = 0; step < steps; ++step) {
    const uint64_t begin = step * piece;
    const uint64_t at = next_stage();
    for (uint64_t rank = 0; rank < n; ++rank) {
      const uint64_t bytes = piece_at(call.in.bytes[rank], begin, piece);
      if (rank != me && bytes != 0) copy(half(index_, at) + rank * piece, call.in.at[rank] + begin, bytes);
    }
    const Status status = step == 0 ? first_phase(call) : phase(call.deadline);
    if (is_error(status)) return status;
    const uint64_t mine = piece_at(call.in.bytes[me], begin, piece);
    if (mine == 0) continue;
    for (uint64_t rank = 0; rank < n; ++rank) {
      sources_[rank] = rank == me ? static_cast<const void*>(call.in.at[me] + begin)
                                  : half(static_cast<int>(rank), at) + me * piece;
    }
    ReduceArgs args = reduce_args(call, call.output + begin, sources_, mine);
    args.streaming = streaming;
    collectives::reduce(args);
  }
  return Status::kOk;
}

// ---- all_to_all

Status ShmGroup::all_to_all(const Call& call) {
  const uint64_t bytes = *std::ranges::max_element(call.in.bytes);
  const auto give = [&](uint64_t rank) { return call.in.at[rank]; };
  const auto take = [&](uint64_t rank) -> Taken { return {call.out.at[rank], call.out.bytes[rank]}; };
  return by_choice(call, DirectChoice::kAllToAll, bytes, give, take,
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
  const auto next = [&] { return phase(call.deadline); };  // the first one has been
  return largest == 0 ? next() : to_everyone(call, largest, next);
}

template <typename First>
Status ShmGroup::to_everyone(const Call& call, uint64_t most_bytes, const First& first) {
  const auto n = static_cast<uint64_t>(size());
  const auto me = static_cast<uint64_t>(index_);
  const uint64_t piece = settings_.stage_bytes / n / kLine * kLine;
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
    const Status status = step == 0 ? first() : phase(call.deadline);
    if (is_error(status)) return status;
    for (uint64_t offset = 1; offset < n; ++offset) {
      const uint64_t rank = (me + offset) % n;
      const uint64_t bytes = piece_at(call.out.bytes[rank], begin, piece);
      if (bytes != 0)
        copy_out(call.out.at[rank] + begin, half(static_cast<int>(rank), at) + me * piece, bytes, streaming);
    }
  }
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
