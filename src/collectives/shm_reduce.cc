// all_reduce, reduce and reduce_scatter among a host's ranks, as phases of lockstep (see shm_group.h). A rank's own part
// is read where it is; only what others reduce goes through the stages.
#include <algorithm>
#include <cstring>

#include "collectives/copy.h"
#include "collectives/reduce.h"
#include "collectives/shm_choice.h"

namespace towline::collectives {
namespace {

ReduceArgs reduce_args(const Call& call, void* to, const std::vector<const void*>& from, uint64_t bytes) {
  return {
      to,           from.data(),         static_cast<uint32_t>(from.size()), call.datatype, call.reduction,
      call.divisor, bytes / call.element};
}

}  // namespace

// ---- all_reduce, reduce

Status ShmGroup::all_reduce(const Call& call) {
  if (!fits_line(call.bytes)) return reduce_staged(call, -1, [&] { return first_phase(call); });
  // The data is in the lines with which ranks report their arrival.
  const Status status = first_phase(call, call.input, call.bytes);
  if (!is_error(status)) reduce_lines(call, call.input, 0, call.bytes);
  return status;
}

Status ShmGroup::reduce(const Call& call) {
  if (is_loose(call.bytes)) return reduce_loose(call);
  uint64_t reduced = 0;  // directly, before a rank's memory could not be read
  const auto directly = [&](bool& good) { return reduce_directly(call, good, reduced); };
  return by_choice(call, DirectChoice::kReduce, call.bytes, directly, [&](const auto& first) {
    Call rest = call;
    rest.input += reduced;
    if (rest.output != nullptr) rest.output += reduced;
    rest.bytes -= reduced;
    return reduce_staged(rest, call.root, first);
  });
}

// With root < 0 for everyone.
template <typename First>
Status ShmGroup::reduce_staged(const Call& call, int root, const First& first) {
  if (call.bytes <= settings_.flat_bytes) return reduce_flat(call, root, first);
  return reduce_in_slices(call, root, first);
}

// The root reads the other ranks' data, piece by piece into a stage, and reduces it there: one copy each, which the root
// makes alone. `reduced`: what is done where `good` is false; an input in the output's place is gone up to there.
Status ShmGroup::reduce_directly(const Call& call, bool& good, uint64_t& reduced) {
  const auto n = static_cast<uint64_t>(size());
  const uint64_t at = next_stage();
  const auto address = reinterpret_cast<uint64_t>(call.input);
  std::memcpy(half(index_, at), &address, sizeof address);
  if (const Status status = choice_phase(call); is_error(status)) return status;
  if (index_ == call.root) {
    constexpr uint64_t kMost =
        64 << 10;  // of a rank's data, so that the second-level cache keeps two of them
    uint8_t* const room = half(index_, next_stage());
    const uint64_t piece = std::min(kMost, share_bytes_);
    while (reduced < call.bytes) {
      const uint64_t bytes = std::min(piece, call.bytes - reduced);
      for (uint64_t rank = 0; rank < n && good; ++rank) {
        if (rank == static_cast<uint64_t>(index_)) {
          sources_[rank] = call.input + reduced;
          continue;
        }
        uint64_t from = 0;
        std::memcpy(&from, half(static_cast<int>(rank), at), sizeof from);
        good = read_from(static_cast<int>(rank), room + rank * piece, from + reduced, bytes);
        sources_[rank] = room + rank * piece;
      }
      if (!good) break;
      collectives::reduce(reduce_args(call, call.output + reduced, sources_, bytes));
      reduced += bytes;
    }
  }
  // Beside what everyone() says.
  const uint64_t said = next_stage();
  std::memcpy(half(index_, said) + sizeof reduced, &reduced, sizeof reduced);
  if (const Status status = everyone(call.ends_by(), good); is_error(status)) return status;
  std::memcpy(&reduced, half(call.root, said) + sizeof reduced, sizeof reduced);
  reduced = std::min(reduced, call.bytes);
  return Status::kOk;
}

// Reduces the data of all ranks in the phase that was posted last. False: a rank's line is invalid.
bool ShmGroup::reduce_given(const Call& call) {
  if (fits_line(call.bytes)) {
    reduce_lines(call, call.input, 0, call.bytes);
    return true;
  }
  for (int other = 0; other < size(); ++other) {
    sources_[static_cast<size_t>(other)] = other == index_ ? call.input : given(other, phase_, call.bytes);
    if (sources_[static_cast<size_t>(other)] == nullptr) return false;
  }
  collectives::reduce(reduce_args(call, call.output, sources_, call.bytes));
  return true;
}

void ShmGroup::reduce_lines(const Call& call, const uint8_t* mine, uint64_t from, uint64_t bytes) {
  alignas(8) uint8_t values[64][sizeof(Posted::inlined)];
  const bool few = size() <= 64;
  for (int other = 0; other < size(); ++other) {
    const auto i = static_cast<size_t>(other);
    sources_[i] = other == index_ ? mine : line(other, phase_).inlined + from;
    if (!few || other == index_) continue;
    // Copied out first, so that the kernel's vector loads do not touch lines that others write.
    std::memcpy(values[i], line(other, phase_).inlined, sizeof *values);
    sources_[i] = values[i] + from;
  }
  collectives::reduce(reduce_args(call, call.output, sources_, bytes));
}

// Every rank gives all its data, and each rank that wants the result reduces all: one phase.
template <typename First>
Status ShmGroup::reduce_flat(const Call& call, int root, const First& first) {
  const uint64_t at = next_stage();
  copy(half(index_, at), call.input, call.bytes);
  if (const Status status = first(); is_error(status)) return status;
  if (wanted_here(root)) {
    for (int other = 0; other < size(); ++other)
      sources_[static_cast<size_t>(other)] = other == index_ ? call.input : half(other, at);
    collectives::reduce(reduce_args(call, call.output, sources_, call.bytes));
  }
  prefetch_half(0, call.bytes, wanted_here(root));
  return Status::kOk;
}

// Each rank reduces its slice of a piece; results are collected from the stages. While piece k is reduced,
// piece k + 1 is put into the other half, and the result of k replaces the own slice, which no other rank
// needs. So there is one phase per piece.
template <typename First>
Status ShmGroup::reduce_in_slices(const Call& call, int root, const First& first) {
  const auto n = static_cast<uint64_t>(size());
  const auto me = static_cast<uint64_t>(index_);
  const uint64_t most = share_bytes_;  // limit for a slice
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
  if (const Status status = first(); is_error(status)) return status;
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
    if (const Status status = phase(call.ends_by()); is_error(status)) return status;
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

// ---- reduce_scatter

Status ShmGroup::reduce_scatter(const Call& call) {
  const auto n = static_cast<uint64_t>(size());
  Lined lined;
  if (put_in_line(call.in, lined)) {
    const Status status = first_phase(call, lined.bytes, lined.size);
    const auto me = static_cast<size_t>(index_);
    if (!is_error(status)) reduce_lines(call, call.in.at[me], lined.mine, call.in.bytes[me]);
    return status;
  }
  const auto me = static_cast<uint64_t>(index_);
  const uint64_t piece = share_bytes_;
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
    const Status status = step == 0 ? first_phase(call) : phase(call.ends_by());
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
  for (uint64_t rank = 0; rank < n; ++rank)
    if (rank != me) prefetch_half(rank * piece, call.in.bytes[rank], true);
  return Status::kOk;
}

}  // namespace towline::collectives
